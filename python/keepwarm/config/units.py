"""Sizes and durations as people write and read them."""

from __future__ import annotations

import math
import re

from keepwarm.errors import ConfigError

BYTES_MAX = 1 << 60
SECONDS_MAX = 10 * 365 * 86400.0

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?\s*", re.IGNORECASE)
_UNITS = {"b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("ib", 1024), ("b", 1000))
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: object, name: str) -> int:
    """Bytes from 4096, 512MiB, 1.5GiB, 2GB."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        count = float(value) if value <= BYTES_MAX else math.inf
        exact = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        count = float(match[1]) * _UNITS[(match[2] or "B").lower()]
        exact = int(min(count, BYTES_MAX))
    else:
        raise ConfigError(f"{name} is {shorten(value)}: give bytes, such as 16GiB or 512MiB", name)
    if count > BYTES_MAX:
        raise ConfigError(f"{name} is {shorten(value)}: give at most {BYTES_MAX >> 50} PiB", name)
    return exact


def parse_duration(value: object, name: str) -> float:
    """Seconds from 2, 0.5, 500ms, 30s, 10m, 1h, 1d."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = math.inf if value > SECONDS_MAX else value if value >= 0 else -1  # NaN too
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    else:
        seconds = -1
    if 0 <= seconds <= SECONDS_MAX:
        return float(seconds)
    limit = f" of at most {SECONDS_MAX / 86400:g} days" if seconds > SECONDS_MAX else ""
    raise ConfigError(
        f"{name} is {shorten(value)}: give a time{limit}, such as 500ms, 30s or 10m", name
    )


def shorten(value: object) -> str:
    """What was given, for an error's text."""
    if isinstance(value, int) and value.bit_length() > 512:
        return "a number of very many digits"  # which Python refuses to print
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."


def show_size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_duration(seconds: float) -> str:
    """Seconds as people read them: three digits, in the unit that fits."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
