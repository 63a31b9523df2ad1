"""What the machine, and the control groups of this process, still have to give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

UNKNOWN_BYTES = 1 << 30
# Limits from here on mean none: version 1 shows a rounded 2 ** 63.
UNLIMITED_BYTES = 1 << 60


class _Files(NamedTuple):
    """Under which names a version of control groups keeps the same three numbers."""

    limit: str
    used: str
    inactive: str


_V2 = _Files("memory.max", "memory.current", "inactive_file")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_available(root: Path = Path("/")) -> int:
    """Bytes that this process could still get, as the core counts them before it takes any.

    The least of what the machine has and what each control group leaves, from the process' own up
    to the root: an outer one may be tighter.
    """
    found = [_field(_text(root / "proc/meminfo"), "MemAvailable:")]
    available = [kib << 10 for kib in found if kib is not None] or [UNKNOWN_BYTES]
    for line in _text(root / "proc/self/cgroup").splitlines():
        available += _group(root / "sys/fs/cgroup", line)
    return min(available)


def _group(mount: Path, line: str) -> Iterator[int]:
    """What a line of /proc/self/cgroup leaves."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if not controllers:
        files = _V2
    elif "memory" in controllers.split(","):
        mount, files = mount / "memory", _V1
    else:
        return
    # In a container the path may name folders that only its host sees; those that are here count.
    own = mount / path.lstrip("/")
    for folder in (own, *own.parents):
        left = _left(folder, files)
        if left is not None:
            yield left
        if folder == mount:
            return


def _left(folder: Path, files: _Files) -> int | None:
    limit = _number(folder / files.limit)
    if limit is None or limit >= UNLIMITED_BYTES:
        return None
    # Pages of files that nobody used lately count as used, but go as soon as room is needed.
    cache = _field(_text(folder / "memory.stat"), f"{files.inactive} ") or 0
    used = max((_number(folder / files.used) or 0) - cache, 0)
    return max(limit - used, 0)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _field(text: str, name: str) -> int | None:
    match = re.search(rf"^{re.escape(name)}\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None
