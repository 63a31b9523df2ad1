"""Traces that nobody asked for: generated from a seed, of any length, in bounded memory.

They imitate the shape of traffic where it matters to a memory of prefixes: what is shared between
whom, how contexts grow, how long sessions pause. Their rates are evidence about nobody's fleet, and
each file says that it is synthetic.

A prompt is a row of segments, of whole blocks each; a segment's key stands for all before it too:

```text
| system + tools (shared) | documents (rag) | the session's own, growing | last, partial block |
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import ArgumentError
from keepwarm.workload.trace import BLOCK_TOKENS_MAX, Batch, Progress, Skipped, TokensAre, TraceInfo

BLOCK_TOKENS = 64
REQUESTS_PER_S = 10.0
#: Sessions that are generated at a time, and requests of a batch.
SESSIONS_AT_A_TIME = 2_048
BATCH_REQUESTS = 8_192
_TENANTS = 20
_DOCUMENTS = 20_000
_DOCUMENT_TOKENS = 512
_DOCUMENTS_MAX = 6

U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class Kind(StrEnum):
    """What is imitated."""

    AGENTS = "agents"  # long shared instructions, contexts that grow with each tool's result
    CHAT = "chat"  # short shared instructions, a few turns, minutes apart
    RAG = "rag"  # single requests over shared documents, popular ones in front
    UNIQUE = "unique"  # short prompts that share nothing


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes in tokens. Ranges are drawn with their lower ends far likelier."""

    systems: int  # different shared beginnings; each next one is half as likely
    system_tokens: tuple[int, int]
    task_tokens: tuple[int, int]
    added_tokens: tuple[int, int]  # to the next prompt, besides the answer
    output_tokens: tuple[int, int]
    turns_mean: float
    turns_max: int
    pause_s: float  # median; a tenth takes more than five times as long
    context_max: int  # then the session's own part is compacted
    documents: bool = False


_SHAPES = {
    Kind.AGENTS: _Shape(
        6, (6_000, 16_000), (500, 6_000), (200, 2_500), (60, 600), 20, 80, 8, 90_000
    ),
    Kind.CHAT: _Shape(16, (600, 3_000), (50, 2_500), (30, 1_200), (50, 1_000), 6, 40, 45, 32_000),
    Kind.RAG: _Shape(4, (500, 1_500), (30, 300), (0, 1), (50, 500), 1, 1, 1, 32_000, True),
    Kind.UNIQUE: _Shape(0, (0, 1), (60, 800), (0, 1), (20, 300), 1, 1, 1, 32_000),
}


def _mix(keys: U64, *more: U64 | int) -> U64:
    """Keys that stand for a key and what follows it. Equal for equal ones, else different."""
    mixed = keys
    with np.errstate(over="ignore"):
        for value in more:
            mixed = mixed + np.uint64(0x9E3779B97F4A7C15) * (np.asarray(value, np.uint64) + _ONE)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            mixed = mixed ^ (mixed >> np.uint64(29))
    return mixed


_ONE = np.uint64(1)


