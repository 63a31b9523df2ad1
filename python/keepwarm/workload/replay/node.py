"""A replay against a bare node: requests go to client processes, and what they saw adds up.

    trace ──► due times ──► one bounded queue ──► clients (processes) ──► node
                                                       │
                             counts and histograms ◄───┘  held against the node's own counters

A request waits in the queue only while all clients are busy, which is told as `lag` and is part of
every latency from the due time. Beyond the bound it is not sent and counted so.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import keepwarm
from keepwarm.errors import ArgumentError, KeepwarmError, NodeError
from keepwarm.workload.replay.endpoints import LAG_S_MAX, SCHEMA
from keepwarm.workload.replay.histograms import Latencies
from keepwarm.workload.replay.node_client import (
    CALLS,
    DONE,
    LAST,
    READY,
    Counts,
    Job,
    namespace_of,
)
from keepwarm.workload.replay.schedule import Arrival
from keepwarm.workload.replay.sending import LEAD_S, Progress

CLIENT = "keepwarm.workload.replay.node_client"
CLIENTS_MAX = 128
BLOCK_BYTES_MAX = 64 << 20
START_S_MAX = 30.0
END_S_MAX = 10.0
CALLS_OF_A_REQUEST_MAX = 64
STAT_S = 10.0
GIB = 1 << 30
#: Counters that a node and its clients must agree on, as both call them.
AGREED = ("lookup_hits", "lookup_after_miss", "reads", "read_bytes", "stored", "stored_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One replay. `closed` ignores arrival times: each client takes the next request at once."""

    address: str
    arrivals: Callable[[], Iterator[Arrival]]
    block_tokens: int
    block_bytes: int = 1 << 20
    clients: int = 1
    closed: bool = False
    keep: bool = False
    deadline_s: float = 5.0
    waiting_max: int = 1024
    lag_s_max: float = LAG_S_MAX
    tenant: str = "default"
    secret: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= CLIENTS_MAX:
            raise ArgumentError(f"{self.clients} clients: give 1 to {CLIENTS_MAX}")
        if not 1 <= self.block_bytes <= BLOCK_BYTES_MAX:
            raise ArgumentError(
                f"blocks of {self.block_bytes} bytes: give 1 to {BLOCK_BYTES_MAX >> 20} MiB"
            )

    def settings(self) -> dict[str, Any]:
        """What a client is told."""
        return {
            "address": self.address,
            "block_bytes": self.block_bytes,
            "block_tokens": self.block_tokens,
            "deadline_s": self.deadline_s,
            "tenant": self.tenant,
            "secret": self.secret,
        }


