"""Threads: the GIL is really released, buffers are really held, nobody waits for the wrong one."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keepwarm
import pytest
from keepwarm import Memory, Outcome, Reason, Status
from nodes import BLOCK_BYTES, keys_of, make


class SilentNode:
    """A socket that accepts and never says a word."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "silent.sock"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen(16)

    def close(self) -> None:
        self._listening.close()


def test_other_threads_run_while_a_call_waits(folder: Path) -> None:
    silent = SilentNode(folder)
    names = make()
    with keepwarm.connect(silent.path, deadline_s=0.05) as memory:
        space = memory.attach(names, deadline_s=0.05)
        begun, ended = threading.Event(), threading.Event()
        counted = 0

        def count() -> None:
            nonlocal counted
            begun.set()
            while not ended.is_set():
                counted += 1

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(count)
            begun.wait()
            before, start = counted, time.monotonic()
            found = space.lookup(keys_of(names, 1), deadline_s=0.2)
            passed, during = time.monotonic() - start, counted - before
            ended.set()
            busy.result()
    silent.close()
    assert found.miss in (Reason.DEADLINE, Reason.STORE_DOWN)
    if passed > 0.1:  # it waited, and did not merely find the breaker open
        assert during > 1000


def test_two_gets_overlap(memory: Memory) -> None:
    """Two threads hash and copy at once: together they take less than one after the other."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    names = make()
    space, keys = memory.attach(names), keys_of(names, 16)
    size = 4 << 20
    space.put_from(keys, bytes(size))
    into = [bytearray(size), bytearray(size)]
    inside, most, lock = 0, 0, threading.Lock()
    ready = threading.Barrier(3)

    def get(place: int) -> None:
        nonlocal inside, most
        ready.wait()
        for _ in range(10):
            with lock:
                inside += 1
                most = max(most, inside)
            assert space.get_into(keys, into[place])[0] == Outcome(Status.OK)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=get, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    for thread in threads:
        thread.join()
    # With the GIL held through a call, a thread could not enter while another is inside.
    assert most == 2


def test_a_buffer_in_use_cannot_be_resized(folder: Path) -> None:
    silent = SilentNode(folder)
    names = make()
    with keepwarm.connect(silent.path, deadline_s=0.01) as memory:
        space = memory.attach(names, deadline_s=0.01)
        data = bytearray(64)
        refused = 0
        with ThreadPoolExecutor(1) as pool:
            calls = pool.submit(
                lambda: [
                    space.get_into(keys_of(names, 1), data, deadline_s=0.05) for _ in range(10)
                ]
            )
            while not calls.done():
                try:
                    data.append(0)
                    data.pop()
                except BufferError:
                    refused += 1
            calls.result()
        data.append(1)  # free again
        assert len(data) == 65
        if memory.counts()["deadlines"]:
            assert refused > 0
    silent.close()


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