@dataclass(slots=True)
class _Rows:
    """Requests before they have ids: `keys[i, s]` and `blocks[i, s]` are those of a segment."""

    times_s: F64
    input_tokens: I64
    output_tokens: I64
    sessions: U64
    tenants: U64
    keys: U64
    blocks: I64

    def __len__(self) -> int:
        return len(self.times_s)

    def take(self, which: NDArray[np.bool_] | I64 | slice) -> _Rows:
        return _Rows(*(getattr(self, each.name)[which] for each in fields(self)))

    @staticmethod
    def joined(parts: list[_Rows]) -> _Rows:
        columns = (
            np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(_Rows)
        )
        return _Rows(*columns)

    def batch(self, start_s: float) -> Batch:
        counts = self.blocks.reshape(-1)
        keys = np.repeat(self.keys.reshape(-1), counts)
        ends = np.cumsum(counts)
        within = np.arange(len(keys), dtype=np.uint64) - np.repeat(ends - counts, counts).astype(
            np.uint64
        )
        offsets = np.concatenate([[0], np.cumsum(self.blocks.sum(axis=1))])
        return Batch(
            self.times_s - start_s,
            self.input_tokens.astype(np.uint32),
            self.output_tokens.astype(np.uint32),
            self.sessions,
            self.tenants,
            offsets.astype(np.uint64),
            _mix(keys, within),
        )


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A generated trace. Implements `TraceSource`; equal arguments give equal traces.

    Raises ArgumentError for sizes that cannot be.
    """

    kind: Kind
    requests: int
    seed: int = 0
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        if (
            self.requests < 1
            or not 0 <= self.seed < 1 << 64
            or not 1 <= self.block_tokens <= BLOCK_TOKENS_MAX
        ):
            raise ArgumentError(
                f"{self.requests} requests, seed {self.seed}, {self.block_tokens} tokens a block: "
                "at least 1 request, a seed below 2^64 and 1 to 65536 tokens a block are possible"
            )

    @property
    def info(self) -> TraceInfo:
        """Says that nobody asked these requests."""
        return TraceInfo(
            name=f"{self.kind.value}, seed {self.seed}",
            format="synthetic",
            source="keepwarm workload synth",
            block_tokens=self.block_tokens,
            tokens_are=TokensAre.EXACT,
            synthetic=True,
            notes=("generated: its rates are evidence about no fleet",),
        )

    def skipped(self) -> Skipped:
        """Nothing is ever left out."""
        return Skipped({}, {})

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """The requests in order of arrival; progress counts them."""
        made, start_s = 0, None
        for rows in self._in_order():
            for at in range(0, len(rows), BATCH_REQUESTS):
                part = rows.take(slice(at, min(at + BATCH_REQUESTS, at + self.requests - made)))
                start_s = float(part.times_s[0]) if start_s is None else start_s
                yield part.batch(start_s)
                made += len(part)
                if progress is not None:
                    progress(made, self.requests)
                if made == self.requests:
                    return

    def _in_order(self) -> Iterator[_Rows]:
        """Sessions overlap: what comes before the next session begins can go out."""
        shape = _SHAPES[self.kind]
        held: list[_Rows] = []
        begun_s, chunk = 0.0, 0
        while True:
            rng = np.random.default_rng([self.seed, chunk])
            rate = REQUESTS_PER_S / shape.turns_mean
            starts = begun_s + np.cumsum(rng.exponential(1 / rate, SESSIONS_AT_A_TIME))
            begun_s = float(starts[-1])
            held.append(self._sessions(rng, shape, starts, chunk))
            every = _Rows.joined(held)
            order = np.argsort(every.times_s, kind="stable")
            ready = int(np.searchsorted(every.times_s[order], begun_s))
            yield every.take(order[:ready])
            held = [every.take(order[ready:])]
            chunk += 1

    def _sessions(
        self, rng: np.random.Generator, shape: _Shape, starts_s: F64, chunk: int
    ) -> _Rows:
        """All requests of sessions that begin at these times, turn by turn."""
        count = len(starts_s)
        ids = np.uint64(1 + chunk * SESSIONS_AT_A_TIME) + np.arange(count, dtype=np.uint64)
        sessions = _mix(ids, self.seed, 1)
        tenants = _mix(_favourites(rng, count, _TENANTS), self.seed, 2)
        keys, blocks = self._shared(rng, shape, sessions)
        own = _between(rng, shape.task_tokens, count)
        turns = np.minimum(rng.geometric(1 / shape.turns_mean, count), shape.turns_max)
        times_s, compacted = starts_s.copy(), np.zeros(count, np.uint64)
        own_key = _mix(keys[:, -1], sessions)
        parts = []
        for turn in range(int(turns.max())):
            going = turns > turn
            full = own > shape.context_max
            compacted[full] += _ONE
            own = np.where(full, own // 10, own)
            whole, rest = own // self.block_tokens, own % self.block_tokens
            own_keys = _mix(own_key, compacted)
            row_keys = np.column_stack(
                [keys, own_keys, _mix(own_keys, whole.astype(np.uint64), turn, 3)]
            )
            row_blocks = np.column_stack([blocks, whole, (rest > 0).astype(np.int64)])
            output = _between(rng, shape.output_tokens, count)
            tokens = blocks.sum(axis=1) * self.block_tokens + own
            rows = _Rows(times_s, tokens, output, sessions, tenants, row_keys, row_blocks)
            parts.append(rows.take(going))
            own = own + output + _between(rng, shape.added_tokens, count)
            times_s = times_s + shape.pause_s * np.exp(1.26 * rng.standard_normal(count))
        return _Rows.joined(parts)

    def _shared(self, rng: np.random.Generator, shape: _Shape, sessions: U64) -> tuple[U64, I64]:
        """Keys and blocks of the segments in front of a session's own."""
        count = len(sessions)
        if shape.systems == 0:
            return _mix(sessions, 5)[:, None], np.zeros((count, 1), np.int64)
        # What systems and documents there are depends on the seed alone.
        fixed = np.random.default_rng([self.seed, 1 << 32])
        lengths = _between(fixed, shape.system_tokens, shape.systems) // self.block_tokens
        system = _favourites(rng, count, shape.systems)
        keys = [_mix(system, self.seed, 4)]
        blocks = [lengths[system.astype(np.int64)]]
        if shape.documents:
            each = max(1, _DOCUMENT_TOKENS // self.block_tokens)
            used = rng.integers(1, _DOCUMENTS_MAX + 1, count)
            for place in range(_DOCUMENTS_MAX):
                # Popularity falls with rank as Zipf's law has it.
                document = (_DOCUMENTS ** rng.random(count)).astype(np.uint64)
                keys.append(_mix(keys[-1], document))
                blocks.append(np.where(place < used, each, 0))
        return np.column_stack(keys), np.column_stack(blocks)


def _between(rng: np.random.Generator, limits: tuple[int, int], count: int) -> I64:
    """Long-tailed: most values lie near the lower end."""
    low, high = limits
    return (low + (high - low) * rng.random(count) ** 2).astype(np.int64)


def _favourites(rng: np.random.Generator, count: int, of: int) -> U64:
    """Numbers below `of`, each next one half as likely, the last ones together as the rest."""
    return np.minimum(rng.geometric(0.5, count) - 1, of - 1).astype(np.uint64)
