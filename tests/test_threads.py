"""Threads: the GIL is really released, buffers are really held, nobody waits for the wrong one."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keepwarm
import numpy as np
import pytest
from keepwarm import Memory, Outcome, Status
from nodes import BLOCK_BYTES, LocalNode, eventually, keys_of, make


class Witness:
    """A thread that counts, and notes the longest time in which it could not."""

    def __init__(self) -> None:
        self.longest_gap_s = 0.0
        self._ended, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(10)

    def _run(self) -> None:
        last = time.monotonic()
        self._begun.set()
        while not self._ended.is_set():
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - last)
            last = now

    def end(self) -> float:
        """The longest gap."""
        self._ended.set()
        self._thread.join()
        return self.longest_gap_s


def held_through(call: Callable[[], object]) -> bool:
    """Whether another thread stood still for most of a call."""
    witness, began = Witness(), time.monotonic()
    call()
    took = time.monotonic() - began
    return witness.end() > took / 2


def test_other_threads_run_while_a_call_waits(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, b"x")
    with space.lookup(keys, lease_s=10):
        epochs = itertools.count(1)

        def wait() -> None:
            outcome = space.bump_epoch(next(epochs), deadline_s=0.3)
            assert outcome is keepwarm.EpochOutcome.STILL_LEASED

        assert not all(held_through(wait) for _ in range(5))


def test_other_threads_run_while_bytes_move(memory: Memory) -> None:
    """A loaded machine may stop a thread for long, but not every time."""
    names = make()
    space, keys = memory.attach(names), keys_of(names, 8)
    size = 24 << 20
    assert space.put_from(keys, bytes(size), deadline_s=30)[0].status is Status.STORED
    landed = bytearray(size)
    assert not all(
        held_through(lambda: space.get_into(keys, landed, deadline_s=30)) for _ in range(20)
    )
    tokens = np.arange(1 << 21, dtype=np.uint32)
    assert not all(held_through(lambda: names.block_keys(tokens)) for _ in range(20))


def test_a_buffer_in_use_cannot_be_resized(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 8)
    data = bytearray(24 << 20)
    space.put_from(keys, data, deadline_s=30)
    refused, until = 0, time.monotonic() + 20
    with ThreadPoolExecutor(1) as pool:
        while not refused and time.monotonic() < until:
            call = pool.submit(space.get_into, keys, data)
            while not call.done():
                try:
                    data.append(0)
                    data.pop()
                except BufferError:
                    refused += 1
            try:
                assert call.result()[0].status in (Status.OK, Status.MISS)
            except keepwarm.ArgumentError:
                continue  # it met the buffer while that was one byte longer
    assert refused
    data.append(1)  # free again
    assert len(data) == (24 << 20) + 1


def test_many_threads_each_see_their_own_bytes(memory: Memory) -> None:
    seed = int(os.environ.get("KEEPWARM_TEST_SEED", random.randrange(1 << 32)))
    print(f"KEEPWARM_TEST_SEED={seed}")
    names = make()
    space = memory.attach(names)

    def work(place: int) -> None:
        draw = random.Random(seed + place)
        for turn in range(20):
            keys = keys_of(names, 2, seed=place * 100 + turn)
            data = draw.randbytes(2 * draw.choice([100, BLOCK_BYTES]))
            assert {o.status for o in space.put_from(keys, data)} <= {Status.STORED, Status.PRESENT}
            with space.lookup(keys) as found:
                assert found.prefix == 2
                landed = bytearray(len(data))
                assert space.get_into(keys, landed) == [Outcome(Status.OK)] * 2
                assert landed == data

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work, place) for place in range(12)]:
            done.result()


def test_closing_while_others_call(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 4)
    space.put_from(keys, bytes(4 * BLOCK_BYTES))
    begun = threading.Barrier(5)

    def work() -> None:
        begun.wait()
        for _ in range(10_000):
            try:
                space.get_into(keys, bytearray(4 * BLOCK_BYTES))
            except keepwarm.ClosedError:
                return
        raise AssertionError("the memory was never closed")

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work) for _ in range(4)]
        begun.wait()
        memory.close()
        for done in working:
            done.result(20)


def test_a_subscription_closed_by_another_thread_stays_closed(memory: Memory) -> None:
    space = memory.attach(make())
    events = space.subscribe(wait_s=1.0)
    for _ in range(20):
        next(events)  # the snapshot, which has nothing in it, and then nothing until a heartbeat
        if events.since is not None:
            break
    assert events.since is not None
    asking = threading.Thread(target=lambda: next(events))
    asking.start()
    eventually(lambda: events.since is None)
    with pytest.raises(keepwarm.ArgumentError, match="another thread"):
        next(events)
    events.close()
    asking.join()
    with pytest.raises(keepwarm.ClosedError, match="subscribe again"):
        next(events)
    assert events.since is None


def figure(node: LocalNode, name: str) -> object:
    """One of a running node's figures."""
    return node.server and node.server.stat()[name]


def test_a_forgotten_server_stops_no_other_thread(folder: Path) -> None:
    """The collector drops it while a call under way, here a wait for a lease, keeps it waiting."""
    node = LocalNode(folder)
    names = make()
    with node.connect() as memory:
        space, keys = memory.attach(names), keys_of(names, 1)
        space.put_from(keys, b"x")
        held = space.lookup(keys, lease_s=10)
        waiting = threading.Thread(target=lambda: space.bump_epoch(1, deadline_s=2.0))
        waiting.start()
        eventually(lambda: figure(node, "server.requests.epoch") == 1)
        assert not held_through(lambda: setattr(node, "server", None))
        waiting.join()
        assert held.lease
    node.close()
