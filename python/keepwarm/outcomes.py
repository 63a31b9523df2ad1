"""What calls answer: outcomes and their reasons, lookups, events."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, cast

from keepwarm import _core
from keepwarm.errors import ClosedError

if TYPE_CHECKING:
    from keepwarm.client import Space


class Status(StrEnum):
    """How one block of a get or put ended."""

    OK = "ok"
    """got: the bytes are in the buffer and match their checksum"""
    PENDING = "pending"
    """another writer is at this block"""
    THROTTLED = "throttled"
    """the node sheds load; try again later"""
    MISS = "miss"
    """not got; the buffer's content is undefined"""
    STORED = "stored"
    """put: the bytes are in"""
    PRESENT = "present"
    """put: the block was here already"""
    SHED = "shed"
    """not put"""


class Reason(StrEnum):
    """Why a block was missed or shed; a closed list, the labels of the metrics."""

    ABSENT = "absent"
    """never stored here, or dropped, or long forgotten"""
    EVICTED = "evicted"
    """made room for others"""
    EXPIRED = "expired"
    """its time to live ended"""
    EPOCH = "epoch"
    """of another epoch than the one asked for"""
    QUOTA = "quota"
    """its tenant's quota leaves no room"""
    PENDING = "pending"
    """being written"""
    CORRUPT = "corrupt"
    """the bytes did not match their checksum"""
    THROTTLED = "throttled"
    """the node sheds load"""
    DEADLINE = "deadline"
    """not finished in time"""
    STORE_DOWN = "store_down"
    """the node is unreachable"""
    IDENTITY = "identity"
    """the node refused this namespace, and Space.problem says why; or, where that is None, a get's
    buffer is not as long as the block's part"""
    LEASED = "leased"
    """all that could make room is leased or being read"""
    WATERMARK = "watermark"
    """puts are shed because gets come first"""
    TOO_LARGE = "too_large"
    """larger than a block may be"""
    BUSY = "busy"
    """too many writes are under way"""
    INVALID = "invalid"
    """part or length does not fit the namespace or the other parts"""


class Outcome(NamedTuple):
    """How one block ended, and why if not well. Equal ones are one object."""

    status: Status
    reason: Reason | None = None


class Reported(StrEnum):
    """What a report of bad bytes led to."""

    REMOVED = "removed"
    """they are bad: the block is gone and the next put of it is stored"""
    INTACT = "intact"
    """they are good on the node: the way to it is suspect"""
    GONE = "gone"
    """that generation of the block is no longer there"""
    NOT_REACHED = "not_reached"
    """the node did not answer"""


class EpochOutcome(StrEnum):
    """How far a larger epoch got."""

    ACKNOWLEDGED = "acknowledged"
    """it holds; no get that starts now returns old bytes"""
    STILL_LEASED = "still_leased"
    """it holds; leases of a smaller one were left at the deadline"""
    NOT_REACHED = "not_reached"
    """the node did not answer"""


def _table() -> tuple[Outcome | None, ...]:
    table: list[Outcome | None] = [None] * 256
    for code, status, reason in _core.outcome_codes():
        table[code] = Outcome(Status(status), Reason(reason) if reason else None)
    return tuple(table)


_OUTCOMES = _table()
MISSES = {outcome.reason: outcome for outcome in _OUTCOMES if outcome and outcome[0] == Status.MISS}


def outcomes(codes: bytes) -> list[Outcome]:
    """The core's codes as interned outcomes."""
    # Every code that the core can answer is in the table: tests/test_outcomes.py.
    return [_OUTCOMES[code] for code in codes]  # type: ignore[misc]


class Lookup:
    """What a lookup found. As a context manager it releases its lease, within its own deadline.

    Lists have one entry per key, and are made once: `hits` says whether every part of the block is
    here, `tiers`, `lengths` (bytes of the first part) and `generations` are None or 0 for a miss.
    """

    __slots__ = ("_deadline_s", "_found", "_generations", "_hits", "_lengths", "_space", "_tiers")

    def __init__(self, found: _core.Found, space: Space, deadline_s: float) -> None:
        self._found = found
        self._space = space
        self._deadline_s = deadline_s
        self._hits: list[bool] | None = None
        self._tiers: list[str | None] | None = None
        self._lengths: list[int] | None = None
        self._generations: list[int] | None = None

    @property
    def prefix(self) -> int:
        """Hits before the first miss."""
        return self._found.prefix

    @property
    def miss(self) -> Reason | None:
        """Why the first missing key is missing; None when none is."""
        code = self._found.miss
        outcome = None if code is None else _OUTCOMES[code]
        return outcome.reason if outcome else None

    @property
    def hits(self) -> list[bool]:
        """Which keys are here."""
        if self._hits is None:
            self._hits = self._found.hits()
        return self._hits

    @property
    def tiers(self) -> list[str | None]:
        """Where each hit's bytes are: dram, flash or object."""
        if self._tiers is None:
            self._tiers = self._found.tiers()
        return self._tiers

    @property
    def lengths(self) -> list[int]:
        """Bytes of each hit's first part."""
        if self._lengths is None:
            self._lengths = self._found.lengths()
        return self._lengths

    @property
    def generations(self) -> list[int]:
        """Version of each hit's place, for `Space.report`."""
        if self._generations is None:
            self._generations = self._found.generations()
        return self._generations

    @property
    def lease(self) -> int | None:
        """What pins the hits; None where not asked for, nothing hit, or a cap is reached."""
        return self._found.lease

    @property
    def lease_s(self) -> float:
        """How long the lease could be relied on when the lookup returned; 0 without one."""
        return self._found.lease_s

    @property
    def restore_s(self) -> float:
        """Estimated time to restore the prefix."""
        return self._found.restore_s

    @property
    def epoch(self) -> int:
        """The namespace's epoch on the node."""
        return self._found.epoch

    @property
    def incarnation(self) -> int:
        """Which life of the node answered; 0 when none did."""
        return self._found.incarnation

    def release(self, deadline_s: float | None = None) -> None:
        """Ends the lease, within the lookup's deadline by default; harmless without one, or twice.

        If the node is not reached in time, it ends by itself.
        """
        if self._found.lease is not None:
            self._space.release(self, self._deadline_s if deadline_s is None else deadline_s)

    def __len__(self) -> int:
        return self._found.count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ClosedError):  # leases ended with the memory
            self.release()

    def __repr__(self) -> str:
        why = f" miss={self.miss}" if self.miss else ""
        lease = "leased" if self.lease is not None else "unleased"
        return f"<keepwarm.Lookup {self.prefix} of {len(self)} keys{why} {lease}>"


