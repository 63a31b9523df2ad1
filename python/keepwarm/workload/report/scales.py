"""Axes: where ticks go, how their values are written, and where a value lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` to `start..end` (pixels), evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies; outside of the range at its end."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.end - self.start)


def even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round values from `low` to `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return [low]  # next to nothing: digits end there
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * step for step in _STEPS if power * step >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    ticks = [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return ticks or [low]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Powers of ten from `low` to `high`; with 2 and 5 between where these are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for between in ((1, 2, 5), (1,)):
        ticks = [
            factor * 10.0**power
            for power in range(first, last + 1)
            for factor in between
            if low * (1 - 1e-9) <= factor * 10.0**power <= high * (1 + 1e-9)
        ]
        if len(ticks) <= most:
            return ticks or [low]
    every = -(-len(ticks) // most)
    return ticks[::every]


def byte_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Powers of two from `low` to `high`, as far apart as it takes to be few."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = next(step for step in (1, 2, 5, 10, 20) if (last - first) // step < most)
    first = math.ceil(first / step) * step
    return [2.0**power for power in range(first, last + 1, step)] or [low]


def enclosing(values: Sequence[float], *, from_zero: bool) -> tuple[float, float]:
    """The range that an axis needs for these values; never empty."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        high = low + (abs(low) or 1.0)
    return low, high


def short(value: float) -> str:
    """A number in few characters: 1.5k, 20M, 0.25."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (1 - 1e-9):
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1g}"


def size(value: float) -> str:
    """Bytes in few characters: 1.5 GiB, 64 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} PiB"


def percent(value: float) -> str:
    """A share as per cent, in few characters."""
    return f"{100 * value:.3g} %"
