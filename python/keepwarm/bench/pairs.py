"""Interleaved rounds: a limit, then ours, then the limit again, so that both meet the same machine.

A ratio of two figures that were taken minutes apart says more about the neighbours than about the
code. So each ratio is of two rounds beside each other, over the same number of bytes, and what is
told is the median of all pairs with the extremes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

PAIRS = 15
PAIRS_QUICK = 7


class Round(NamedTuple):
    """What one round took. `cpu_s` is the serving process's, where there is one."""

    seconds: float
    nbytes: int
    cpu_s: float | None = None


class UnlikeError(RuntimeError):
    """The two rounds of a pair did not move the same bytes."""


class Pair(NamedTuple):
    """A round of the limit and the round of ours after it."""

    limit: Round
    ours: Round

    @property
    def speed(self) -> float:
        """Ours as a share of the limit's speed."""
        return self.limit.seconds / self.ours.seconds

    @property
    def cpu(self) -> float:
        """Ours as a multiple of the limit's CPU time."""
        assert self.limit.cpu_s is not None
        assert self.ours.cpu_s is not None
        return self.ours.cpu_s / self.limit.cpu_s


class Spread(NamedTuple):
    """Several values of one figure: what is told of them."""

    median: float
    min: float
    max: float
    pairs: int
    notes: dict[str, Any] = {}  # noqa: RUF012  # never changed

    @classmethod
    def of(cls, values: Iterable[float], **notes: Any) -> Spread:
        """The spread of values, with what else is known."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found), len(found), notes)


def interleave(
    pairs: int, limit: Callable[[int], Round], ours: Callable[[int], Round]
) -> list[Pair]:
    """Rounds of both in turn, the first pair, which warms up, not counted.

    Each is given the number of its pair, so that both can choose the same places.
    """
    taken = []
    for number in range(pairs + 1):
        pair = Pair(limit(number), ours(number))
        if pair.limit.nbytes != pair.ours.nbytes:
            raise UnlikeError(
                f"the limit moved {pair.limit.nbytes} bytes and ours {pair.ours.nbytes}"
            )
        taken.append(pair)
    return taken[1:]


def speeds(pairs: Sequence[Pair], **notes: Any) -> Spread:
    """Ours as a share of the limit's speed, with both rates."""

    def rate(rounds: Iterable[Round]) -> float:
        rates = [each.nbytes / each.seconds / 1e9 for each in rounds]
        return round(statistics.median(rates), 3)

    return Spread.of(
        (pair.speed for pair in pairs),
        limit_gb_per_s=rate(pair.limit for pair in pairs),
        ours_gb_per_s=rate(pair.ours for pair in pairs),
        **notes,
    )


def costs(pairs: Sequence[Pair], **notes: Any) -> Spread:
    """Ours as a multiple of the limit's CPU time, with both per GiB."""

    def per_gib(rounds: Iterable[Round]) -> float:
        found = [(each.cpu_s or 0) / each.nbytes * (1 << 30) for each in rounds]
        return round(statistics.median(found), 4)

    return Spread.of(
        (pair.cpu for pair in pairs),
        limit_cpu_s_per_gib=per_gib(pair.limit for pair in pairs),
        ours_cpu_s_per_gib=per_gib(pair.ours for pair in pairs),
        **notes,
    )