EventKind: TypeAlias = Literal["stored", "removed", "cleared"]
BatchKind: TypeAlias = Literal["events", "resync", "snapshot"]


class Event(NamedTuple):
    """What happened to a block, or to all of a namespace (`cleared`, without a key)."""

    kind: EventKind
    """stored, removed or cleared"""
    key: bytes | None
    engine_hash: int | None
    tier: str | None
    """the tier that a removed block left"""


class EventBatch(NamedTuple):
    """What a subscription yields.

    `events` go on where the last batch ended; without any, none came in time. After `resync`
    forget all that was known: `snapshot` batches follow with what is there now, until `last`.
    """

    kind: BatchKind
    """events, resync or snapshot"""
    events: list[Event]
    last: bool
    node: str | None = None
    """whose they are, where there are several"""


Since: TypeAlias = tuple[int, int] | Mapping[str, tuple[int, int]]
"""Where to go on, as (incarnation, sequence); of several nodes, by node."""


class Subscription:
    """Follows a namespace's events: an iterator of batches, one at least every `wait_s`.

    It ends with `NodeError` when the node is gone: subscribe again with `since`.
    """

    __slots__ = ("_core", "_wait_s")

    def __init__(self, core: _core.Subscription, wait_s: float) -> None:
        self._core = core
        self._wait_s = wait_s

    @property
    def since(self) -> Since | None:
        """(incarnation, sequence) to go on from; None before a snapshot is complete.

        Of several nodes, that by node.
        """
        places = self._core.since
        if places and not places[0][0]:
            return places[0][1:]
        return {name: (incarnation, sequence) for name, incarnation, sequence in places} or None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventBatch:
        kind, rows, last, node = self._core.next_batch(self._wait_s)
        events = [Event(cast(EventKind, what), key, h, tier) for what, key, h, tier in rows]
        return EventBatch(cast(BatchKind, kind), events, last, node)

    def close(self) -> None:
        """Ends it."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def nest(figures: dict[str, int | float | str]) -> dict[str, Any]:
    """The wire's dotted names as dictionaries: `tenant.a.bytes` is `["tenants"]["a"]["bytes"]`."""
    out: dict[str, Any] = {"tenants": {}, "namespaces": {}}
    nodes: dict[str, dict[str, Any]] = {}
    tenants = {
        name.removeprefix("tenant.").removesuffix(_OF_EVERY_TENANT)
        for name in figures
        if name.startswith("tenant.") and name.endswith(_OF_EVERY_TENANT)
    }
    for name, value in figures.items():
        head, _, rest = name.partition(".")
        if head == "store":
            _place(out, rest.split("."), value)
        elif head == "tenant":
            who, words = _tenant_figure(rest, tenants)
            _place(out["tenants"].setdefault(who, {}), words, value)
        elif head == "node":
            number, _, figure = rest.partition(".")
            nodes.setdefault(number, {})[figure] = value
        elif head == "namespace":
            number, _, figure = rest.partition(".")
            _place(out["namespaces"].setdefault(number, {}), [figure], value)
        elif head == "device":
            number, _, figure = rest.partition(".")
            _place(out.setdefault("devices", {}).setdefault(number, {}), [figure], value)
        else:
            _place(out.setdefault(head, {}), rest.split("."), value)
    if nodes:
        out["nodes"] = [_node(figures) for figures in nodes.values()]
    return out


def _node(figures: dict[str, Any]) -> dict[str, Any]:
    """One of several nodes: how it stands, and its own figures if it answered."""
    own = {
        name.removeprefix("figure."): value
        for name, value in figures.items()
        if name.startswith("figure.")
    }
    stands = {name: value for name, value in figures.items() if not name.startswith("figure.")}
    return {**stands, "figures": nest(own) if own else None}


_BY_REASON = frozenset({"lookup_misses", "read_misses", "shed", "flash_shed"})
_OF_EVERY_TENANT = ".bytes"  # a figure that each has, and that no reason is called


def _tenant_figure(name: str, tenants: set[str]) -> tuple[str, list[str]]:
    """A tenant's name, which may have dots and end as a figure does, and the figure's own words."""
    words = name.split(".")
    tabled = len(words) > 2 and words[-2] in _BY_REASON and words[-1] in _REASONS
    # `a.shed.pending` is of tenant a, or of a.shed: whichever there is.
    if tabled and (".".join(words[:-2]) in tenants or ".".join(words[:-1]) not in tenants):
        return ".".join(words[:-2]), words[-2:]
    return ".".join(words[:-1]), words[-1:]


_FLASH_SHED = ("queue", "late", "budget", "space", "index", "device", "too_large", "outdated")
_REASONS = frozenset({*(reason.value for reason in Reason), *_FLASH_SHED})


def _place(into: dict[str, Any], words: list[str], value: object) -> None:
    for word in words[:-1]:
        into = into.setdefault(word, {})
    into[words[-1]] = value
