"""Many clients with blocks of all sizes at once: each gets its share, and nothing grows."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import keepwarm
import numpy as np
from keepwarm.testing.node import NodeProcess
from nodes import make, short_folder
from test_bounds import held

SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
# All ask for the same bytes a call, as engines do that restore prompts: what differs is the size of
# their blocks, and what is measured is the node, not who asked for more.
BATCH_BYTES = max(SIZES)
STEP_BYTES = min(SIZES)
SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))
SCALE = int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))
# The full size is 64 clients for ten minutes: KEEPWARM_TEST_SCALE=10.
CLIENTS = 64 if SCALE >= 10 else 16
PROCESSES = CLIENTS // 4
ARENA_BYTES = 3 * CLIENTS * BATCH_BYTES
SECONDS = 600.0 if SCALE >= 10 else 4.0
WARM_SECONDS = 60.0 if SCALE >= 10 else 2.0
# Far above what a fair share of this machine takes: a call that misses it was starved.
DEADLINE_S = 60.0
FAIR_WITHIN = 2.0
START_S_MAX = 60.0
GROWTH_BYTES_MAX = 8 << 20


@dataclass
class Client:
    """One client's blocks, and how many bytes of them it moved."""

    number: int
    size: int
    moved: int = 0
    problems: list[str] = field(default_factory=list)

    def run(self, address: str, stop: threading.Event) -> None:
        """Puts and gets batches of its own until told to stop."""
        try:
            self.work(address, stop)
        except Exception as error:
            self.problems.append(f"client {self.number}: {error!r}")
            raise

    def work(self, address: str, stop: threading.Event) -> None:
        chance = random.Random(SEED + self.number)
        count = BATCH_BYTES // self.size
        contents = chance.randbytes(self.size) * count
        back = bytearray(len(contents))
        with keepwarm.connect(address, connections_max=1) as memory:
            space = memory.attach(make())
            while not stop.is_set():
                keys = chance.randbytes(16 * count)
                stored = space.put_from(keys, contents, deadline_s=DEADLINE_S)
                got = space.get_into(keys, back, deadline_s=DEADLINE_S)
                self.judge(contents, back, stored, got)

    def judge(
        self,
        contents: bytes,
        back: bytearray,
        stored: list[keepwarm.Outcome],
        got: list[keepwarm.Outcome],
    ) -> None:
        """Whatever came is right, and whatever did not has a reason that is no error."""
        # In equal steps, and without the interpreter's lock, which the other clients here need:
        # the work of the test is the same for all sizes.
        view, truth = (
            np.frombuffer(bytes_, np.uint8).reshape(-1, STEP_BYTES) for bytes_ in (back, contents)
        )
        differs = [bool((ours != true).any()) for ours, true in zip(view, truth, strict=True)]
        steps = self.size // STEP_BYTES
        for at, outcome in enumerate(got):
            if outcome.status == "ok" and any(differs[at * steps : (at + 1) * steps]):
                self.problems.append(f"client {self.number}: wrong bytes in block {at}")
            if outcome.reason in ("corrupt", "deadline", "store_down", "identity"):
                self.problems.append(f"client {self.number}: get {outcome}")
        for put in stored:
            if put.reason in ("corrupt", "deadline", "store_down", "identity"):
                self.problems.append(f"client {self.number}: put {put}")
        done = sum(outcome.status == "ok" for outcome in got)
        self.moved += self.size * (done + sum(put.status == "stored" for put in stored))


def crew(address: str, numbers: list[int], wire: Connection) -> None:
    """Clients of one process, a thread each; tells what each has moved whenever asked."""
    clients = [Client(number, SIZES[number % len(SIZES)]) for number in numbers]
    stop = threading.Event()
    threads = [threading.Thread(target=each.run, args=(address, stop)) for each in clients]
    for thread in threads:
        thread.start()
    while wire.recv() == "tell":
        wire.send([(each.number, each.size, each.moved) for each in clients])
    stop.set()
    for thread in threads:
        thread.join()
    wire.send([problem for each in clients for problem in each.problems])


def tell(wires: list[Connection]) -> dict[int, tuple[int, int]]:
    """Of each client: its block size, and the bytes it has moved."""
    for wire in wires:
        wire.send("tell")
    return {number: (size, moved) for wire in wires for number, size, moved in wire.recv()}


def test_every_client_gets_its_share_and_nothing_grows() -> None:
    print(f"KEEPWARM_TEST_SEED={SEED}")
    spawn = multiprocessing.get_context("spawn")
    pause = threading.Event()
    with short_folder() as folder, NodeProcess(folder, ARENA_BYTES) as node:
        wires, children = [], []
        for process in range(PROCESSES):
            ours, theirs = spawn.Pipe()
            numbers = list(range(process, CLIENTS, PROCESSES))
            child = spawn.Process(target=crew, args=(node.address, numbers, theirs), daemon=True)
            child.start()
            wires.append(ours)
            children.append(child)
        # Until every client has moved something all are connected.
        until = time.monotonic() + START_S_MAX
        while any(moved == 0 for _, moved in tell(wires).values()):
            assert time.monotonic() < until, "some client moved nothing"
            pause.wait(0.05)
        pause.wait(WARM_SECONDS)
        before, begun, start = held(node.pid), tell(wires), time.monotonic()
        pause.wait(SECONDS)
        after, ended, seconds = held(node.pid), tell(wires), time.monotonic() - start
        for wire in wires:
            wire.send("stop")
        problems = [problem for wire in wires for problem in wire.recv()]
        for child in children:
            child.join()
        stat = node.stat()
    moved = {number: ended[number][1] - begun[number][1] for number in ended}
    by_size = {
        size: sum(moved[number] for number in moved if ended[number][0] == size) for size in SIZES
    }
    ratio = max(moved.values()) / max(min(moved.values()), 1)
    rate = sum(moved.values()) / seconds / (1 << 30)
    print(f"clients: {CLIENTS}, {rate:.2f} GiB/s in all, most over least {ratio:.2f}")
    print(f"clients: MiB by block size { ({k >> 10: v >> 20 for k, v in by_size.items()}) }")
    print(f"clients: node {before} to {after}")
    assert not problems, problems[:10]
    if SCALE >= 10:  # a few batches say nothing about shares
        assert ratio <= FAIR_WITHIN, sorted(moved.values())
    assert after.own_bytes - before.own_bytes < GROWTH_BYTES_MAX
    assert (after.threads, after.descriptors) == (before.threads, before.descriptors)
    assert (stat["writing_bytes"], stat["reads_in_flight"]) == (0, 0)
