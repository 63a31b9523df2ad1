"""Checks of numbers that callers pass, with errors that name the argument and the remedy."""

from __future__ import annotations

import operator

from keepwarm.errors import ArgumentError


def whole(name: str, value: int, bits: int) -> int:
    """`value` if it is a whole number that fits, else an `ArgumentError` that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << bits:
        raise ArgumentError(f"{name} is {value!r}: pass a whole number from 0 to {(1 << bits) - 1}")
    return number


def real(name: str, value: float) -> float:
    """`value` if it is a number, else an `ArgumentError` that names it."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {value!r}: pass seconds, such as 0.5") from None


def left(deadline_s: float) -> float:
    """What a deadline leaves: nothing when it has passed already, or is not a number at all (NaN).

    Whoever subtracts clocks gets such deadlines, on the path of a request, and means no harm.
    """
    seconds = real("deadline_s", deadline_s)
    return seconds if seconds > 0 else 0.0
