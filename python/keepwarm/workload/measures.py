"""What repeats in a trace: every structural measure, in one pass and bounded memory.

Blocks are watched by spatial sampling: a block is watched if its id's hash is below a limit that
falls as distinct blocks come in, so that what is watched of a block is all of its uses. Where all
blocks are watched (about a hundred thousand) figures are exact. Blocks with more than 0.1 % of all
uses are watched in any case and stand for themselves alone. Sessions are watched in the same way.

Errors are half the width of a 99 % interval, from how the figure differs when a fifteenth of the
watched blocks is left out in turn (jackknife by groups of hashes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keepwarm import _core
from keepwarm.errors import ArgumentError
from keepwarm.workload.trace import Progress, TraceInfo, TraceSource

LONG_PREFIX_TOKENS = 1_024
LONG_PREFIX_SHARE = 0.5

_Spread = tuple[int, float, float, float, list[float], float, list[tuple[float, float, float]]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its error: with 99 % confidence the truth is within `error` of `value`."""

    value: float
    error: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether everything was counted, nothing sampled."""
        return self.error == 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a quantity is spread. A quantile's value is the lower end of the bin that it falls into.

    Bins are at most 1/64 of their value wide, so that a quantile is at most 1.6 % too low, and
    whole numbers up to 64 are exact; besides, `rank_error` is the share of values that may lie
    between a quantile and the truth.
    """

    count: int  # values that were seen
    mean: float
    smallest: float
    largest: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p99: float
    rank_error: float  # 0: every value was counted
    #: (from, to, share of all) for about each quarter of an octave; empty where nothing was seen.
    histogram: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Weighted:
    """A share of all blocks asked for, and of all input tokens (blocks without an id included)."""

    blocks: Estimate
    tokens: Estimate


@dataclass(frozen=True, slots=True)
class PreviousUser:
    """Whose use came before each repeated use of a block: shares that add up to 1."""

    same: Estimate
    other: Estimate
    unknown: Estimate  # one of the two has no name in this trace


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What sessions look like; requests without a session are counted apart."""

    sessions: Estimate
    requests_unknown: int
    requests: Distribution  # of each session
    tokens_added: Distribution  # from a prompt to the session's next one; compactions count as 0
    gap_s: Distribution  # between a session's requests
    tokens_at_end: Distribution  # input and output of the session's last request: KV to keep
    single_share: Estimate  # sessions of one request


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A prefix that many requests begin with, told by its length alone."""

    blocks: int
    tokens: int
    uses: int  # counted
    uses_missed_max: int  # before it was noticed, at most; 0: counted from the first


@dataclass(frozen=True, slots=True)
class Measures:
    """A trace's structure. All shares are of 1."""

    info: TraceInfo
    requests: int
    requests_without_blocks: int
    span_s: float
    input_tokens: int
    output_tokens: int
    input_length: Distribution
    output_length: Distribution
    block_uses: int
    distinct_blocks: Estimate
    never_reused: Estimate  # share of distinct blocks
    #: In the longest prefix that was asked for before: an unbounded memory's hit rate.
    reuse_by_prefix: Weighted
    #: Asked for before, behind a broken prefix too. The same where ids name whole prefixes.
    reuse_by_block: Weighted
    #: Share of requests whose prefix of `long_prefix_tokens` or more, and of `long_prefix_share` of
    #: the prompt or more, was asked for before.
    long_prefix_requests: Estimate
    long_prefix_tokens: int
    long_prefix_share: float
    reuse_distance_blocks: Distribution  # distinct blocks used since a block's last use
    reuse_time_s: Distribution
    sharing_sessions: PreviousUser
    sharing_tenants: PreviousUser
    #: What sticky routing alone would find: reuse whose previous user was the same session.
    reuse_sticky: Weighted
    sessions: SessionShape
    hottest: tuple[HotPrefix, ...]
    watched_blocks: int
    watched_share: float  # of all distinct blocks, at the end; 1: all


def measure(
    source: TraceSource,
    *,
    seed: int = 0,
    long_prefix_tokens: int = LONG_PREFIX_TOKENS,
    long_prefix_share: float = LONG_PREFIX_SHARE,
    progress: Progress | None = None,
) -> Measures:
    """Reads a trace once and measures it. `seed` chooses which blocks are watched of a large one.

    Raises ArgumentError for a trace that cannot be read, or limits of a long prefix that cannot be.
    """
    if not 1 <= long_prefix_tokens < 1 << 32:
        raise ArgumentError(f"long_prefix_tokens is {long_prefix_tokens}: pass 1 or more")
    sketch = _core.TraceSketch(
        source.info.block_tokens, long_prefix_tokens, long_prefix_share, seed
    )
    for batch in source.batches(progress):
        sketch.feed(batch)
    return measured(sketch, source.info, long_prefix_tokens, long_prefix_share)


def measured(
    sketch: _core.TraceSketch, info: TraceInfo, long_prefix_tokens: int, long_prefix_share: float
) -> Measures:
    """What a sketch tells of the trace that it was fed."""
    counts, estimates, spreads, hottest = sketch.figures()

    def figure(name: str) -> Estimate:
        return Estimate(*estimates[name])

    def weighted(name: str) -> Weighted:
        return Weighted(figure(f"{name}_blocks"), figure(f"{name}_tokens"))

    def previous(name: str) -> PreviousUser:
        return PreviousUser(*(figure(f"{who}_{name}") for who in ("same", "other", "unknown")))

    return Measures(
        info=info,
        requests=counts["requests"],
        requests_without_blocks=counts["without_blocks"],
        span_s=figure("span_s").value,
        input_tokens=counts["input_tokens"],
        output_tokens=counts["output_tokens"],
        input_length=_distribution(spreads["input_length"]),
        output_length=_distribution(spreads["output_length"]),
        block_uses=counts["uses"],
        distinct_blocks=figure("distinct"),
        never_reused=figure("never_reused"),
        reuse_by_prefix=weighted("prefix"),
        reuse_by_block=weighted("block"),
        long_prefix_requests=figure("long"),
        long_prefix_tokens=long_prefix_tokens,
        long_prefix_share=long_prefix_share,
        reuse_distance_blocks=_distribution(spreads["distance"]),
        reuse_time_s=_distribution(spreads["time_s"]),
        sharing_sessions=previous("session"),
        sharing_tenants=previous("tenant"),
        reuse_sticky=weighted("sticky"),
        sessions=_sessions(counts, figure("sessions"), figure("single_share"), spreads),
        hottest=tuple(
            HotPrefix(blocks, blocks * info.block_tokens, uses, missed)
            for blocks, uses, missed in hottest
        ),
        watched_blocks=counts["watched"],
        watched_share=figure("rate").value,
    )


def _sessions(
    counts: Mapping[str, int],
    sessions: Estimate,
    single_share: Estimate,
    spreads: Mapping[str, _Spread],
) -> SessionShape:
    return SessionShape(
        sessions=sessions,
        requests_unknown=counts["session_unknown"],
        requests=_distribution(spreads["session_requests"]),
        tokens_added=_distribution(spreads["session_tokens_added"]),
        gap_s=_distribution(spreads["session_gap_s"]),
        tokens_at_end=_distribution(spreads["session_tokens_at_end"]),
        single_share=single_share,
    )


def _distribution(spread: _Spread) -> Distribution:
    count, mean, smallest, largest, quantiles, rank_error, rows = spread
    if count == 0:
        smallest = 0.0
    p10, p25, p50, p75, p90, p99 = quantiles
    return Distribution(
        count, mean, smallest, largest, p10, p25, p50, p75, p90, p99, rank_error, tuple(rows)
    )
