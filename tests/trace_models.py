"""Traces for tests, and plain Python that says what is true of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from keepwarm.testing import traces
from keepwarm.workload.trace import Batch, Progress, Skipped, TokensAre, TraceInfo

BLOCK_TOKENS = 16


def written(trace: traces.Trace, path: Path) -> Path:
    """A generated trace as JSON lines of block hashes."""
    with path.open("w", encoding="utf-8") as out:
        for request in sorted(trace.requests, key=lambda each: each.arrival_s):
            row = {
                "timestamp": request.arrival_s * 1000,
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.block_ids),
                "block_size": request.block_tokens,
                "session": str(request.session),
            }
            out.write(json.dumps(row) + "\n")
    return path


@dataclass(slots=True)
class MemoryTrace:
    """A trace in memory. Implements `TraceSource`."""

    info: TraceInfo
    held: list[Batch] = field(default_factory=list)

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        for batch in self.held:
            yield batch
            if progress is not None:
                progress(len(batch), None)

    def skipped(self) -> Skipped:
        return Skipped({}, {})


Row = tuple[float, int, int, int, int, list[int]]  # time, input, output, session, tenant, ids


def batch_of(rows: list[Row]) -> Batch:
    offsets = np.concatenate([[0], np.cumsum([len(row[5]) for row in rows])])
    return Batch(
        np.array([row[0] for row in rows], np.float64),
        np.array([row[1] for row in rows], np.uint32),
        np.array([row[2] for row in rows], np.uint32),
        np.array([row[3] for row in rows], np.uint64),
        np.array([row[4] for row in rows], np.uint64),
        offsets.astype(np.uint64),
        np.array([block for row in rows for block in row[5]], np.uint64),
    )


def trace_of(rows: list[Row], block_tokens: int = BLOCK_TOKENS, at_a_time: int = 97) -> MemoryTrace:
    info = TraceInfo("made", "memory", "tests", block_tokens, TokensAre.EXACT, synthetic=True)
    parts = [rows[at : at + at_a_time] for at in range(0, len(rows), at_a_time)]
    return MemoryTrace(info, [batch_of(part) for part in parts])


def rows_of(batch: Batch) -> list[Row]:
    return [
        (
            float(batch.times_s[at]),
            int(batch.input_tokens[at]),
            int(batch.output_tokens[at]),
            int(batch.sessions[at]),
            int(batch.tenants[at]),
            [int(block) for block in batch.blocks(at)],
        )
        for at in range(len(batch))
    ]


def recorded(trace: traces.Trace) -> MemoryTrace:
    """A public trace as batches."""
    start_s = trace.requests[0].arrival_s
    rows: list[Row] = [
        (
            each.arrival_s - start_s,
            each.input_tokens,
            each.output_tokens,
            each.session + 1,
            0,
            list(each.block_ids),
        )
        for each in trace.requests
    ]
    return trace_of(rows, trace.block_tokens, at_a_time=2_000)


def tree_rows(seed: int, requests: int, sessions: int = 40, tenants: int = 3) -> list[Row]:
    """Sessions that grow from a few shared prefixes; some requests have no session, or no ids."""
    rng = np.random.default_rng(seed)
    shared = [[1_000_000 * (root + 1) + at for at in range(5 + 3 * root)] for root in range(3)]
    grown: dict[int, list[int]] = {}
    rows: list[Row] = []
    time_s, fresh = 0.0, 10_000_000
    for _ in range(requests):
        time_s += float(rng.exponential(2.0))
        session = int(rng.integers(0, sessions))
        ids = grown.get(session, shared[session % 3])
        more = int(rng.integers(0, 6))
        ids = ids + list(range(fresh, fresh + more))
        fresh += more
        grown[session] = ids if len(ids) < 60 else shared[session % 3]
        lack = int(rng.integers(0, BLOCK_TOKENS))
        tokens = max(1, len(ids) * BLOCK_TOKENS - lack)
        shown = [] if rng.random() < 0.02 else ids
        named = 0 if session % 10 == 9 else session + 1
        output = int(rng.integers(1, 300))
        rows.append((time_s, tokens, output, named, session % tenants, shown))
    return rows


def lru(rows: list[Row], capacity: int | None, block_tokens: int = BLOCK_TOKENS) -> list[float]:
    """Hit rate by block and token, as the reference values define it."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = blocks = hit_tokens = tokens = 0
    for _, size, _, _, _, ids in rows:
        matched = 0
        for block in ids:
            if block not in cache:
                break
            matched += 1
        hits += matched
        blocks += len(ids)
        hit_tokens += min(matched * block_tokens, size)
        tokens += size
        for block in reversed(ids):
            cache[block] = None
            cache.move_to_end(block)
            if capacity is not None and len(cache) > capacity:
                cache.popitem(last=False)
    return [hits / blocks if blocks else 0.0, hit_tokens / tokens if tokens else 0.0]
