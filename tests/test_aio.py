"""The asyncio twin: same answers, bounded threads, and buffers that outlive a cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import keepwarm
import pytest
from keepwarm import ClosedError, Memory, Outcome, Reason, Space, Status
from nodes import BLOCK_BYTES, eventually, keys_of, make


def slow(space: Space, name: str) -> tuple[threading.Event, threading.Event]:
    """Makes a call of `space` wait, in its thread and after its work, until let go."""
    entered, let_go = threading.Event(), threading.Event()
    real = getattr(space, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        entered.set()
        assert let_go.wait(10)
        return answer

    setattr(space, name, wrapped)
    return entered, let_go


async def turn() -> None:
    """Lets all that is ready run once."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    await done.wait()


def test_the_same_answers(memory: Memory) -> None:
    names = make()
    keys, data = keys_of(names, 4), bytes(range(256)) * (4 * BLOCK_BYTES // 256)

    async def go() -> None:
        space = await memory.aio.attach(names)
        aio = space.aio
        assert await aio.put_from(keys, data) == [Outcome(Status.STORED)] * 4
        async with await aio.lookup(keys) as found:
            assert found.prefix == 4
            assert found.lease is not None
            assert await aio.renew(found)
            assert (await memory.aio.stat())["leases"] == 1
        assert (await memory.aio.stat())["leases"] == 0
        landed = bytearray(len(data))
        assert await aio.get_into(keys, landed) == [Outcome(Status.OK)] * 4
        assert landed == data
        assert await aio.touch(keys) == 4
        generation = space.lookup(keys, lease_s=None).generations[0]
        assert await aio.report(keys[:16], generation) == "intact"
        assert await aio.drop(keys[:16]) == 1
        assert await aio.bump_epoch(1) == "acknowledged"
        await aio.release(found)

    asyncio.run(go())


def test_many_at_once_share_few_threads(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, bytes(BLOCK_BYTES))

    async def go() -> None:
        calls = [space.aio.get_into(keys, bytearray(BLOCK_BYTES)) for _ in range(200)]
        answers = await asyncio.gather(*calls)
        assert answers == [[Outcome(Status.OK)]] * 200

    asyncio.run(go())
    named = [t for t in threading.enumerate() if t.name.startswith("keepwarm-aio")]
    assert 0 < len(named) <= 8
    memory.close()
    eventually(lambda: not any(thread.is_alive() for thread in named))


def test_errors_come_through(memory: Memory) -> None:
    space = memory.attach(make())

    async def go() -> None:
        with pytest.raises(keepwarm.ArgumentError, match="keys has 3 bytes"):
            await space.aio.lookup(b"abc")

    asyncio.run(go())


def test_a_cancelled_call_keeps_its_buffer_until_its_thread_is_out(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, bytes(BLOCK_BYTES))
    entered, let_go = slow(space, "get_into")

    async def go() -> None:
        task = asyncio.create_task(space.aio.get_into(keys, bytearray(BLOCK_BYTES)))
        await asyncio.to_thread(entered.wait, 10)
        for _ in range(3):  # impatient
            task.cancel()
            await turn()
            assert not task.done()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())


