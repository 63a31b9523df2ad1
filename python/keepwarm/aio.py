"""The calls for asyncio: the same names, arguments and answers, run by a bounded set of threads.

A call's deadline includes its wait for a thread: one that gets none in time answers as the call
without any time left does. A cancelled call raises `CancelledError` only once its thread is out of
the caller's buffers (or has not begun): until then the buffers belong to the call. It is over by
its deadline at the latest. A coroutine that is closed or forgotten cannot wait; it blocks instead.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from keepwarm.arguments import left
from keepwarm.client import DEADLINE_S, LEASE_S, Buffers, Memory, Space
from keepwarm.errors import ClosedError
from keepwarm.outcomes import EpochOutcome, Lookup, Outcome, Reported

if TYPE_CHECKING:
    from keepwarm.identity import BufferLike, Namespace
    from keepwarm.prompt import Keys

T = TypeVar("T")


class Threads:
    """A memory's threads for asyncio, in one process: a forked child makes its own.

    The queue is ours and not the executor's, so that a call which waits no more leaves it: what is
    queued is never more than what somebody awaits.
    """

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="keepwarm-aio")
        self._count = count
        self._lock = threading.Lock()
        self._local = threading.local()
        self._queue: dict[Future[Any], Callable[[], Any]] = {}
        self._serving = 0
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queues `work`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise _closed()
            self._queue[future] = work
            if self._serving < self._count:
                self._begin(future)
        return future

    def _begin(self, future: Future[Any]) -> None:
        try:
            self._executor.submit(self._serve)
        except RuntimeError:  # the interpreter is ending
            del self._queue[future]
            raise _closed() from None
        self._serving += 1

    def withdraw(self, future: Future[Any]) -> bool:
        """Takes a call back, if no thread has begun it."""
        with self._lock:
            self._queue.pop(future, None)
        return future.cancel()

    def close(self) -> None:
        """Refuses what is queued and ends the threads; waits for them where nobody is held up."""
        with self._lock:
            self._closed = True
            left, self._queue = list(self._queue), {}
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(_closed())
        ours = getattr(self._local, "ours", False)
        self._executor.shutdown(wait=not ours and not _in_a_loop())

    def _serve(self) -> None:
        self._local.ours = True
        while True:
            with self._lock:
                future = next(iter(self._queue), None)
                if future is None:
                    self._serving -= 1
                    return
                work = self._queue.pop(future)
            if future.set_running_or_notify_cancel():
                try:
                    answer = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(answer)
            del future, work  # nothing of the caller's is kept while there is nothing to do


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _closed() -> ClosedError:
    return ClosedError("the memory is closed: open it, or connect, again")


def _threads(memory: Memory) -> Threads:
    pid = os.getpid()
    # Two threads may both find none: one of their answers stays, the other never starts a thread.
    threads = memory._threads.get(pid) or memory._threads.setdefault(
        pid, Threads(memory._threads_max)
    )
    if memory._closed_in == pid:
        raise _closed()
    return threads


async def _run(
    memory: Memory, call: Callable[..., T], deadline_s: float, *args: Any, **named: Any
) -> T:
    began, deadline_s = time.monotonic(), left(deadline_s)

    def work() -> T:
        until_s = deadline_s - (time.monotonic() - began)
        return call(*args, deadline_s=max(0.0, until_s), **named)

    threads = _threads(memory)
    future = threads.submit(work)
    over = _awaitable(future)
    try:
        done, _ = await asyncio.wait([over], timeout=deadline_s)
        if not done:
            if threads.withdraw(future):
                return call(*args, deadline_s=0.0, **named)
            await asyncio.wait([over])
        return future.result()
    except asyncio.CancelledError:
        if not threads.withdraw(future):
            await _until_out(future, over)
            _let_go(memory, future)
        raise
    except BaseException:
        # GeneratorExit above all, when awaiting is no longer possible.
        if not threads.withdraw(future):
            concurrent.futures.wait([future])
            _let_go(memory, future)
        raise


def _awaitable(future: Future[Any]) -> asyncio.Future[None]:
    """Done once `future` is, whatever its answer; cancelling it leaves `future` alone."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake() -> None:
        if not over.done():
            over.set_result(None)

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(tell)
    return over