async def replay_node(
    plan: NodePlan, stop: asyncio.Event | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Replays a trace; NodeError where the node is not there, ClientError where a client ends.

    A node that goes meanwhile is a problem in the result, which is what clients saw. Without `keep`
    the namespace of replays is emptied before and after.
    """
    stop = stop or asyncio.Event()
    with keepwarm.connect(plan.address) as memory:
        space = memory.attach(namespace_of(plan.settings()))
        if not plan.keep:
            space.drop(deadline_s=STAT_S)
        before = _figures(memory, plan.tenant)
        run = _Run(plan, stop, progress)
        await run.go()
        after = None
        with suppress(NodeError):
            after = _figures(memory, plan.tenant)
            if not plan.keep:
                space.drop(deadline_s=STAT_S)
    return _result(run, before, after)


class _Run:
    """The clients, the queue, and what came of it."""

    def __init__(self, plan: NodePlan, stop: asyncio.Event, progress: Progress | None) -> None:
        self.plan = plan
        self.stop = stop
        self.progress = progress
        self.counts = Counts()
        self.latencies: dict[str, Latencies] = {}
        self.not_sent = 0
        self.left_out = 0  # still in the queue when the replay was interrupted
        self.seconds = 0.0
        waiting = 1 if plan.closed else plan.waiting_max
        self._queue: asyncio.Queue[Job | None] = asyncio.Queue(waiting)

    async def go(self) -> None:
        clients: list[_Client] = []
        try:
            for _ in range(self.plan.clients):
                clients.append(await _Client.start(self.plan.settings()))
            for client in clients:
                await client.ready()
            begun = asyncio.get_running_loop().time()
            await self._all(clients)
            self.seconds = asyncio.get_running_loop().time() - begun
            for client in clients:
                self._take(await client.finish())
        finally:
            for client in clients:
                client.kill()
            for client in clients:
                await client.gone()

    async def _all(self, clients: list[_Client]) -> None:
        """Sends and serves. A client that fails ends the others, and the sending."""
        try:
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(self._serve(client))
                group.create_task(self._send())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time() + LEAD_S
        for sent, arrival in enumerate(self.plan.arrivals(), 1):
            due_s = start_s + arrival.due_s
            if not self.plan.closed:
                await self._until(due_s)
            if self.stop.is_set():
                break
            job = _job(arrival, due_s)
            if self.plan.closed:
                await self._queue.put(job)
            elif self._queue.full():
                self.not_sent += arrival.counted
            else:
                self._queue.put_nowait(job)
                await asyncio.sleep(0)
            if self.progress is not None:
                self.progress(sent, arrival.due_s)
        for _ in range(self.plan.clients):
            await self._queue.put(None)

    async def _until(self, due_s: float) -> None:
        if due_s <= asyncio.get_running_loop().time():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await self.stop.wait()

    async def _serve(self, client: _Client) -> None:
        while (job := await self._queue.get()) is not None:
            if self.stop.is_set():
                self.left_out += job.counted
                continue
            await client.serve(job, self.plan.closed)

    def _take(self, plain: Mapping[str, Any]) -> None:
        self.counts.add(plain["counts"])
        for name, each in plain["latencies"].items():
            self.latencies.setdefault(name, Latencies()).add(each)


class ClientError(KeepwarmError):
    """A client process of a replay ended, or did not answer."""


@dataclass(slots=True)
class _Client:
    """One process."""

    process: asyncio.subprocess.Process
    served_s_max: float

    @classmethod
    async def start(cls, settings: dict[str, Any]) -> _Client:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CLIENT), stdin=pipe, stdout=pipe, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        # Every call ends by its deadline; so does what makes a request of them.
        return cls(process, settings["deadline_s"] * CALLS_OF_A_REQUEST_MAX + START_S_MAX)

    async def ready(self) -> None:
        await self._answer(READY, START_S_MAX)

    async def serve(self, job: Job, closed: bool) -> None:
        """One request, to its end."""
        if closed:
            now_s = asyncio.get_running_loop().time()
            job = Job(now_s, job.number, job.input_tokens, job.counted, job.block_ids)
        assert self.process.stdin is not None
        with suppress(ConnectionError):  # told by the answer that does not come
            self.process.stdin.write(job.pack())
            await self.process.stdin.drain()
        await self._answer(DONE, self.served_s_max)

    async def finish(self) -> dict[str, Any]:
        """What it counted."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(LAST)
        try:
            async with asyncio.timeout(START_S_MAX):
                line = await self.process.stdout.read()
            found: dict[str, Any] = json.loads(line)
        except (TimeoutError, ValueError):
            raise ClientError("a client of the replay did not tell what it counted") from None
        return found

    async def _answer(self, wanted: bytes, patience_s: float) -> None:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(patience_s):
                got = await self.process.stdout.read(1)
        except TimeoutError:
            raise ClientError(
                f"a client of the replay did not answer within {patience_s:.0f} s"
            ) from None
        if got != wanted:
            raise ClientError("a client of the replay ended: what it said is above")

    def kill(self) -> None:
        """It has nothing to lose."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def gone(self) -> None:
        """Until it has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S_MAX):
                await self.process.wait()