def test_a_cancelled_call_that_waited_for_a_thread_never_runs(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    entered, let_go = slow(space, "touch")
    untouched = bytearray(b"untouched")

    async def go() -> None:
        busy = [asyncio.create_task(space.aio.touch(keys)) for _ in range(8)]
        await asyncio.to_thread(entered.wait, 10)
        waits = asyncio.create_task(space.aio.get_into(keys, untouched))
        await turn()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        let_go.set()
        await asyncio.gather(*busy)

    asyncio.run(go())
    assert memory.counts()["gets"] == 0


def test_a_cancelled_lookup_leaves_no_lease(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, bytes(BLOCK_BYTES))
    entered, let_go = slow(space, "lookup")

    async def go() -> None:
        task = asyncio.create_task(space.aio.lookup(keys, lease_s=10))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    eventually(lambda: memory.stat()["leases"] == 0)


def test_a_failure_after_cancellation_is_not_reported_by_the_loop(memory: Memory) -> None:
    space = memory.attach(make())
    entered, let_go = threading.Event(), threading.Event()

    def fails(*_: Any, **__: Any) -> Any:
        entered.set()
        let_go.wait(10)
        raise keepwarm.NodeError("late")

    space.touch = fails  # type: ignore[method-assign]
    complaints: list[Any] = []

    async def go() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        task = asyncio.create_task(space.aio.touch(b""))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        await turn()

    asyncio.run(go())
    assert complaints == []


async def all_taken(space: Space) -> tuple[asyncio.Future[list[int]], threading.Event]:
    """Eight calls, one in each thread, until let go."""
    entered, let_go = threading.Barrier(9), threading.Event()

    def touch(*_: Any, **__: Any) -> int:
        entered.wait(10)
        assert let_go.wait(10)
        return 0

    space.touch = touch  # type: ignore[method-assign]
    busy = [asyncio.create_task(space.aio.touch(b"", deadline_s=60)) for _ in range(8)]
    await asyncio.to_thread(entered.wait, 10)
    return asyncio.gather(*busy), let_go


def test_a_call_ends_by_its_deadline_while_the_threads_are_taken(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    real, given = space.lookup, []

    def lookup(keys: Any, position: int, lease_s: float | None, deadline_s: float) -> Any:
        given.append(deadline_s)
        return real(keys, position, lease_s, deadline_s)

    space.lookup = lookup  # type: ignore[method-assign, assignment]

    async def go() -> None:
        busy, let_go = await all_taken(space)
        try:
            found = await asyncio.wait_for(space.aio.lookup(keys, deadline_s=1e-9), 10)
            assert found.miss in (Reason.DEADLINE, Reason.ABSENT, Reason.STORE_DOWN)
            assert not busy.done()
        finally:
            let_go.set()
        await busy

    asyncio.run(go())
    assert given == [0.0]


def test_what_waits_no_more_is_not_queued(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)

    async def go() -> None:
        busy, let_go = await all_taken(space)
        late = [space.aio.lookup(keys, deadline_s=0) for _ in range(100)]
        await asyncio.wait_for(asyncio.gather(*late), 10)
        (threads,) = memory._threads.values()
        assert not threads._queue
        let_go.set()
        await busy

    asyncio.run(go())


def test_after_close(memory: Memory) -> None:
    space = memory.attach(make())
    memory.close()

    async def go() -> None:
        with pytest.raises(ClosedError):
            await space.aio.lookup(b"")

    asyncio.run(go())


def test_close_tells_what_waits_and_holds_no_loop_up(memory: Memory) -> None:
    space = memory.attach(make())

    async def go() -> None:
        busy, let_go = await all_taken(space)
        waits = asyncio.create_task(space.aio.lookup(bytes(16)))
        await turn()
        memory.close()  # returns while all eight are under way
        assert not busy.done()
        with pytest.raises(ClosedError):
            await waits
        assert not waits.cancelled()
        let_go.set()
        await busy

    asyncio.run(go())


def test_closing_for_asyncio_waits_for_the_threads(memory: Memory) -> None:
    space = memory.attach(make())
    let_go_of: list[threading.Event] = []

    async def go() -> None:
        busy, let_go = await all_taken(space)
        let_go_of.append(let_go)
        closing = asyncio.create_task(memory.aio.close())
        await turn()
        assert not closing.done()
        let_go.set()
        await closing
        assert not [t for t in threading.enumerate() if t.name.startswith("keepwarm-aio")]
        await busy

    try:
        asyncio.run(go())
    finally:
        for event in let_go_of:
            event.set()


def test_a_thread_may_close_its_own_memory(memory: Memory) -> None:
    space = memory.attach(make())

    def closes(*_: Any, **__: Any) -> int:
        memory.close()
        return 0

    space.touch = closes  # type: ignore[method-assign]
    assert asyncio.run(space.aio.touch(b"")) == 0


def test_a_call_on_a_closed_memory_starts_no_thread(memory: Memory) -> None:
    space = memory.attach(make())
    memory.close()

    async def go() -> None:
        with pytest.raises(ClosedError):
            await space.aio.touch(b"")

    asyncio.run(go())
    assert not [t for t in threading.enumerate() if t.name.startswith("keepwarm-aio")]


def test_an_abandoned_coroutine_keeps_its_buffer_until_its_thread_is_out(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, bytes([7]) * BLOCK_BYTES)
    into = bytearray(BLOCK_BYTES)
    entered, out = threading.Event(), threading.Event()
    let_go, real = threading.Event(), space.get_into

    def get_into(*arguments: Any, **named: Any) -> Any:
        entered.set()
        assert let_go.wait(10)
        try:
            return real(*arguments, **named)
        finally:
            out.set()

    space.get_into = get_into  # type: ignore[method-assign]

    async def go() -> None:
        coroutine = space.aio.get_into(keys, into)
        coroutine.send(None)
        await asyncio.to_thread(entered.wait, 10)
        asyncio.get_running_loop().run_in_executor(None, let_go.set)
        coroutine.close()
        assert out.is_set()

    asyncio.run(go())
    left = bytes(into)
    memory.close()
    assert into == left


def test_an_abandoned_coroutine_that_waited_for_a_thread_never_runs(memory: Memory) -> None:
    space = memory.attach(make())

    async def go() -> None:
        busy, let_go = await all_taken(space)
        coroutine = space.aio.get_into(bytes(16), bytearray(8))
        coroutine.send(None)
        coroutine.close()
        let_go.set()
        await busy

    asyncio.run(go())
    assert memory.counts()["gets"] == 0


def test_a_cancelled_coroutine_that_is_then_closed_waits_too(memory: Memory) -> None:
    space = memory.attach(make())
    entered, let_go = slow(space, "touch")
    out: list[bool] = []

    async def go() -> None:
        coroutine = space.aio.touch(bytes(16))
        coroutine.send(None)
        await asyncio.to_thread(entered.wait, 10)
        coroutine.throw(asyncio.CancelledError())  # now it waits for its thread
        asyncio.get_running_loop().run_in_executor(None, let_go.set)
        coroutine.close()
        out.append(let_go.is_set())

    asyncio.run(go())
    assert out == [True]