async def _until_out(future: Future[Any], over: asyncio.Future[None]) -> None:
    """Waits for the thread, however often the waiting task is cancelled again."""
    try:
        while not over.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([over])
    finally:
        concurrent.futures.wait([future])  # passes at once, unless the coroutine was closed


def _let_go(memory: Memory, future: Future[T]) -> None:
    """Nobody will see the answer: its lease, if it has one, ends now."""
    if future.cancelled() or future.exception() is not None:
        return
    found = future.result()
    if isinstance(found, Lookup) and found.lease is not None:
        with suppress(ClosedError):
            _threads(memory).submit(functools.partial(_release_quietly, found))


def _release_quietly(found: Lookup) -> None:
    with suppress(ClosedError):
        found.release()


class AsyncLookup(Lookup):
    """A lookup whose lease `async with` releases."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.lease is not None:
            with suppress(ClosedError):
                await self._space.aio.release(self, self._deadline_s)


class AsyncMemory:
    """`Memory` for asyncio."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def attach(
        self,
        namespace: Namespace,
        epoch: int | None = None,
        deadline_s: float = DEADLINE_S,
        *,
        ttl: float | str | None = None,
        priority: int | None = None,
    ) -> Space:
        """See `Memory.attach`."""
        attach = functools.partial(self._memory.attach, ttl=ttl, priority=priority)
        return await _run(self._memory, attach, deadline_s, namespace, epoch)

    async def stat(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """See `Memory.stat`."""
        return await _run(self._memory, self._memory.stat, deadline_s)

    async def close(self) -> None:
        """See `Memory.close`; returns when the calls under way have ended."""
        await asyncio.to_thread(self._memory.close)


class AsyncSpace:
    """`Space` for asyncio."""

    __slots__ = ("_space",)

    def __init__(self, space: Space) -> None:
        self._space = space

    async def _run(self, call: Callable[..., T], deadline_s: float, *args: Any) -> T:
        return await _run(self._space._memory, call, deadline_s, *args)

    async def lookup(
        self,
        keys: Keys,
        first_position: int | None = None,
        lease_s: float | None = LEASE_S,
        deadline_s: float = DEADLINE_S,
    ) -> AsyncLookup:
        """See `Space.lookup`; use `async with await space.aio.lookup(keys) as found`."""

        given_s = deadline_s

        def call(deadline_s: float) -> AsyncLookup:
            found = self._space.lookup(keys, first_position, lease_s, deadline_s)
            return AsyncLookup(found._found, self._space, given_s)

        return await self._run(call, deadline_s)

    async def get_into(
        self,
        keys: Keys,
        buffers: Buffers,
        part: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> list[Outcome]:
        """See `Space.get_into`."""
        return await self._run(self._space.get_into, deadline_s, keys, buffers, part)

    async def put_from(
        self,
        keys: Keys,
        buffers: Buffers,
        part: int = 0,
        engine_hashes: Sequence[int | None] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> list[Outcome]:
        """See `Space.put_from`."""
        call = self._space.put_from
        return await self._run(call, deadline_s, keys, buffers, part, engine_hashes)

    async def touch(self, keys: Keys, deadline_s: float = DEADLINE_S) -> int:
        """See `Space.touch`."""
        return await self._run(self._space.touch, deadline_s, keys)

    async def renew(
        self, found: Lookup | int, hold_s: float = LEASE_S, deadline_s: float = DEADLINE_S
    ) -> bool:
        """See `Space.renew`."""
        return await self._run(self._space.renew, deadline_s, found, hold_s)

    async def release(self, found: Lookup | int, deadline_s: float = DEADLINE_S) -> None:
        """See `Space.release`."""
        await self._run(self._space.release, deadline_s, found)

    async def report(
        self, key: BufferLike, generation: int, part: int = 0, deadline_s: float = DEADLINE_S
    ) -> Reported:
        """See `Space.report`."""
        return await self._run(self._space.report, deadline_s, key, generation, part)

    async def drop(self, keys: Keys | None = None, deadline_s: float = DEADLINE_S) -> int:
        """See `Space.drop`."""
        return await self._run(self._space.drop, deadline_s, keys)

    async def bump_epoch(self, epoch: int, deadline_s: float = DEADLINE_S) -> EpochOutcome:
        """See `Space.bump_epoch`."""
        return await self._run(self._space.bump_epoch, deadline_s, epoch)
