"""Figures of tables: a lookup of a whole prompt, the index alone, the keys of a prompt."""

from __future__ import annotations

import time

import numpy as np

import keepwarm
from keepwarm import _core
from keepwarm.bench.context import MIB, Context, Found, Group
from keepwarm.bench.limits import Blocks, Shape
from keepwarm.bench.nodes import DEADLINE_S, Client, FailedError, Node
from keepwarm.bench.pairs import Spread
from keepwarm.testing.namespaces import namespace

PROMPT_BLOCKS = 8192
SMALLEST = 4096


def _lookup(context: Context) -> Found:
    shape = Shape(SMALLEST, 512, PROMPT_BLOCKS, context.seed)
    source = Blocks(shape)
    arena = 2 * PROMPT_BLOCKS * SMALLEST + 64 * MIB
    with (
        Node(arena, ("--max-blocks", str(2 * PROMPT_BLOCKS))) as node,
        keepwarm.connect(node.address) as memory,
    ):
        client = Client(memory, shape, "prompt", node.pid)
        client.fill(source)
        keys = client.keys(0, PROMPT_BLOCKS)
        times = []
        for _ in range(100 if context.quick else 400):
            start = time.perf_counter()
            found = client.space.lookup(keys, deadline_s=DEADLINE_S)
            times.append((time.perf_counter() - start) * 1e3)
            if found.prefix != PROMPT_BLOCKS:
                raise FailedError(f"a lookup found {found.prefix} of {PROMPT_BLOCKS} blocks")
            client.space.release(found)
    times.sort()
    p99_ms = round(times[len(times) * 99 // 100], 3)
    return {"lookup_8192_p50_ms": Spread.of(times, p99_ms=p99_ms)}


def _index(name: str, entries: int, context: Context) -> Found:
    """In random order no two keys of a prompt lie beside each other, which is the harder case."""
    keys_a_run = 1 << (18 if context.quick else 20)
    spreads = {}
    for order in ("prompts adjacent",) * (not context.quick) + ("random",):
        table = _core.IndexTable(entries, order == "random", context.seed)
        table.run(0, keys_a_run)
        table.run(1, keys_a_run)
        runs = [table.run(number, keys_a_run) for number in range(2, 2 + 2 * 5)]
        spreads[order] = Spread.of(runs, bytes_an_entry=round(table.bytes_an_entry, 1))
    found = spreads["random"]
    notes = dict(found.notes)
    if "prompts adjacent" in spreads:
        notes["adjacent_ns"] = round(spreads["prompts adjacent"].median, 1)
    return {name: found._replace(notes=notes)}


def _keys(context: Context) -> Found:
    names = namespace(block_tokens=16)
    tokens = np.arange(128 * 1024, dtype=np.uint32)
    times = []
    for _ in range(2 * context.pairs):
        start = time.perf_counter()
        keys = names.block_keys(tokens)
        times.append((time.perf_counter() - start) * 1e3)
        if len(keys) != 16 * len(tokens) // 16:
            raise FailedError("a prompt has another number of keys than blocks")
    return {"keys_128k_tokens_ms": Spread.of(times)}


GROUPS = (
    Group(("lookup_8192_p50_ms",), _lookup),
    Group(
        ("index_ns_per_key_1m",), lambda context: _index("index_ns_per_key_1m", 1 << 20, context)
    ),
    Group(
        ("index_ns_per_key_8m",), lambda context: _index("index_ns_per_key_8m", 8 << 20, context)
    ),
    Group(("keys_128k_tokens_ms",), _keys),
)
