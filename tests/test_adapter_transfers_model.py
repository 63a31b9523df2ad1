"""Random loads, stores, cancels, drains, moves and faults: what must hold whatever happens.

Each accepted job ends once; after its end nothing of ours is at its memory, reads it or writes it;
queues stay within their bounds; a drain ends; no thread or descriptor is left. Seeds are printed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keepwarm
import pytest
from adapters import (
    BLOCK_BYTES,
    PlainPages,
    ShakyMemory,
    prompt_of,
    shaky_session,
    threads_of_ours,
)
from keepwarm import Reason, Status
from keepwarm.adapter import transfers as transfers_module
from keepwarm.adapter.session import Session
from keepwarm.adapter.transfers import Done, Job, Transfers
from keepwarm.testing import FaultProxy, Towards, eventually
from nodes import LocalNode

JOBS_MAX = 6
CANARY = 0xA5
STEP_S = 0.05
PROMPTS, BLOCKS_MAX = 5, 6


def block(seed: int, at: int) -> bytes:
    """What block `at` of a prompt holds, always."""
    return bytes([(seed * 31 + at * 7 + 1) % 251]) * BLOCK_BYTES


class WatchedPages(PlainPages):
    """Knows when its job is over, and what was done with it afterwards."""

    def __init__(self, seed: int, blocks: int, load: bool, staged: bool) -> None:
        data = (
            bytes(blocks * BLOCK_BYTES)
            if load
            else b"".join(block(seed, at) for at in range(blocks))
        )
        super().__init__(blocks, step_blocks=2, data=data)
        self.seed, self.load, self.staged = seed, load, staged
        self.over = False
        self.late: list[str] = []
        self.staging = bytearray(len(data))

    def buffers(self, first: int, count: int) -> Any:
        if not self.staged:
            return super().buffers(first, count)
        view = memoryview(self.staging)
        return [
            view[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] for at in range(first, first + count)
        ]

    def landed(self, first: int, outcomes: Any) -> None:
        if self.over:
            self.late.append(f"landed {first}")
        super().landed(first, outcomes)
        for at, outcome in enumerate(outcomes, first):
            if self.staged and outcome.status is Status.OK:
                self._copy(self.staging, self.memory, at)

    def gather(self, first: int, count: int) -> None:
        if self.over:
            self.late.append(f"gather {first}")
        super().gather(first, count)
        for at in range(first, first + count):
            if self.staged:
                self._copy(self.memory, self.staging, at)

    def _copy(self, source: bytearray, target: bytearray, at: int) -> None:
        place = slice(at * BLOCK_BYTES, (at + 1) * BLOCK_BYTES)
        target[place] = source[place]

    def end(self, done: Done) -> None:
        """The engine has its memory back, and uses it for something else at once."""
        for at, outcome in enumerate(done.outcomes):
            if self.load and outcome.status is Status.OK:
                held = self.memory[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]
                assert held == block(self.seed, at), f"{done.id}: block {at} is not what was stored"
        self.over = True
        self.memory[:] = bytes([CANARY]) * len(self.memory)

    def check(self) -> None:
        assert not self.late
        assert self.memory.count(CANARY) == len(self.memory), "written after its job's end"


class Run:
    """One random run."""

    def __init__(self, seed: int, session: Session, memory: ShakyMemory) -> None:
        self.rng = random.Random(seed)
        self.session, self.memory = session, memory
        self.woken = 0
        self.transfers = Transfers(
            session,
            load_threads=2,
            store_threads=1,
            loads_max=JOBS_MAX,
            stores_max=JOBS_MAX,
            wake=self._wake,
        )
        self.jobs: dict[int, WatchedPages] = {}
        self.accepted: set[int] = set()
        self.ends: Counter[Any] = Counter()
        self.statuses: Counter[str] = Counter()

    def _wake(self) -> None:
        self.woken += 1

    def submit(self) -> None:
        rng, number = self.rng, len(self.jobs)
        seed, blocks = rng.randrange(PROMPTS), rng.randrange(1, BLOCKS_MAX + 1)
        load, staged = rng.random() < 0.5, rng.random() < 0.5
        pages = self.jobs[number] = WatchedPages(seed, blocks, load, staged)
        now = self.session.now
        job = Job(
            id=number,
            keys=prompt_of(now.namespace, BLOCKS_MAX, seed)[:blocks],
            pages=pages,
            deadline_s=rng.choice([0.0, 0.02, 5.0]),
            generation=now.generation - (rng.random() < 0.05),
            staged=staged,
        )
        if self.transfers.load(job) if load else self.transfers.store(job):
            self.accepted.add(number)
        assert self.transfers.backlog(load) <= JOBS_MAX

    def take(self, done: list[Done]) -> None:
        for each in done:
            assert isinstance(each.id, int)
            pages = self.jobs[each.id]
            self.ends[each.id] += 1
            assert self.ends[each.id] == 1, f"job {each.id} ended twice"
            assert each.id in self.accepted, f"job {each.id} was refused and ended"
            assert len(each.outcomes) == len(pages.memory) // BLOCK_BYTES
            if not pages.staged:
                at_it = [space for space in self.memory.spaces if id(pages.memory) in space.busy]
                assert not at_it, f"job {each.id} ended while a call is at its memory"
            self.statuses.update(str(outcome.status) for outcome in each.outcomes)
            pages.end(each)

    def step(self) -> None:
        match self.rng.randrange(20):
            case 0:
                for space in self.memory.spaces:
                    space.gate.clear()
            case 1 | 2:
                for space in self.memory.spaces:
                    space.gate.set()
            case 3:
                self.transfers.cancel(self.rng.randrange(len(self.jobs) + 1))
            case 4:
                self.drain()
            case 5 if self.rng.random() < 0.2:
                self.session.move("a random reset")
            case 6:
                self.memory.faults.dead = self.rng.random() < 0.3
            case 7 if self.rng.random() < 0.3:
                self.settle()
            case 8 | 9:
                self.take(self.transfers.finished())
            case _:
                self.submit()

    def settle(self) -> None:
        """All is well, and everything under way comes to its own end."""
        for space in self.memory.spaces:
            space.gate.set()
        self.memory.faults.clear()
        eventually(lambda: self.session.space is not None, "the session is attached")
        eventually(
            lambda: not self.transfers.backlog(True) + self.transfers.backlog(False), "all end"
        )

    def drain(self) -> None:
        began = time.monotonic()
        self.take(self.transfers.drain(0.005))
        took_s = time.monotonic() - began
        assert took_s < 0.005 + STEP_S + 1.0, f"a drain took {took_s:.2f} s"
        assert self.transfers.backlog(True) == self.transfers.backlog(False) == 0
        assert set(self.ends) == self.accepted, "a job was left after a drain"

    def end(self) -> None:
        self.drain()
        self.transfers.close()
        for pages in self.jobs.values():
            if pages.over:
                pages.check()
        assert self.woken == len(self.accepted)
        assert self.transfers.counts["faults"] == 0


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_job_ends_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers_module, "STEP_S", STEP_S)
    monkeypatch.setattr(transfers_module, "YIELD_S", 0.002)
    session, memory = shaky_session()
    run = Run(seed, session, memory)
    for _ in range(400):
        run.step()
    for space in memory.spaces:
        space.gate.set()
    run.end()
    session.close()
    assert {"ok", "stored"} <= set(run.statuses), f"seed {seed} moved nothing: {run.statuses}"
    eventually(lambda: not threads_of_ours(), f"seed {seed}: no thread is left")


def test_a_real_node_that_stalls_at_random(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "STEP_S", STEP_S)
    listen = f"unix:{node.path}.proxy"
    descriptors = Path("/proc/self/fd")
    with FaultProxy(f"unix:{node.path}", listen) as proxy:
        before = len(list(descriptors.iterdir()))
        with keepwarm.connect(listen) as real:
            session, memory = shaky_session(real)
            run = Run(99, session, memory)
            for number in range(300):
                if number % 40 == 20:
                    proxy.set(Towards.CLIENT, stall=True)
                if number % 40 == 30:
                    proxy.clear()
                if run.rng.random() < 0.7:
                    run.submit()
                else:
                    run.take(run.transfers.finished())
                if number % 100 == 99:
                    run.drain()
            proxy.clear()
            run.end()
            session.close()
        eventually(
            lambda: len(list(descriptors.iterdir())) <= before, "all descriptors are given back"
        )
    assert {"ok", "stored"} <= set(run.statuses), run.statuses
    eventually(lambda: not threads_of_ours(), "no thread is left")


@pytest.mark.parametrize("staged", [False, True])
def test_a_cancelled_job_reports_what_has_landed(staged: bool) -> None:
    session, memory = shaky_session()
    (space,) = memory.spaces
    prompt = prompt_of(session.namespace, 6, 1)
    space.below.put_from(prompt, b"".join(block(1, at) for at in range(6)))
    transfers = Transfers(session, load_threads=1, store_threads=1, loads_max=4, stores_max=4)
    pages = WatchedPages(1, 6, load=True, staged=staged)
    landed = pages.landed

    def then_shut(first: int, outcomes: Any) -> None:
        landed(first, outcomes)
        if first == 2:
            space.gate.clear()

    pages.landed = then_shut  # type: ignore[method-assign]
    assert transfers.load(Job("a", prompt, pages, deadline_s=60.0, staged=staged))
    eventually(lambda: 2 in pages.landed_blocks and bool(space.busy), "the third step hangs")
    transfers.cancel("a")
    if staged:
        assert space.busy, "the step is still under way, in memory of its own"
    else:
        assert not transfers.finished(), "not over while a step is at its memory"
    eventually(lambda: not transfers.backlog(True), "it ends")
    (over,) = transfers.finished()
    pages.end(over)
    reasons = [outcome.reason for outcome in over.outcomes]
    assert reasons == [None] * 4 + [Reason.DEADLINE] * 2
    assert over.bytes == 4 * BLOCK_BYTES
    space.gate.set()
    assert not session.failed, "who cancels does not say that the store failed"
    transfers.close()
    pages.check()
    session.close()
