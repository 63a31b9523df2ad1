"""What repeats in a trace: every structural measure, in one pass and bounded memory.

Blocks are watched by spatial sampling: a block is watched if its id's hash is below a limit that
falls as distinct blocks come in, so that what is watched of a block is all of its uses. Where all
blocks are watched (about a hundred thousand) figures are exact. Blocks with more than 0.1 % of all
uses are watched in any case and stand for themselves alone. Sessions are watched in the same way.

Errors are half the width of a 99 % interval, from how the figure differs when a fifteenth of the
watched blocks is left out in turn (jackknife by groups of hashes).
"""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.workload.trace import TraceInfo


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
    """How a quantity is spread. A quantile's value is the upper end of the bin that it falls into.

    Bins are at most 1/32 of their value wide, so that a quantile is at most 3.1 % too high, besides
    what `rank_error` says: the share of values that may lie between a quantile and the truth.
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
