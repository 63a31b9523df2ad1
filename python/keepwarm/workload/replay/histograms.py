"""Latencies as HDR histograms: bounded memory, three digits at every size, mergeable later.

Values are seconds; the histogram counts microseconds from 1 to an hour. `plain` is what the JSON
holds: a few percentiles for readers, and the whole histogram in HDR's own compressed V2 encoding,
from which any tool that knows it can merge runs or draw the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from keepwarm.errors import KeepwarmError

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
DIGITS = 3
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


class Latencies:
    """A distribution of durations. Values beyond an hour count as an hour, and are told of."""

    def __init__(self) -> None:
        try:
            from hdrh.histogram import HdrHistogram
        except ModuleNotFoundError:
            raise KeepwarmError(
                'the package hdrhistogram is missing: pip install "keepwarm[workload]"'
            ) from None
        self._hdr = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        self._sum_s = 0.0
        self._min_s, self._max_s = math.inf, 0.0
        self._beyond = 0

    def record(self, seconds: float) -> None:
        """Counts one value; a negative one (clocks) counts as 0."""
        seconds = max(seconds, 0.0)
        self._sum_s += seconds
        self._min_s, self._max_s = min(self._min_s, seconds), max(self._max_s, seconds)
        microseconds = max(round(seconds * 1e6), LOWEST_US)
        if microseconds > HIGHEST_US:
            self._beyond += 1
            microseconds = HIGHEST_US
        self._hdr.record_value(microseconds)

    def __len__(self) -> int:
        return int(self._hdr.get_total_count())

    @property
    def max_s(self) -> float:
        """The longest, exactly; 0 without any."""
        return self._max_s

    def at(self, share: float, missing: int = 0) -> float | None:
        """The value that `share` of all do not exceed, within 0.1 %; nearest rank.

        `missing` values that were never seen count as longer than all others: None says that the
        wanted one is among them, or that there is none at all.
        """
        rank = max(math.ceil(share * (len(self) + missing) - 1e-9), 1)
        return next((value for count, value in self._steps() if count >= rank), None)

    def _steps(self) -> Iterator[tuple[int, float]]:
        """How many values are at most so long."""
        counts = np.frombuffer(self._hdr.counts, np.int64)
        places = np.flatnonzero(counts)
        for place, upto in zip(places.tolist(), np.cumsum(counts[places]).tolist(), strict=True):
            value = self._hdr.get_value_from_index(place)
            yield upto, min(self._hdr.get_highest_equivalent_value(value) / 1e6, self._max_s)

    def add(self, plain: dict[str, Any]) -> None:
        """Adds what another's `plain` holds."""
        if not plain["count"]:
            return
        self._hdr.decode_and_add(plain["hdr"])
        self._sum_s += plain["mean"] * plain["count"]
        self._min_s, self._max_s = min(self._min_s, plain["min"]), max(self._max_s, plain["max"])
        self._beyond += plain["beyond_an_hour"]

    def plain(self) -> dict[str, Any]:
        """For JSON. Seconds; percentiles are None where there is no value."""
        count = len(self)
        return {
            "count": count,
            "min": self._min_s if count else None,
            "mean": self._sum_s / count if count else None,
            **{name: self.at(share) for name, share in SHARES.items()},
            "max": self._max_s if count else None,
            "beyond_an_hour": self._beyond,
            "hdr": self._hdr.encode().decode("ascii"),
        }


def with_missing(latencies: Latencies, missing: int) -> dict[str, float | None]:
    """Percentiles of all that were asked for, where `missing` of them never came to an end."""
    return {name: latencies.at(share, missing) for name, share in SHARES.items()}
