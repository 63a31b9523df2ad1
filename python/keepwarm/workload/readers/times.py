"""Times as logs write them: numbers of whatever unit, or ISO 8601."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from keepwarm.workload.readers.rows import BadRecordError, as_time

#: Unix times in ms, µs and ns are larger than any in the unit before can be until the year 5138.
_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))


def parsed(value: object) -> float:
    """Seconds: of a number by its size (s, ms, µs or ns since 1970, or s from anywhere), else of
    a text with a date; one without a zone is UTC. Raises BadRecordError."""
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 1e21:
        for least, unit in _UNITS:
            if value >= least:
                return as_time(value * unit)
    return as_time(value)


def _of_text(text: str) -> float:
    try:
        number = float(text) if len(text) < 40 else math.nan
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.replace(",", "."))
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return as_time(moment.timestamp())
        except (ValueError, OverflowError):
            raise BadRecordError("its time is neither a number nor a date") from None
    return parsed(number)
