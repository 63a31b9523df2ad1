"""Tells a log's format from its first bytes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from keepwarm.errors import ArgumentError
from keepwarm.workload.readers import mooncake
from keepwarm.workload.readers.json_lines import decode
from keepwarm.workload.readers.opening import Input

_LINES_LOOKED_AT = 32


class Format(StrEnum):
    """What can be read."""

    MOONCAKE = "mooncake"
    PARQUET = "parquet"


def told(log: Input, named: str | None) -> tuple[Format, dict[str, Any]]:
    """The format, and the first record that has it. Raises ArgumentError where none is known."""
    if not log.head.strip():
        raise ArgumentError(f"{log.name} is empty")
    if named is not None and named not in {each.value for each in Format}:
        raise ArgumentError(
            f"no format is called {named!r}: choose of {', '.join(each.value for each in Format)}"
        )
    if log.head.startswith(b"PAR1"):
        return Format.PARQUET, {}
    for line in log.head.split(b"\n")[:_LINES_LOOKED_AT]:
        try:
            record = decode(line)
        except ValueError:
            continue
        if isinstance(record, dict) and mooncake.matches(record):
            return Format.MOONCAKE, record
    raise ArgumentError(f"{log.name}: not a format that is known")
