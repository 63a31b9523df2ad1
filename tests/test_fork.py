"""Forks: a child finds its own way to the node; what is the parent's stays the parent's."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable

import keepwarm
import pytest
from keepwarm import Memory, NodeError, Outcome, Reason, Status
from nodes import BLOCK_BYTES, CAPACITY_BYTES, LocalNode, keys_of, make

OK = Outcome(Status.OK)


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child; fails here if it fails there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the point
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"in the child: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_uses_a_connected_memory(node: LocalNode) -> None:
    names = make()
    keys = keys_of(names, 2)
    with node.connect() as memory:
        space = memory.attach(names)
        data = bytes(range(256)) * (2 * BLOCK_BYTES // 256)
        space.put_from(keys, data)
        found = space.lookup(keys, lease_s=10)

        def child() -> None:
            landed = bytearray(len(data))
            assert space.get_into(keys, landed) == [OK] * 2
            assert landed == data
            more = keys_of(names, 1, seed=9)
            assert space.put_from(more, b"from the child") == [Outcome(Status.STORED)]
            assert memory.health()["state"] == "up"
            memory.close()

        in_child(child)
        # The parent's connections and leases are as they were.
        assert memory.stat()["leases"] == 1
        assert space.renew(found)
        landed = bytearray(len(data))
        assert space.get_into(keys, landed) == [OK] * 2
        assert landed == data
        assert space.lookup(keys_of(names, 1, seed=9), lease_s=None).prefix == 1
        assert memory.counts()["reconnects"] == 0


def test_a_child_of_a_child(node: LocalNode) -> None:
    names = make()
    keys = keys_of(names, 1)
    with node.connect() as memory:
        space = memory.attach(names)
        space.put_from(keys, b"x")

        def grandchild() -> None:
            assert space.get_into(keys, bytearray(1)) == [OK]

        def child() -> None:
            assert space.get_into(keys, bytearray(1)) == [OK]
            in_child(grandchild)
            assert space.get_into(keys, bytearray(1)) == [OK]

        in_child(child)
        assert space.get_into(keys, bytearray(1)) == [OK]


def test_an_embedded_memory_stays_with_its_parent() -> None:
    names = make()
    keys = keys_of(names, 1)
    with keepwarm.open(CAPACITY_BYTES, populate=False) as memory:
        space = memory.attach(names)
        space.put_from(keys, b"x")

        def child() -> None:
            down = Outcome(Status.MISS, Reason.STORE_DOWN)
            assert space.get_into(keys, bytearray(1)) == [down]
            assert space.put_from(keys, b"y") == [Outcome(Status.SHED, Reason.STORE_DOWN)]
            assert space.lookup(keys).miss is Reason.STORE_DOWN
            assert memory.health()["state"] == "down"
            memory.close()

        in_child(child)
        landed = bytearray(1)
        assert space.get_into(keys, landed) == [OK]
        assert landed == b"x"


def test_forks_amid_calls(node: LocalNode) -> None:
    """A fork catches other threads with any lock held; no child may ever wait for one."""
    names = make()
    keys = keys_of(names, 4)
    with node.connect() as memory:
        space = memory.attach(names)
        space.put_from(keys, bytes(4 * BLOCK_BYTES))
        ended = threading.Event()

        def busy() -> None:
            into = bytearray(4 * BLOCK_BYTES)
            while not ended.is_set():
                assert space.get_into(keys, into) == [OK] * 4
                space.lookup(keys).release()

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                in_child(lambda: _one_get(memory, keys))
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def _one_get(memory: Memory, keys: bytes) -> None:
    space = memory.attach(make())
    assert space.get_into(keys, bytearray(4 * BLOCK_BYTES)) == [OK] * 4


def test_a_child_has_asyncio_threads_of_its_own(node: LocalNode) -> None:
    names = make()
    keys = keys_of(names, 1)
    with node.connect() as memory:
        space = memory.attach(names)

        async def get() -> list[Outcome]:
            return await space.aio.get_into(keys, bytearray(1))

        space.put_from(keys, b"x")
        assert asyncio.run(get()) == [OK]

        def child() -> None:
            assert asyncio.run(get()) == [OK]
            memory.close()

        in_child(child)
        assert asyncio.run(get()) == [OK]


def test_a_child_leaves_its_parents_subscription_alone(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    events = space.subscribe(wait_s=0.2)
    while not next(events).last:
        pass

    def child() -> None:
        for _ in range(5):
            with pytest.raises(NodeError, match="store_down"):
                next(events)
        events.close()

    in_child(child)
    space.put_from(keys, b"x")
    seen: list[keepwarm.Event] = []
    while not seen:
        seen += next(events).events
    assert [event.key for event in seen] == [keys]
