"""What computing a chunk of a prompt takes, fitted to an engine's own steps."""

from __future__ import annotations

import math

FEW_SAMPLES = 5


class Prefill:
    """Seconds of a chunk: `c` a step, `a` a token and `b` for each token before it.

    Decayed least squares, in which each size of chunk fades by its own kind alone: who computes
    nothing but ends of prompts for an hour still knows what a long chunk costs, and does not take
    the fixed cost of a step, most of a short chunk's time, for that of its tokens.
    """

    DECAY = 0.95
    OUTLIER = 4.0
    TOLD_APART = 1e-3  # of 1: how different two causes must look to be two

    def __init__(self) -> None:
        self.samples = 0
        self.a = self.b = self.c = 0.0
        self._sums: dict[int, list[float]] = {}  # by size of chunk: of _terms

    def add(self, first: int, tokens: int, seconds: float) -> None:
        """A chunk of `tokens` from position `first` on took so long."""
        weight = 1.0
        expected_s = self.c + self.seconds(first, tokens)
        if self.samples >= FEW_SAMPLES and seconds > self.OUTLIER * expected_s:
            weight = 1 / self.OUTLIER  # a compilation, a stall: once is no new speed
        new = _terms(first, tokens, seconds)
        old = self._sums.get(tokens.bit_length(), [0.0] * len(new))
        sums = zip(old, new, strict=True)
        self._sums[tokens.bit_length()] = [self.DECAY * was + weight * more for was, more in sums]
        self.samples += 1
        self._solve()

    def _solve(self) -> None:
        """Of the causes that are told apart and not below zero, those that explain most."""
        every = zip(*self._sums.values(), strict=True)
        nn, nt, nx, tt, tx, xx, ny, ty, xy = (sum(each) for each in every)
        matrix = {"cc": nn, "ca": nt, "cb": nx, "aa": tt, "ab": tx, "bb": xx}
        right, best, most = {"c": ny, "a": ty, "b": xy}, {"a": ty / tt}, -1.0
        for causes in ("cab", "ca", "ab", "a", "b"):
            found = _solved(causes, matrix, right, self.TOLD_APART)
            if found is None or min(found.values()) < 0:
                continue
            explained = sum(value * right[cause] for cause, value in found.items())
            if explained > most:
                best, most = found, explained
        self.a, self.b, self.c = (best.get(cause, 0.0) for cause in "abc")

    def seconds(self, first: int, tokens: int) -> float:
        """What these tokens add to a step."""
        return self.a * tokens + self.b * tokens * (first + tokens / 2)


def _terms(first: int, tokens: int, seconds: float) -> tuple[float, ...]:
    """Of the normal equations, weighted by 1/tokens: long chunks vary more."""
    t, x = float(tokens), tokens * (first + tokens / 2)
    left = (1 / t, 1.0, x / t, t, x, x * x / t)
    return (*left, seconds / t, seconds, x * seconds / t)


def _solved(
    causes: str, matrix: dict[str, float], right: dict[str, float], least: float
) -> dict[str, float] | None:
    """Gauss, on the matrix scaled to ones; None where the causes look alike."""
    scale = {each: math.sqrt(matrix[each + each]) for each in causes}
    if not all(scale.values()):
        return None
    rows = [
        [matrix.get(i + j, matrix.get(j + i, 0.0)) / (scale[i] * scale[j]) for j in causes]
        + [right[i] / scale[i]]
        for i in causes
    ]
    for at, row in enumerate(rows):
        if row[at] < least:
            return None
        for below in rows[at + 1 :]:
            part = below[at] / row[at]
            below[at:] = [b - part * r for b, r in zip(below[at:], row[at:], strict=True)]
    found: list[float] = []
    for at in reversed(range(len(rows))):
        known = sum(r * f for r, f in zip(rows[at][at + 1 : -1], found, strict=True))
        found.insert(0, (rows[at][-1] - known) / rows[at][at])
    return {each: value / scale[each] for each, value in zip(causes, found, strict=True)}
