"""What the groups of figures share: sizes, seed, a scratch folder, and how they say what is so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from keepwarm.bench.limits import Shape
from keepwarm.bench.pairs import PAIRS, PAIRS_QUICK, Spread

MIB = 1 << 20
BLOCK = 2 * MIB


class UnavailableError(Exception):
    """A figure cannot be had here; the text says why, and what would bring it."""


class Context(NamedTuple):
    """One run of the bench."""

    folder: Path
    quick: bool
    seed: int
    say: Callable[[str], None]

    @property
    def pairs(self) -> int:
        """Pairs of each ratio."""
        return PAIRS_QUICK if self.quick else PAIRS

    def shape(self, block: int = BLOCK, round_bytes: int | None = None) -> Shape:
        """Rounds of 64 MiB (quick: 32) out of three times as many."""
        nbytes = round_bytes or (32 * MIB if self.quick else 64 * MIB)
        count = max(nbytes // block, 1)
        return Shape(block, count, 3 * count, self.seed)


Found = dict[str, Spread]
Measure = Callable[[Context], Found]


class Group(NamedTuple):
    """Figures that are measured together."""

    names: tuple[str, ...]
    measure: Measure
