"""The state behind fake memories: a node's index, leases, epochs and quotas in plain Python.

Written to be read next to the contract, not to be fast: every rule of the real store that a
caller can see is here in the fewest lines that say it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from keepwarm import Event, Outcome, Reason, Status
from keepwarm.testing._fake_events import Ring

GRANULE_BYTES = 4096
INCOMPLETE_S = 30.0
LEASE_S_MAX = 10.0
LEASE_TOTAL_S_MAX = 60.0
LEASED_SHARE_MAX = 0.5
LEASED_SHARE_TENANT_MAX = 0.25
GHOSTS_MAX = 65_536

COUNTERS = (
    "lookup_hits",
    "reads",
    "read_bytes",
    "stored",
    "stored_bytes",
    "present",
    "pending",
    "evicted",
    "evicted_for_quota",
    "expired",
    "dropped",
    "corrupt",
    "leases_granted",
    "leases_refused",
    "leases_expired",
)

Name = tuple[bytes, bytes]
"""Fingerprint and key: a block's full name."""


class ManualClock:
    """Time that passes only when told: `advance` is the only way forward."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Lets this much time pass."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: time does not run backwards")
        self._now_s += seconds


@dataclass(slots=True)
class Block:
    """One entry: complete, and then visible, once all `wanted` parts are in."""

    tenant: str
    epoch: int
    wanted: int
    generation: int
    began_s: float
    parts: dict[int, bytes] = field(default_factory=dict)
    expires_s: float | None = None
    engine_hash: int | None = None
    hidden: bool = False
    priority: int = 1

    def complete(self) -> bool:
        """Whether all parts are in."""
        return len(self.parts) == self.wanted

    def size(self) -> int:
        """Arena bytes, whole granules."""
        return sum(granules(len(data)) * GRANULE_BYTES for data in self.parts.values())


@dataclass(frozen=True, slots=True)
class Lease:
    """Pins blocks until `ends_s`, at most until `last_s`; belongs to one handle."""

    owner: int
    names: tuple[Name, ...]
    epoch: int
    ends_s: float
    last_s: float
    bytes: int
    tenant: str


def granules(length: int) -> int:
    """Granules that hold `length` bytes."""
    return -(-length // GRANULE_BYTES)


class FakeNode:
    """What a node keeps. Several fake memories may share one, as replicas share a node."""

    def __init__(
        self,
        capacity_bytes: int,
        ttl_s: float | None = None,
        quotas: dict[str, int] | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        """`quotas` maps tenants to the bytes that they may hold; others may hold everything."""
        self.capacity_bytes = capacity_bytes
        self.ttl_s = ttl_s
        self.terms: dict[bytes, tuple[float | None, int | None]] = {}
        self.quotas = dict(quotas or {})
        self.clock = clock or ManualClock()
        self.counts: Counter[str] = Counter()
        self.incarnation = 1
        self.ring = Ring()
        self._generation = self._lease_number = 0
        self._blocks: OrderedDict[Name, Block] = OrderedDict()
        self._hidden: list[tuple[Name, Block]] = []
        self._ghosts: OrderedDict[Name, Reason] = OrderedDict()
        self._epochs: dict[bytes, int] = {}
        self._leases: dict[int, Lease] = {}

    def restart(self) -> None:
        """Loses everything that a node in memory loses; epochs survive."""
        self.incarnation += 1
        self._blocks.clear()
        self._hidden.clear()
        self._ghosts.clear()
        self._leases.clear()
        self.counts.clear()
        self.ring = Ring()

    # Epochs

    def epoch(self, fingerprint: bytes) -> int:
        """The namespace's epoch here."""
        return self._epochs.get(fingerprint, 0)

    def adopt(self, fingerprint: bytes, epoch: int) -> int:
        """Takes the larger epoch; older blocks are hidden at once. Returns the epoch."""
        if epoch > self.epoch(fingerprint):
            self._epochs[fingerprint] = epoch
            for name in [name for name in self._blocks if name[0] == fingerprint]:
                self._hide(name, Reason.EPOCH, told=False)
            self.ring.tell(fingerprint, Event("cleared", None, None, None))
        return self.epoch(fingerprint)

    def quiet(self, fingerprint: bytes, epoch: int) -> bool:
        """Whether no lease of an epoch older than this is left."""
        self.tick()
        return not any(
            lease.epoch < epoch and any(name[0] == fingerprint for name in lease.names)
            for lease in self._leases.values()
        )

    # Reading

    def miss(self, name: Name, epoch: int) -> Reason | None:
        """Why this block cannot be read; None when it can."""
        if self.adopt(name[0], epoch) != epoch:
            return Reason.EPOCH
        block = self._blocks.get(name)
        if block is None:
            return self._ghosts.get(name, Reason.ABSENT)
        return None if block.complete() else Reason.PENDING

    def read(self, name: Name, epoch: int, part: int) -> tuple[bytes, int] | Reason:
        """One part's bytes and generation, or why not."""
        self.tick()
        reason = self.miss(name, epoch)
        if reason is not None:
            return reason
        block = self._blocks[name]
        data = block.parts.get(part)
        return (data, block.generation) if data is not None else Reason.ABSENT

    def used(self, names: Iterable[Name]) -> int:
        """Makes these the most recently used, in the order given; returns how many are here."""
        here = [name for name in names if name in self._blocks]
        for name in here:
            self._blocks.move_to_end(name)
        return len(here)

    def generation(self, name: Name) -> int:
        """The generation of a block that is here."""
        return self._blocks[name].generation

    def length(self, name: Name) -> int:
        """Bytes of the first part of a block that is here."""
        return len(self._blocks[name].parts[0])

    # Leases

    def lease(self, owner: int, names: list[Name], seconds: float, tenant: str) -> int | None:
        """Pins blocks that are here; None when a cap is reached."""
        size = sum(self._blocks[name].size() for name in names)
        held = [lease for lease in self._leases.values() if lease.tenant == tenant]
        in_all = size + sum(lease.bytes for lease in self._leases.values())
        of_tenant = size + sum(lease.bytes for lease in held)
        if (
            in_all > LEASED_SHARE_MAX * self.capacity_bytes
            or of_tenant > LEASED_SHARE_TENANT_MAX * self.capacity_bytes
        ):
            self.counts["leases_refused"] += 1
            return None
        self._lease_number += 1
        now_s, epoch = self.clock.now_s(), self.epoch(names[0][0])
        ends_s, last_s = now_s + min(seconds, LEASE_S_MAX), now_s + LEASE_TOTAL_S_MAX
        lease = Lease(owner, tuple(names), epoch, ends_s, last_s, size, tenant)
        self._leases[self._lease_number] = lease
        self.counts["leases_granted"] += 1
        return self._lease_number

    def renew(self, owner: int, lease: int, seconds: float) -> bool:
        """Makes a lease of this owner hold from now; False when it has ended."""
        self.tick()
        held = self._leases.get(lease)
        if held is None or held.owner != owner:
            return False
        ends_s = min(self.clock.now_s() + min(seconds, LEASE_S_MAX), held.last_s)
        self._leases[lease] = replace(held, ends_s=ends_s)
        return True

    def release(self, owner: int, lease: int) -> None:
        """Ends a lease of this owner; harmless when it has ended."""
        held = self._leases.get(lease)
        if held is not None and held.owner == owner:
            del self._leases[lease]

    def release_all(self, owner: int) -> None:
        """Ends all leases of an owner, as a closed connection does."""
        for number in [n for n, lease in self._leases.items() if lease.owner == owner]:
            del self._leases[number]

    def _pinned(self) -> set[Name]:
        return {name for lease in self._leases.values() for name in lease.names}

    # Writing

    def put(
        self,
        name: Name,
        epoch: int,
        part: int,
        data: bytes,
        tenant: str,
        wanted: int,
        engine_hash: int | None = None,
    ) -> Outcome:
        """Stores one part, written once."""
        self.tick()
        if self.adopt(name[0], epoch) != epoch:
            return Outcome(Status.SHED, Reason.EPOCH)
        if not 0 <= part < wanted or not data:
            return Outcome(Status.SHED, Reason.INVALID)
        block = self._blocks.get(name)
        if block is not None and block.complete():
            same = len(block.parts[part]) == len(data)
            return Outcome(Status.PRESENT, None) if same else Outcome(Status.SHED, Reason.INVALID)
        if block is not None and part in block.parts:
            return Outcome(Status.PENDING, None)
        shed = self._make_room(name, granules(len(data)) * GRANULE_BYTES, tenant)
        if shed is not None:
            return Outcome(Status.SHED, shed)
        if block is None:
            self._generation += 1
            block = Block(tenant, epoch, wanted, self._generation, self.clock.now_s())
            self._blocks[name] = block
        block.parts[part] = data
        block.engine_hash = block.engine_hash or engine_hash
        if block.complete():
            self._ghosts.pop(name, None)
            self._tell("stored", name, block)
            asked_s, priority = self.terms.get(name[0], (None, None))
            block.priority = 1 if priority is None else priority
            ends = [ttl_s for ttl_s in (asked_s, self.ttl_s) if ttl_s is not None]
            if ends:
                block.expires_s = self.clock.now_s() + min(ends)
        self._blocks.move_to_end(name)
        self.counts["stored_bytes"] += len(data)
        return Outcome(Status.STORED, None)

    def _make_room(self, name: Name, size: int, tenant: str) -> Reason | None:
        if size > self.capacity_bytes:
            return Reason.TOO_LARGE
        quota = self.quotas.get(tenant)
        if quota is not None:
            if size > quota:
                return Reason.QUOTA
            while self.used_bytes(tenant) + size > quota:
                if not self._evict(name, tenant, Reason.QUOTA):
                    return Reason.QUOTA
        while self.used_bytes() + size > self.capacity_bytes:
            if not self._evict(name, None, Reason.EVICTED):
                return Reason.LEASED
        return None

    def _evict(self, spared: Name, tenant: str | None, reason: Reason) -> bool:
        pinned = self._pinned()
        for name, block in self._in_order():
            if name == spared or name in pinned or (tenant is not None and block.tenant != tenant):
                continue
            del self._blocks[name]
            if block.complete():
                self._tell("removed", name, block)
            self._remember(name, reason)
            for_quota = reason is Reason.QUOTA
            self.counts["evicted_for_quota" if for_quota else "evicted"] += 1
            return True
        return False

    def _in_order(self) -> list[tuple[Name, Block]]:
        """As they leave: lowest priority first, down to an eighth of what the tenant has."""
        held: Counter[tuple[str, int]] = Counter()
        every: Counter[str] = Counter()
        for block in self._blocks.values():
            held[block.tenant, block.priority] += block.size()
            every[block.tenant] += block.size()

        def late(entry: tuple[Name, Block]) -> tuple[bool, int]:
            block = entry[1]
            floor = every[block.tenant] / 8
            return held[block.tenant, block.priority] <= floor, block.priority

        return sorted(self._blocks.items(), key=late)

    def agree(self, fingerprint: bytes, ttl_s: float | None, priority: int | None) -> None:
        """What an attach asks for; what it does not name stays."""
        before = self.terms.get(fingerprint, (None, None))
        self.terms[fingerprint] = (
            before[0] if ttl_s is None else ttl_s,
            before[1] if priority is None else priority,
        )

    def used_bytes(self, tenant: str | None = None) -> int:
        """Arena bytes in use, hidden blocks included."""
        held = [*self._blocks.values(), *(block for _, block in self._hidden)]
        return sum(block.size() for block in held if tenant in (None, block.tenant))

    # Removing

    def drop(self, fingerprint: bytes, keys: Iterable[bytes] | None) -> int:
        """Removes these blocks, or all of the namespace, and every memory of them."""
        if keys is None:
            names = [name for name in self._blocks if name[0] == fingerprint]
            self.ring.tell(fingerprint, Event("cleared", None, None, None))
            for name in [name for name in self._ghosts if name[0] == fingerprint]:
                del self._ghosts[name]
        else:
            names = [(fingerprint, key) for key in keys]
        gone = 0
        for name in names:
            self._ghosts.pop(name, None)
            if name in self._blocks:
                gone += self._blocks[name].complete()
                self._hide(name, None, told=keys is not None)
        self.counts["dropped"] += gone
        return gone

    def corrupt(self, name: Name) -> None:
        """Removes a block whose bytes were found to be bad."""
        if name in self._blocks:
            self._hide(name, None)
            self.counts["corrupt"] += 1

    def _hide(self, name: Name, reason: Reason | None, told: bool = True) -> None:
        block = self._blocks.pop(name)
        if told and block.complete():
            self._tell("removed", name, block)
        block.hidden = True
        self._hidden.append((name, block))
        if reason is not None:
            self._remember(name, reason)
        self._free_hidden()

    def _tell(self, kind: Literal["stored", "removed"], name: Name, block: Block) -> None:
        tier = "dram" if kind == "removed" else None
        self.ring.tell(name[0], Event(kind, name[1], block.engine_hash, tier))

    def present(self, fingerprint: bytes) -> list[Event]:
        """The visible blocks of a namespace, as a snapshot tells them."""
        return [
            Event("stored", name[1], block.engine_hash, None)
            for name, block in self._blocks.items()
            if name[0] == fingerprint and block.complete()
        ]

    def _remember(self, name: Name, reason: Reason) -> None:
        self._ghosts[name] = reason
        self._ghosts.move_to_end(name)
        if len(self._ghosts) > GHOSTS_MAX:
            self._ghosts.popitem(last=False)

    def _free_hidden(self) -> None:
        pinned = self._pinned()
        self._hidden = [(name, block) for name, block in self._hidden if name in pinned]

    def tick(self) -> None:
        """Ends leases, incomplete blocks and times to live that are over."""
        now = self.clock.now_s()
        for number in [n for n, lease in self._leases.items() if lease.ends_s <= now]:
            del self._leases[number]
            self.counts["leases_expired"] += 1
        self._free_hidden()
        for name, block in list(self._blocks.items()):
            if block.expires_s is not None and block.expires_s <= now:
                self._hide(name, Reason.EXPIRED)
                self.counts["expired"] += 1
            elif not block.complete() and block.began_s + INCOMPLETE_S <= now:
                self._hide(name, None)

    def stat(self) -> dict[str, Any]:
        """Figures under the names that a real node gives them; a part of its."""
        self.tick()
        pinned = self._pinned()
        held = [block.size() for name, block in self._blocks.items() if name in pinned]
        figures: dict[str, Any] = {
            "incarnation": self.incarnation,
            "policy": "lru",
            "capacity_bytes": self.capacity_bytes,
            "used_bytes": self.used_bytes(),
            "blocks": len(self._blocks) + len(self._hidden),
            "leases": len(self._leases),
            "leased_bytes": sum(held),
            "reads_in_flight": 0,
            **{name: self.counts[name] for name in COUNTERS},
        }
        return figures
