"""What this machine does by itself, for comparison in the same run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

GIB = 1 << 30


class Memcpy:
    """Copies of `size` bytes between places that no cache holds; one core."""

    def __init__(self, size: int, area_bytes: int = 256 << 20) -> None:
        self._size = size
        self._source = np.full(area_bytes, 0x5A, dtype=np.uint8)
        self._target = np.zeros(area_bytes, dtype=np.uint8)

    def bytes_per_s(self, pieces: int) -> float:
        """One measurement over `pieces` copies, moving on through the area."""
        places = max(len(self._source) // self._size, 1)
        start = time.perf_counter()
        for piece in range(pieces):
            at = piece % places * self._size
            self._target[at : at + self._size] = self._source[at : at + self._size]
        return pieces * self._size / (time.perf_counter() - start)


def resident_bytes(pid: int) -> dict[str, int]:
    """Resident memory of a process: in all, its own (anon) and shared (the arena)."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "RssAnon", "RssShmem"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def describe() -> dict[str, object]:
    """Cores and load, as printed with figures about time."""
    one, five, _ = os.getloadavg()
    return {"cores": os.cpu_count() or 1, "load_1m": round(one, 2), "load_5m": round(five, 2)}


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
