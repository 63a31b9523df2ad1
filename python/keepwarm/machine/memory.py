"""The memory that is left: of the machine, and under each control group's limit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from keepwarm.machine.files import field, groups, number, text

UNKNOWN_BYTES = 1 << 30
# Limits from here on mean none: version 1 shows a rounded 2 ** 63.
UNLIMITED_BYTES = 1 << 60


class _Files(NamedTuple):
    """Under which names a version of control groups keeps the same numbers."""

    limit: str
    # Above it the kernel slows the group down until it gives memory back: an arena never does.
    high: str | None
    used: str
    inactive: str


_V2 = _Files("memory.max", "memory.high", "memory.current", "inactive_file")
_V1 = _Files("memory.limit_in_bytes", None, "memory.usage_in_bytes", "total_inactive_file")


def memory_available(root: Path = Path("/")) -> int:
    """Bytes that this process could still get, as the core counts them before it takes any.

    The least of what the machine has and what each control group leaves.
    """
    found = [field(text(root / "proc/meminfo"), "MemAvailable:")]
    available = [kib << 10 for kib in found if kib is not None] or [UNKNOWN_BYTES]
    for folder, is_new in groups(root, "memory"):
        left = _left(folder, _V2 if is_new else _V1)
        if left is not None:
            available.append(left)
    return min(available)


def _left(folder: Path, files: _Files) -> int | None:
    names = (files.limit, files.high)
    limits = [found for name in names if name and (found := number(folder / name)) is not None]
    limit = min(limits, default=UNLIMITED_BYTES)
    if limit >= UNLIMITED_BYTES:
        return None
    # Pages of files that nobody used lately count as used, but go as soon as room is needed.
    cache = field(text(folder / "memory.stat"), f"{files.inactive} ") or 0
    used = max((number(folder / files.used) or 0) - cache, 0)
    return max(limit - used, 0)
