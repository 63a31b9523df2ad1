"""The form in which all of this package sees traffic: columns of a few thousand requests at a time.

A request's `block_ids` name its prompt's blocks from token 0. Equal ids mean equal blocks behind
equal prefixes (an id is a hash of all tokens up to its block's end), so that two requests share
what their ids begin with. The last block may be partial. No text, and nothing that text could be
told from, is ever in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import ArgumentError

#: Tokens of a block, at most.
BLOCK_TOKENS_MAX = 1 << 16


class TokensAre(StrEnum):
    """Where a trace's token counts and block borders come from."""

    EXACT = "exact"  # the model's own tokenizer and chat template, or the engine's own counts
    APPROXIMATE = "approximate"  # so many characters a token
    LENGTHS_ONLY = "lengths only"  # counts without blocks: nothing is known to repeat


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What is true of a whole trace."""

    name: str
    format: str
    source: str
    block_tokens: int
    tokens_are: TokensAre
    synthetic: bool = False
    #: What a reader should know before believing figures: one sentence each.
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.block_tokens <= BLOCK_TOKENS_MAX:
            raise ArgumentError(
                f"{self.name}: blocks of {_shown(self.block_tokens)} tokens: 1 to "
                f"{BLOCK_TOKENS_MAX:,} are possible"
            )


def _shown(count: int) -> str:
    return str(count) if abs(count) < 1 << 64 else "over 2^64"


@dataclass(frozen=True, slots=True)
class Batch:
    """Some requests in order of arrival, as columns of `n` values.

    `offsets` has `n + 1` values: request `i` has `block_ids[offsets[i]:offsets[i + 1]]`. Those may
    be fewer than `input_tokens` has blocks (nothing is known of the rest), never more.
    """

    times_s: NDArray[np.float64]  # seconds since the trace's first request, never less than before
    input_tokens: NDArray[np.uint32]
    output_tokens: NDArray[np.uint32]
    sessions: NDArray[np.uint64]  # a keyed hash; 0: not known
    tenants: NDArray[np.uint64]  # a keyed hash; 0: not known
    offsets: NDArray[np.uint64]
    block_ids: NDArray[np.uint64]

    def __post_init__(self) -> None:
        count = len(self.times_s)
        for name in ("input_tokens", "output_tokens", "sessions", "tenants"):
            if len(getattr(self, name)) != count:
                raise ArgumentError(f"{name} has {len(getattr(self, name))} values, not {count}")
        if len(self.offsets) != count + 1 or int(self.offsets[0]) != 0:
            raise ArgumentError(f"offsets must be {count + 1} values that begin with 0")
        if int(self.offsets[-1]) != len(self.block_ids) or np.any(
            self.offsets[1:] < self.offsets[:-1]
        ):
            raise ArgumentError("offsets must grow and end at the number of block ids")

    def __len__(self) -> int:
        return len(self.times_s)

    def blocks(self, request: int) -> NDArray[np.uint64]:
        """One request's block ids."""
        return self.block_ids[int(self.offsets[request]) : int(self.offsets[request + 1])]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records that were left out: how many for each reason, and the first places of each."""

    counts: dict[str, int]
    places: dict[str, list[str]]  # "file.jsonl:17", a bounded number
    #: Records that were kept but changed, such as a time that ran back: how many for each reason.
    mended: dict[str, int] = field(default_factory=dict)

    def total(self) -> int:
        """Records left out, for whatever reason."""
        return sum(self.counts.values())


#: Called with bytes read and, where it is known, bytes in all.
Progress = Callable[[int, int | None], None]


class TraceSource(Protocol):
    """A trace that can be read, from its beginning, as often as one likes."""

    @property
    def info(self) -> TraceInfo:
        """What is true of the whole."""

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """Reads from the beginning, in bounded memory; skips malformed records, and counts them."""

    def skipped(self) -> Skipped:
        """What the last complete reading left out."""
