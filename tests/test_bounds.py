"""A node takes in many times its capacity and stays as large as it was."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import NamedTuple

import keepwarm
from keepwarm.testing import blocks
from keepwarm.testing.node import NodeProcess
from nodes import make, short_folder

ARENA_BYTES = 64 << 20
# The full size is 200 times the capacity: KEEPWARM_TEST_SCALE=10.
TURNS = 20 * int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))
WARM_TURNS = 4
SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))
SIZES = (64 << 10, 100_000, 256 << 10, 1 << 20)
GROWTH_BYTES_MAX = 6 << 20


class Held(NamedTuple):
    """What a process holds, shared memory apart."""

    own_bytes: int
    threads: int
    descriptors: int


def held(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous, threads = (
        int(found[1])
        for name in ("RssAnon", "Threads")
        if (found := re.search(rf"^{name}:\s*(\d+)", status, re.MULTILINE))
    )
    return Held(anonymous << 10, threads, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def write(space: keepwarm.Space, chance: random.Random, turns: int) -> None:
    """Blocks of several sizes, looked up under leases, verified, some dropped."""
    written = 0
    while written < turns * ARENA_BYTES:
        size = chance.choice(SIZES)
        count = max(1, min(16, (4 << 20) // size))
        keys = chance.randbytes(16 * count)
        contents = bytearray(size * count)
        blocks.fill_many(keys, contents)
        stored = space.put_from(keys, contents)
        written += size * sum(outcome.status == "stored" for outcome in stored)
        back = bytearray(size * count)
        with space.lookup(keys):
            got = space.get_into(keys, back)
        wrong = blocks.check_many(keys, back)
        for at, outcome in enumerate(got):
            if outcome.status == "ok":
                assert at not in wrong, wrong[at]
        if chance.random() < 0.1:
            space.drop(keys)


def test_many_times_the_capacity_leaves_a_node_as_large_as_it_was() -> None:
    print(f"KEEPWARM_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    with (
        short_folder() as folder,
        NodeProcess(folder, ARENA_BYTES) as node,
        keepwarm.connect(node.address) as memory,
    ):
        space = memory.attach(make())
        write(space, chance, WARM_TURNS)
        before, own = held(node.pid), held(os.getpid())
        write(space, chance, TURNS - WARM_TURNS)
        after, own_after = held(node.pid), held(os.getpid())
        stat = memory.stat()
    print(f"bounds: {TURNS} times the capacity; node {before} to {after}, client {own_after}")
    assert stat["tenants"]["default"]["stored_bytes"] >= TURNS * ARENA_BYTES
    assert stat["tenants"]["default"]["evicted"] > 0
    assert after.own_bytes - before.own_bytes < GROWTH_BYTES_MAX
    assert (after.threads, after.descriptors) == (before.threads, before.descriptors)
    assert own_after.own_bytes - own.own_bytes < GROWTH_BYTES_MAX
    assert own_after.descriptors == own.descriptors
    assert (stat["leases"], stat["writing_bytes"], stat["reads_in_flight"]) == (0, 0, 0)
    assert stat["used_bytes"] <= stat["capacity_bytes"] == ARENA_BYTES
