"""The open loop: requests go out at their times, whatever becomes of those before them.

    due times ──► ready ahead of time (bounded) ──► one task a request and target ──► tallies

Bodies are made before they are due, so that making one does not delay another. A request whose
time has come while too many are under way is not sent and counted so; none is ever held back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from keepwarm.errors import KeepwarmError
from keepwarm.workload.replay.asking import Answer, ask
from keepwarm.workload.replay.bodies import Body
from keepwarm.workload.replay.schedule import Arrival
from keepwarm.workload.replay.tally import Tally
from keepwarm.workload.replay.targets import Replica

if TYPE_CHECKING:
    import aiohttp

LEAD_S = 0.05
AHEAD_MAX = 256
AHEAD_BYTES_MAX = 32 << 20
BURST = 16
KEEPALIVE_S = 3.0

Progress = Callable[[int, float], None]
"""Called with requests sent and seconds since the first was due."""


class Bodies(Protocol):
    """Makes what is sent; None for a request that cannot be."""

    def body(self, arrival: Arrival) -> Body | None: ...


@dataclass(frozen=True, slots=True)
class Sending:
    """How requests are sent. `headers` may hold secrets and is never shown."""

    timeout_s: float = 300.0
    in_flight_max: int = 1024
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class Sender:
    """One pass over a trace, at one or several targets side by side. Use it once."""

    arrivals: Iterator[Arrival]
    bodies: Bodies
    tallies: Sequence[Tally]
    sending: Sending
    stop: asyncio.Event
    progress: Progress | None = None
    unsuited: int = 0  # requests of which no body can be made
    _ready: deque[Body] = field(default_factory=deque)
    _ready_bytes: int = 0
    _exhausted: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _sessions: dict[Replica, aiohttp.ClientSession] = field(default_factory=dict)
    _start_s: float = 0.0

    async def run(self) -> None:
        """To the last answer, or until `stop` is set; then what is under way counts as cancelled.

        Every request ends by its own deadline, so this does too.
        """
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for tally in self.tallies:
                for replica in tally.target.replicas:
                    if replica not in self._sessions:
                        session = open_session(replica, self.sending.headers)
                        self._sessions[replica] = await stack.enter_async_context(session)
            self._start_s = loop.time() + LEAD_S
            try:
                await self._send_all()
                await self._answers()
            finally:
                await asyncio.sleep(0)  # one that never began would count nowhere
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        sent = burst = 0
        while not self.stop.is_set():
            await self._prepare()
            if not self._ready:
                return
            due_s = self._start_s + self._ready[0].arrival.due_s
            if due_s > loop.time():
                burst = 0
                await self._until(due_s)
                continue
            body = self._ready.popleft()
            self._ready_bytes -= len(body.data)
            self._send(body, due_s)
            sent, burst = sent + 1, burst + 1
            if self.progress is not None:
                self.progress(sent, body.arrival.due_s)
            if burst % BURST == 0:
                await asyncio.sleep(0)  # what was begun must get to its socket

    async def _prepare(self) -> None:
        """Makes bodies while there is time for it."""
        loop = asyncio.get_running_loop()
        while not self._exhausted and not self._is_full():
            if self._ready and self._start_s + self._ready[0].arrival.due_s <= loop.time():
                return
            arrival = next(self.arrivals, None)
            if arrival is None:
                self._exhausted = True
                return
            body = self.bodies.body(arrival)
            if body is None:
                self.unsuited += 1
                continue
            self._ready.append(body)
            self._ready_bytes += len(body.data)
            if len(self._ready) > 1:
                await asyncio.sleep(0)  # answers are read between two of them

    def _is_full(self) -> bool:
        return len(self._ready) >= AHEAD_MAX or self._ready_bytes >= AHEAD_BYTES_MAX

    async def _until(self, due_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await self.stop.wait()

    def _send(self, body: Body, due_s: float) -> None:
        # Each time another target is first.
        count, number = len(self.tallies), body.arrival.number
        for at in range(count):
            tally = self.tallies[(at + number) % count]
            chosen = tally.choose(body.arrival)
            if tally.in_flight >= self.sending.in_flight_max:
                tally.not_sent(body.arrival)
                continue
            tally.in_flight += 1
            tally.in_flight_max = max(tally.in_flight_max, tally.in_flight)
            task = asyncio.create_task(self._ask(tally, chosen, body, due_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, tally: Tally, chosen: int, body: Body, due_s: float) -> None:
        replica = tally.target.replicas[chosen]
        answer = Answer(due_s, asyncio.get_running_loop().time())
        gap = tally.gap.record if body.arrival.counted else _ignore
        url = replica.url + body.path
        try:
            session = self._sessions[replica]
            await ask(session, url, body.data, answer, self.sending.timeout_s, gap)
        finally:
            tally.in_flight -= 1
            tally.take(body, chosen, answer)

    async def _answers(self) -> None:
        """Until all have ended, or the replay is stopped."""
        answers = asyncio.gather(*self._tasks, return_exceptions=True)
        stopped = asyncio.create_task(self.stop.wait())
        try:
            waited: set[asyncio.Future[Any]] = {answers, stopped}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()


def _ignore(_: float) -> None:
    """A warm-up request's gaps."""


def open_session(replica: Replica, headers: dict[str, str]) -> aiohttp.ClientSession:
    """Connections to one replica; as many as requests are under way, kept for the next ones."""
    try:
        import aiohttp
    except ModuleNotFoundError:
        raise KeepwarmError(
            'the package aiohttp is missing: pip install "keepwarm[workload]"'
        ) from None
    # Shorter than servers keep theirs: one that is closing meanwhile would look like a failure.
    connector: aiohttp.BaseConnector
    if replica.socket is not None:
        connector = aiohttp.UnixConnector(replica.socket, limit=0, keepalive_timeout=KEEPALIVE_S)
    else:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        headers={
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            **headers,
        },
        auto_decompress=False,
        read_bufsize=1 << 18,
    )
