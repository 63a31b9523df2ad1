"""How much a trace asks for, and what a memory of each size would find: what sizing starts from."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from keepwarm.errors import ArgumentError
from keepwarm.workload.measures import Estimate
from keepwarm.workload.trace import Batch

WINDOW_S = 60.0
#: A trace of less is stretched to a month only with a warning.
SPAN_SHORT_S = 3600.0
#: Lengths are told apart to a sixteenth of an octave: 4.4 %.
BINS_AN_OCTAVE = 16
BINS = 32 * BINS_AN_OCTAVE  # lengths are u32


@dataclass(frozen=True, slots=True)
class Sums:
    """Of some requests: what their prefill follows from."""

    requests: float
    tokens: float
    tokens_squared: float


@dataclass(slots=True)
class Load:
    """Sums over a trace, and its busiest minute; `add` takes batches in order."""

    requests: int = 0
    span_s: float = 0.0
    tokens: int = 0
    tokens_squared: float = 0.0
    peak_tokens_per_s: float = 0.0  # over the busiest WINDOW_S
    output_tokens: int = 0
    #: Requests, tokens and squares by length, for `longer`.
    _bins: np.ndarray = field(default_factory=lambda: np.zeros((3, BINS)), repr=False)
    _window: int = field(default=0, repr=False)
    _in_window: float = field(default=0.0, repr=False)

    def add(self, batch: Batch) -> None:
        """Counts some more requests."""
        if not len(batch):
            return
        tokens = batch.input_tokens.astype(np.float64)
        self.requests += len(batch)
        self.tokens += int(tokens.sum())
        self.tokens_squared += float((tokens * tokens).sum())
        at = (BINS_AN_OCTAVE * np.log2(np.maximum(tokens, 1))).astype(np.int64)
        for number, weights in enumerate((np.ones(len(batch)), tokens, tokens * tokens)):
            self._bins[number] += np.bincount(at, weights, BINS)
        self.output_tokens += int(batch.output_tokens.sum(dtype=np.int64))
        self.span_s = max(self.span_s, float(batch.times_s[-1]))
        windows = (batch.times_s // WINDOW_S).astype(np.int64)
        for window in np.unique(windows):
            found = float(tokens[windows == window].sum())
            if window != self._window:
                self._window, self._in_window = int(window), 0.0
            self._in_window += found
            self.peak_tokens_per_s = max(self.peak_tokens_per_s, self._in_window / WINDOW_S)

    def tokens_per_s(self) -> float:
        """On average; a trace shorter than a window counts as one."""
        return self.tokens / max(self.span_s, WINDOW_S)

    def per_month(self, month_s: float) -> float:
        """How often the trace fits into a month."""
        return month_s / max(self.span_s, WINDOW_S)

    def all(self) -> Sums:
        """Of every request."""
        return Sums(self.requests, self.tokens, self.tokens_squared)

    def longer(self, tokens: float) -> Sums:
        """Of the requests with longer prompts than so many tokens, to 4.4 % of their length."""
        if tokens < 1:
            return self.all()
        first = math.ceil(BINS_AN_OCTAVE * math.log2(tokens)) if tokens < 1 << 32 else BINS
        return Sums(*(float(each) for each in self._bins[:, first:].sum(axis=1)))

    def mean_tokens(self) -> float:
        """Of a prompt."""
        return self.tokens / self.requests if self.requests else 0.0

    def grown(self, factor: float) -> Load:
        """The same requests, so many times as often."""
        return replace(
            self,
            span_s=max(self.span_s, WINDOW_S) / factor,
            peak_tokens_per_s=self.peak_tokens_per_s * factor,
        )


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Token hit rate by capacity: straight lines between points, from nothing at no capacity.

    Beyond the last point and up to any size it is the ideal, an unbounded memory's. `shift` moves
    figures within their errors: -1 is the low end, 1 the high one.
    """

    blocks: tuple[float, ...]  # growing, above 0
    rates: tuple[Estimate, ...]  # never falling
    ideal: Estimate

    @classmethod
    def of(cls, points: Sequence[tuple[float, Estimate]], ideal: Estimate) -> HitCurve:
        """From points in any order; small dips, which sampling may show, are made level."""
        ordered = sorted((blocks, rate) for blocks, rate in _unique(points).items() if blocks > 0)
        if not ordered:
            raise ArgumentError("a curve needs at least one capacity above 0")
        level, rates = 0.0, []
        for _, rate in ordered:
            level = max(level, min(rate.value, ideal.value))
            rates.append(Estimate(level, rate.error))
        return cls(tuple(blocks for blocks, _ in ordered), tuple(rates), ideal)

    def at(self, blocks: float, shift: float = 0.0) -> float:
        """Hit rate of a memory of so many blocks."""
        found = self.estimate(blocks)
        return min(max(found.value + shift * found.error, 0.0), 1.0)

    def estimate(self, blocks: float) -> Estimate:
        """And its error."""
        if blocks <= 0:
            return Estimate(0.0)
        if blocks > self.blocks[-1]:
            return self.ideal
        place = bisect.bisect_left(self.blocks, blocks)
        right, high = self.blocks[place], self.rates[place]
        left = self.blocks[place - 1] if place else 0.0
        low = self.rates[place - 1] if place else Estimate(0.0)
        part = (blocks - left) / (right - left)
        return Estimate(
            low.value + part * (high.value - low.value), low.error + part * (high.error - low.error)
        )

    def needed(self, rate: float, shift: float = 0.0) -> float | None:
        """The least capacity that reaches a rate; None where no capacity does."""
        if rate <= 0:
            return 0.0
        left, low = 0.0, 0.0
        for right in self.blocks:
            high = self.at(right, shift)
            if high >= rate:
                part = (rate - low) / (high - low) if high > low else 1.0
                return left + part * (right - left)
            left, low = right, max(low, high)
        reached = min(max(self.ideal.value + shift * self.ideal.error, 0.0), 1.0)
        return self.blocks[-1] + 1 if reached >= rate else None

    def stretched(self, factor: float) -> HitCurve:
        """So many times the users: it takes so many times the blocks to find the same share."""
        return replace(self, blocks=tuple(each * factor for each in self.blocks))

    def grid(self, between: int) -> list[float]:
        """The capacities, and `between` others between each two."""
        found = []
        for left, right in pairwise((0.0, *self.blocks)):
            step = (right - left) / (between + 1)
            found += [left + step * number for number in range(1, between + 2)]
        return found


def _unique(points: Sequence[tuple[float, Estimate]]) -> dict[float, Estimate]:
    return dict(points)
