"""A fake Memory and Space: no node, no threads, no waiting, and faults at the flick of a switch.

It is a *verified* fake: the checks of `keepwarm.testing.conformance` run against it, an embedded
store and a real node alike. Time is a `ManualClock`: leases, times to live and deadlines end when
the test says so. Where the real client leaves a destination undefined, the fake overwrites it, so
that code which uses bytes after a miss is found out.

>>> from keepwarm.testing import FakeMemory, namespace
>>> with FakeMemory() as memory:
...     names = namespace(block_tokens=4)
...     space = memory.attach(names)
...     keys = names.block_keys([1, 2, 3, 4])
...     stored = space.put_from(keys, b"some bytes")
...     memory.faults.dead = True
...     lost = space.get_into(keys, bytearray(10))
>>> stored[0].status, lost[0].reason
(<Status.STORED: 'stored'>, <Reason.STORE_DOWN: 'store_down'>)
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from keepwarm import (
    ArgumentError,
    AttachError,
    ClosedError,
    EpochOutcome,
    Namespace,
    NodeError,
    Outcome,
    Reason,
    Reported,
    Status,
)
from keepwarm.arguments import whole
from keepwarm.client import outdated
from keepwarm.config import terms
from keepwarm.prompt import Keys, unpack
from keepwarm.testing import _fake_arguments as arguments
from keepwarm.testing._fake_events import FakeSubscription
from keepwarm.testing._fake_node import FakeNode, ManualClock, Name

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["FakeLookup", "FakeMemory", "FakeNode", "FakeSpace", "FaultSwitches", "ManualClock"]

UNDEFINED_BYTE = 0xDB
_OWNERS = itertools.count(1)


@dataclass(slots=True)
class FaultSwitches:
    """What is wrong with the way to the node, for one fake memory; all may be set at any time.

    dead     every call answers store_down at once
    stalled  every call uses up its deadline on the clock and answers `deadline`
    slow_s   every call takes this long on the clock, and is a stall when its deadline is shorter
    corrupt  bytes never match their checksum: gets miss with `corrupt`, puts are shed with it
    full     puts are shed with `watermark`
    """

    dead: bool = False
    stalled: bool = False
    slow_s: float = 0.0
    corrupt: bool = False
    full: bool = False

    def clear(self) -> None:
        """All is well again."""
        self.dead = self.stalled = self.corrupt = self.full = False
        self.slow_s = 0.0


@dataclass(slots=True)
class FakeLookup:
    """The answer to a lookup; leaving it as a context manager releases its lease."""

    space: FakeSpace
    hits: list[bool]
    miss: Reason | None = None
    lease: int | None = None
    lengths: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    restore_s: float = 0.0
    deadline_s: float = 1.0

    @property
    def prefix(self) -> int:
        """Hits before the first miss."""
        return next((at for at, hit in enumerate(self.hits) if not hit), len(self.hits))

    @property
    def tiers(self) -> list[str | None]:
        """Where each hit's bytes are."""
        return ["dram" if hit else None for hit in self.hits]

    @property
    def epoch(self) -> int:
        """The namespace's epoch on the node."""
        return self.space.memory.node.epoch(self.space.namespace.fingerprint)

    def release(self, deadline_s: float | None = None) -> None:
        """Ends the lease, within the lookup's deadline by default.

        Harmless without one, or twice, or when the memory is closed.
        """
        with contextlib.suppress(ClosedError):
            self.space.release(self, self.deadline_s if deadline_s is None else deadline_s)

    def __len__(self) -> int:
        return len(self.hits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.release()


class FakeMemory:
    """A handle on a `FakeNode`; several handles may share one node, as replicas do."""

    def __init__(
        self,
        capacity_bytes: int = 64 << 20,
        node: FakeNode | None = None,
        ttl_s: float | None = None,
        quotas: dict[str, int] | None = None,
    ) -> None:
        """Makes a node of its own unless one is given."""
        self.node = node or FakeNode(capacity_bytes, ttl_s=ttl_s, quotas=quotas)
        self.faults = FaultSwitches()
        self._owner = next(_OWNERS)
        self._closed = False

    @property
    def clock(self) -> ManualClock:
        """The node's clock."""
        return self.node.clock

    def attach(
        self,
        namespace: Namespace,
        epoch: int | None = None,
        deadline_s: float = 1.0,
        *,
        ttl: float | str | None = None,
        priority: int | None = None,
    ) -> FakeSpace:
        """A space; the node moves to a larger epoch, and refuses a smaller one."""
        self.check_open()
        asked = 0 if epoch is None else whole("epoch", epoch, 32)
        ttl_s, priority = terms(ttl, priority)
        current = asked
        if self.fault(deadline_s) is None:
            current = self.node.adopt(bytes(namespace.fingerprint), asked)
            self.node.agree(bytes(namespace.fingerprint), ttl_s, priority)
        if epoch is not None and current > asked:
            raise AttachError(outdated(asked, current))
        return FakeSpace(self, namespace, current)

    def stat(self, deadline_s: float = 1.0) -> dict[str, Any]:
        """The node's figures. Raises NodeError when a fault keeps the node from answering."""
        self.check_open()
        self.answered(deadline_s)
        return self.node.stat()

    def fault(self, deadline_s: float) -> Reason | None:
        """What stands between a call and the node now; lets the time pass that it takes."""
        self.check_open()
        deadline_s = arguments.remaining(deadline_s)
        if self.faults.dead:
            return Reason.STORE_DOWN
        if self.faults.stalled or self.faults.slow_s > deadline_s or not deadline_s:
            self.clock.advance(deadline_s)
            return Reason.DEADLINE
        self.clock.advance(self.faults.slow_s)
        return None

    def answered(self, deadline_s: float) -> None:
        """Raises NodeError unless the node can be asked."""
        fault = self.fault(deadline_s)
        if fault is not None:
            raise NodeError(f"the fake node did not answer: {fault}")

    def health(self) -> dict[str, Any]:
        """How this handle sees its node."""
        up = "down" if self.faults.dead else "up"
        return {
            "state": "closed" if self._closed else up,
            "transport": "fake",
            "fallback": None,
            "last_error": "switched to dead" if self.faults.dead else None,
            "incarnation": self.node.incarnation,
            "node": "fake",
            "node_pid": None,
            "nodes": [],
        }

    def close(self) -> None:
        """Ends this handle and its leases; the node lives on. May be called twice."""
        self._closed = True
        self.node.release_all(self._owner)

    def check_open(self) -> None:
        """Raises ClosedError once the handle is closed."""
        if self._closed:
            raise ClosedError("the memory is closed; open or connect again")

    @property
    def owner(self) -> int:
        """Whose the leases are."""
        return self._owner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FakeSpace:
    """A namespace in a `FakeMemory`. Calls take no time but what the switches make of them."""

    def __init__(self, memory: FakeMemory, namespace: Namespace, epoch: int) -> None:
        self.memory = memory
        self.namespace = namespace
        self.epoch = epoch
        self.aio = FakeAsyncSpace(self)
        self.joined = True
        self.problem: str | None = None
        self.nearest: str | None = None
        self.behind: list[str] = []
        self._fingerprint = bytes(namespace.fingerprint)

    def lookup(
        self,
        keys: Keys,
        first_position: int | None = None,
        lease_s: float | None = 2.0,
        deadline_s: float = 1.0,
    ) -> FakeLookup:
        """Which keys are here; not a use. `lease_s` None asks for no lease."""
        names, lease_s = self._names(keys), arguments.lease(lease_s)
        if first_position is not None:
            whole("first_position", first_position, 63)
        fault = self.memory.fault(deadline_s)
        if fault is not None:
            miss = fault if names else None
            return FakeLookup(self, [False] * len(names), miss, deadline_s=deadline_s)
        node = self.memory.node
        node.tick()
        reasons = [node.miss(name, self.epoch) for name in names]
        found = FakeLookup(
            self,
            hits=[reason is None for reason in reasons],
            miss=next((reason for reason in reasons if reason is not None), None),
            lengths=[0 if why else node.length(n) for n, why in zip(names, reasons, strict=True)],
            generations=[
                0 if why else node.generation(n) for n, why in zip(names, reasons, strict=True)
            ],
            deadline_s=deadline_s,
        )
        hit = [name for name, reason in zip(names, reasons, strict=True) if reason is None]
        node.counts["lookup_hits"] += len(hit)
        if hit and lease_s is not None and lease_s > 0:
            owner, tenant = self.memory.owner, self.namespace.tenant
            found.lease = node.lease(owner, hit, lease_s, tenant)
        return found

    def get_into(
        self, keys: Keys, buffers: Any, part: int = 0, deadline_s: float = 1.0
    ) -> list[Outcome]:
        """Lands blocks in the caller's buffers; on any miss the destination is overwritten."""
        names, part = self._names(keys), whole("part", part, 8)
        views = arguments.views(buffers, len(names), writable=True)
        fault = self.memory.fault(deadline_s)
        outcomes = [
            Outcome(Status.MISS, fault) if fault is not None else self._get(name, view, part)
            for name, view in zip(names, views, strict=True)
        ]
        for outcome, view in zip(outcomes, views, strict=True):
            if outcome.status is not Status.OK:
                view[:] = bytes([UNDEFINED_BYTE]) * len(view)
        return outcomes

    def _get(self, name: Name, view: memoryview, part: int) -> Outcome:
        node = self.memory.node
        found = node.read(name, self.epoch, part)
        if isinstance(found, Reason):
            return _not_read(found)
        data, _ = found
        if len(data) != len(view):
            return Outcome(Status.MISS, Reason.IDENTITY)
        if self.memory.faults.corrupt:
            return Outcome(Status.MISS, Reason.CORRUPT)
        view[:] = data
        node.counts["reads"] += 1
        node.counts["read_bytes"] += len(data)
        node.used([name])
        return Outcome(Status.OK, None)

    def put_from(
        self,
        keys: Keys,
        buffers: Any,
        part: int = 0,
        engine_hashes: Sequence[int | None] | None = None,
        deadline_s: float = 1.0,
    ) -> list[Outcome]:
        """Stores blocks from the caller's buffers, then touches the batch tail first."""
        names, part = self._names(keys), whole("part", part, 8)
        for value in engine_hashes or ():
            if value is not None:
                whole("engine_hashes", value, 64)
        if engine_hashes is not None and len(engine_hashes) != len(names):
            raise ArgumentError(f"{len(engine_hashes)} engine hashes for {len(names)} keys")
        views = arguments.views(buffers, len(names), writable=False)
        fault = self.memory.fault(deadline_s)
        if fault is None and self.memory.faults.corrupt:
            fault = Reason.CORRUPT
        if fault is None and self.memory.faults.full:
            fault = Reason.WATERMARK
        if fault is not None:
            return [Outcome(Status.SHED, fault)] * len(names)
        node, namespace = self.memory.node, self.namespace
        outcomes = []
        hashes = engine_hashes or [None] * len(names)
        for name, view, hashed in zip(names, views, hashes, strict=True):
            data, tenant, wanted = bytes(view), namespace.tenant, namespace.parts
            outcome = node.put(name, self.epoch, part, data, tenant, wanted, hashed)
            node.counts[str(outcome.status)] += 1
            outcomes.append(outcome)
        node.used(reversed(names))
        return outcomes

    def touch(self, keys: Keys, deadline_s: float = 1.0) -> int:
        """Marks the prefix that was used, tail first; returns how many blocks are here."""
        names = self._names(keys)
        if self.memory.fault(deadline_s) is not None:
            return 0
        return self.memory.node.used(reversed(names))

    def renew(self, found: FakeLookup | int, hold_s: float = 2.0, deadline_s: float = 1.0) -> bool:
        """Makes a lease hold from now; False when it has ended or the node did not answer."""
        lease = found if isinstance(found, int) else found.lease
        if lease is None or self.memory.fault(deadline_s) is not None:
            return False
        return self.memory.node.renew(self.memory.owner, lease, hold_s)

    def release(self, found: FakeLookup | int, deadline_s: float = 1.0) -> None:
        """Ends a lookup's lease. Harmless when there is none or it has ended."""
        lease = found if isinstance(found, int) else found.lease
        if lease is not None and self.memory.fault(deadline_s) is None:
            self.memory.node.release(self.memory.owner, lease)

    def report(
        self, key: Buffer, generation: int, part: int = 0, deadline_s: float = 1.0
    ) -> Reported:
        """Tells the node that bytes did not match; a fake node's own bytes are always good."""
        names, part = self._names(key), whole("part", part, 8)
        whole("generation", generation, 32)
        if len(names) != 1:
            raise ArgumentError("key has not exactly 16 bytes: report one block at a time")
        if self.memory.fault(deadline_s) is not None:
            return Reported.NOT_REACHED
        found = self.memory.node.read(names[0], self.epoch, part)
        intact = not isinstance(found, Reason) and found[1] == generation
        return Reported.INTACT if intact else Reported.GONE

    def drop(self, keys: Keys | None = None, deadline_s: float = 1.0) -> int:
        """Removes blocks; without keys all of the namespace. Returns how many there were.

        Raises NodeError when a fault keeps the node from answering.
        """
        names = None if keys is None else arguments.keys_of(unpack(keys, self.namespace)[0])
        self.memory.answered(deadline_s)
        return self.memory.node.drop(self._fingerprint, names)

    def bump_epoch(self, epoch: int, deadline_s: float = 1.0) -> EpochOutcome:
        """Moves the namespace to a larger epoch; tells whether old leases have ended."""
        whole("epoch", epoch, 32)
        if self.memory.fault(deadline_s) is not None:
            return EpochOutcome.NOT_REACHED
        node = self.memory.node
        self.epoch = node.adopt(self._fingerprint, epoch)
        if not node.quiet(self._fingerprint, epoch):
            self.memory.clock.advance(arguments.remaining(deadline_s))
        quiet = node.quiet(self._fingerprint, epoch)
        return EpochOutcome.ACKNOWLEDGED if quiet else EpochOutcome.STILL_LEASED

    def subscribe(
        self,
        since: tuple[int, int] | None = None,
        wait_s: float = 1.0,  # noqa: ARG002 - the fake never waits
        deadline_s: float = 1.0,
    ) -> FakeSubscription:
        """Follows what happens in the namespace; without `since` a snapshot comes first."""
        self.memory.answered(deadline_s)
        node = self.memory.node
        return FakeSubscription(
            lambda: (node.incarnation, node.ring),
            self._fingerprint,
            lambda: node.present(self._fingerprint),
            since,
        )

    def _names(self, keys: Keys) -> list[Name]:
        self.memory.check_open()
        plain, _ = unpack(keys, self.namespace)
        return [(self._fingerprint, key) for key in arguments.keys_of(plain)]


class FakeAsyncSpace:
    """The asyncio twin: the same calls, awaitable; they still take no time."""

    def __init__(self, space: FakeSpace) -> None:
        self._space = space

    async def lookup(self, keys: Keys, *args: Any, **named: Any) -> FakeLookup:
        """See `FakeSpace.lookup`."""
        return self._space.lookup(keys, *args, **named)

    async def get_into(self, keys: Keys, *args: Any, **named: Any) -> list[Outcome]:
        """See `FakeSpace.get_into`."""
        return self._space.get_into(keys, *args, **named)

    async def put_from(self, keys: Keys, *args: Any, **named: Any) -> list[Outcome]:
        """See `FakeSpace.put_from`."""
        return self._space.put_from(keys, *args, **named)

    async def touch(self, keys: Keys, deadline_s: float = 1.0) -> int:
        """See `FakeSpace.touch`."""
        return self._space.touch(keys, deadline_s)

    async def renew(self, found: FakeLookup | int, hold_s: float = 2.0) -> bool:
        """See `FakeSpace.renew`."""
        return self._space.renew(found, hold_s)

    async def release(self, found: FakeLookup | int) -> None:
        """See `FakeSpace.release`."""
        self._space.release(found)

    async def drop(self, keys: Keys | None = None) -> int:
        """See `FakeSpace.drop`."""
        return self._space.drop(keys)


def _not_read(reason: Reason) -> Outcome:
    if reason is Reason.PENDING:
        return Outcome(Status.PENDING, None)
    return Outcome(Status.MISS, reason)