def _job(arrival: Arrival, due_s: float) -> Job:
    whole = min(len(arrival.block_ids), arrival.input_tokens // arrival.block_tokens)
    ids = np.array(arrival.block_ids[:whole], np.uint64)  # its own: the batch may go
    return Job(due_s, arrival.number, arrival.input_tokens, arrival.counted, ids)


class _Figures(NamedTuple):
    """A tenant's counters, by the names that clients use, and whose they are."""

    counters: Counter[str]
    incarnations: list[int]  # of each node; another one after a restart


def _figures(memory: keepwarm.Memory, tenant: str) -> _Figures:
    stat = memory.stat(STAT_S)
    own = stat.get("tenants", {}).get(tenant)
    if own is None:
        raise NodeError(f"the node tells no figures of tenant {tenant!r}: see its principals")
    found: Counter[str] = Counter({name: own.get(name, 0) for name in (*AGREED, "present")})
    for table in ("lookup_misses", "shed"):
        for reason, count in own.get(table, {}).items():
            found[f"{table}.{reason}"] = count
    found["pending"] = own.get("pending", 0)
    return _Figures(found, [node["incarnation"] for node in stat.get("nodes") or [stat]])


#: What a client answers itself when no node does.
_CLIENTS_OWN = ("deadline", "store_down", "identity")


def _reconciled(seen: Mapping[str, int], before: Counter[str], after: Counter[str]) -> list[Any]:
    """Each counter as the clients and as the node have it."""
    names = {*before, *after, *seen} - {"lookups"}
    rows = []
    for name in sorted(names):
        if name.startswith("read_misses") or name.rpartition(".")[2] in _CLIENTS_OWN:
            continue
        mine, theirs = seen.get(name, 0), after[name] - before[name]
        if mine or theirs:
            rows.append({"counter": name, "clients": mine, "node": theirs, "equal": mine == theirs})
    return rows


def _result(run: _Run, before: _Figures, after: _Figures | None) -> dict[str, Any]:
    plan, counts = run.plan, run.counts
    rows, has_stayed = [], after is not None and after.incarnations == before.incarnations
    if after is not None and has_stayed:
        rows = _reconciled(counts.all_calls, before.counters, after.counters)
    moved = {"get": counts.read_bytes, "put": counts.put_bytes}
    return {
        "schema": SCHEMA,
        "kind": "keepwarm.workload.replay.node",
        "interrupted": run.stop.is_set(),
        "problems": _problems(run, has_stayed),
        "notes": _notes(run, rows),
        "loop": "closed" if plan.closed else "open",
        "lag_s_max": None if plan.closed else plan.lag_s_max,
        "node": plan.address,
        "clients": plan.clients,
        "block_bytes": plan.block_bytes,
        "block_tokens": plan.block_tokens,
        "deadline_s": plan.deadline_s,
        "began_empty": not plan.keep,
        "seconds": run.seconds,
        "requests": counts.requests,
        "warm_up_requests": counts.warm_up_requests,
        "not_sent": run.not_sent,
        "tokens": counts.tokens,
        "hit_rate": {
            "block": counts.hit_blocks.total() / counts.blocks if counts.blocks else None,
            "token": counts.hit_tokens / counts.tokens if counts.tokens else None,
        },
        "blocks_asked": counts.blocks,
        "hits_by_tier": dict(counts.hit_blocks),
        "misses_by_reason": dict(counts.missed_blocks.most_common()),
        "puts": dict(counts.puts.most_common()),
        "wrong_bytes": counts.wrong_bytes,
        "wrong_blocks": counts.wrong_blocks,
        "first_wrong_request": counts.first_wrong,
        "bytes": moved,
        # Of the time inside calls, all clients' added up: a client's own speed.
        "gib_per_s": {
            name: moved[name] / GIB / spent if (spent := counts.call_s.get(name)) else None
            for name in moved
        },
        "call_seconds": {name: counts.call_s.get(name, 0.0) for name in CALLS},
        "own_seconds": counts.own_s,
        "latencies_s": {name: each.plain() for name, each in run.latencies.items()},
        "reconciliation": rows,
        "agrees": has_stayed and all(row["equal"] for row in rows),
    }


def _problems(run: _Run, has_stayed: bool) -> list[str]:
    """What makes the command fail."""
    counts, found = run.counts, []
    if not has_stayed:
        found.append(
            "the node went away or was started anew during the replay: what it counted and held "
            "until then is lost, and what was asked meanwhile counts as misses"
        )
    if counts.wrong_bytes:
        found.append(
            f"{counts.wrong_bytes} wrong bytes in {counts.wrong_blocks} blocks, the first of them "
            f"in request {counts.first_wrong}: the node gave what was not stored"
        )
    lag = run.latencies["lag"].at(0.99)
    if not run.plan.closed and lag is not None and lag > run.plan.lag_s_max:
        calls = sum(counts.call_s.values())
        share = calls / (calls + counts.own_s) if calls + counts.own_s else 0.0
        found.append(
            f"the clients fell behind: 1 % of requests waited {lag:.3f} s or more for one "
            f"({run.plan.lag_s_max:g} s are allowed), which were {share:.0%} of their time in the "
            "node's calls: more --clients, or a lower --speed"
        )
    if not counts.requests:
        found.append("no request was counted")
    return found


def _notes(run: _Run, rows: list[Any]) -> list[str]:
    """What a reader should know before believing the figures."""
    found = []
    if run.plan.closed:
        found.append(
            "closed loop: each client asked again as soon as it was answered, so nothing here "
            "says how long requests would wait under a load of their own"
        )
    if run.stop.is_set():
        found.append(f"interrupted: {run.left_out} requests were still waiting and are left out")
    if run.not_sent:
        found.append(f"{run.not_sent} requests were not sent: {run.plan.waiting_max} were waiting")
    if any(not row["equal"] for row in rows):
        found.append("node and clients count differently: somebody else used this tenant meanwhile")
    if run.plan.keep:
        found.append("blocks of earlier replays were left in, and this one's are")
    return found
