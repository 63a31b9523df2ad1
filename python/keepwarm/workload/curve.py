"""Hit rate against capacity, for all capacities in one pass and bounded memory.

Defined as the reference values are: a prompt's blocks in order, a hit only while the prefix is
unbroken, then all blocks are used, the last one first. `blocks` is hits over blocks asked for,
`tokens` hit tokens over input tokens, those without a block included.

Blocks are sampled by a hash of their ids (`measures` says how). Under LRU that is all: a block that
is there has its whole prefix there. Other policies are run by their own code in small memories of
watched blocks, one for each capacity; of what is in front of a block they see only what is watched,
and how much that misses is estimated, and half of it is part of the error. Up to 131,072 distinct
blocks everything is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm import _core
from keepwarm.errors import ArgumentError
from keepwarm.workload.describe import plain
from keepwarm.workload.measures import Estimate
from keepwarm.workload.trace import Progress, TraceInfo, TraceSource

#: Grows only when a field is removed or means something else.
SCHEMA = 1
POLICIES = ("lru", "fifo", "lfu", "s3fifo", "adaptive")
#: Each is a memory of its own while the trace is read, unless the policy is LRU.
CAPACITIES = tuple(1 << exponent for exponent in range(8, 33, 2))
_FINE = tuple(1 << exponent for exponent in range(8, 40))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a memory of some blocks would have answered, with 99 % intervals."""

    capacity_blocks: int | None  # None: unbounded
    blocks: Estimate
    tokens: Estimate


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy's curve for one trace; the last point is an unbounded memory."""

    info: TraceInfo
    policy: str
    points: tuple[CurvePoint, ...]
    block_uses: int
    watched_blocks: int
    watched_share: float  # of distinct blocks, at the end; 1: all, and the curve is exact
    heavy_blocks: int  # of more than 0.05 % of uses, counted whole

    def as_json(self) -> dict[str, Any]:
        """Documented in docs/workload.md."""
        return {
            "schema": SCHEMA,
            "kind": "keepwarm.workload.curve",
            "trace": plain(self.info),
            "policy": self.policy,
            "confidence": 0.99,
            "block_uses": self.block_uses,
            "watched_blocks": self.watched_blocks,
            "watched_share": self.watched_share,
            "heavy_blocks": self.heavy_blocks,
            "points": [
                {
                    "capacity_blocks": point.capacity_blocks,
                    "hit_rate": {"block": point.blocks.value, "token": point.tokens.value},
                    "error": {"block": point.blocks.error, "token": point.tokens.error},
                }
                for point in self.points
            ],
        }


def measure_curve(
    source: TraceSource,
    *,
    policy: str = "lru",
    capacities: Sequence[int] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Curve:
    """Reads a trace once. Without `capacities` (in blocks) it goes up to all that was asked for.

    Raises ArgumentError for a policy that is not known, or a capacity that cannot be.
    """
    if policy not in POLICIES:
        raise ArgumentError(f"policy {policy!r} is not known: pass one of {', '.join(POLICIES)}")
    if not 0 <= seed < 1 << 64:
        raise ArgumentError(f"seed is {seed}: pass 0 to 2^64 - 1")
    for capacity in capacities:
        if not 1 <= capacity < 1 << 40:
            raise ArgumentError(f"a capacity of {capacity} blocks: pass 1 to 2^40 - 1")
    asked = sorted(set(capacities)) or list(_FINE if policy == "lru" else CAPACITIES)
    core = _core.TraceCurve(source.info.block_tokens, asked, seed, policy=policy)
    for batch in source.batches(progress):
        core.feed(batch)
    share, plain, heavy, uses = core.watched()
    if not capacities:
        asked = _up_to(asked, plain / share + heavy)
    sizes: list[int | None] = [*asked, None]
    points = (
        CurvePoint(size, Estimate(*blocks), Estimate(*tokens))
        for size, (blocks, tokens) in zip(sizes, core.points(sizes), strict=True)
    )
    return Curve(source.info, policy, tuple(points), uses, plain + heavy, share, heavy)


def _up_to(capacities: list[int], distinct: float) -> list[int]:
    """Those below the number of distinct blocks, and one more, which holds them all."""
    below = sum(capacity < distinct for capacity in capacities)
    return capacities[: below + 1]
