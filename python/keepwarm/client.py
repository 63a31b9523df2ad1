"""A memory and its spaces: what an engine, a connector or an operator's script calls.

On the path of a request (`lookup`, `get_into`, `put_from`, `touch`, `renew`, `release`, `report`)
a node that is dead, slow, full or restarted is an outcome, never an exception. `drop`, `stat` and
`subscribe` raise `NodeError`, since who asks for those must know.

Every call has a deadline, in seconds; one that is negative, or NaN, has passed already. When a call
returns, nothing of Keepwarm still touches the buffers that it was given.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, Union

from keepwarm import _core
from keepwarm.arguments import left, real, whole
from keepwarm.config import terms
from keepwarm.errors import ArgumentError, AttachError, ClosedError
from keepwarm.identity import BufferLike, Namespace
from keepwarm.outcomes import (
    EpochOutcome,
    Lookup,
    Outcome,
    Reported,
    Since,
    Subscription,
    nest,
    outcomes,
)
from keepwarm.prompt import Keys, unpack

if TYPE_CHECKING:
    from keepwarm.aio import AsyncMemory, AsyncSpace, Threads

Buffers: TypeAlias = Union[BufferLike, tuple[int, int], "Sequence[BufferLike | tuple[int, int]]"]
"""One buffer (or (pointer, length)) that is split evenly over the keys, or one for each key."""

Transport: TypeAlias = Literal["auto", "shm", "unix"]
"""How bytes travel between a process and a node on its machine."""

LEASE_S = 2.0
DEADLINE_S = 1.0


def outdated(asked: int, current: int) -> str:
    """Why a node refuses a smaller epoch than its own."""
    return (
        f"the namespace is at epoch {current} and epoch {asked} was asked for: what this process "
        "computes is out of date; load the current weights, or attach without an epoch"
    )


class Embedded(NamedTuple):
    """A store in this process, and how long its end may take to write to flash."""

    store: _core.Store
    drain_s: float | None


class Memory:
    """A way to a store; safe to share between threads, and usable in a forked child.

    An embedded memory stays with its parent on a fork: in the child its calls miss.
    """

    def __init__(self, core: _core.Memory, threads: int, embedded: Embedded | None = None) -> None:
        self._core = core
        self._embedded = embedded
        self._opened_in = os.getpid()
        self._threads_max = threads
        # No locks here: a fork may catch them held by a thread that the child does not have. A step
        # of a dict is atomic.
        self._threads: dict[int, Threads] = {}  # by process
        self._closed_in: int | None = None
        self._spaces: weakref.WeakValueDictionary[int, Space] = weakref.WeakValueDictionary()

    def attach(
        self,
        namespace: Namespace,
        epoch: int | None = None,
        deadline_s: float = DEADLINE_S,
        *,
        ttl: float | str | None = None,
        priority: int | None = None,
    ) -> Space:
        """Opens a namespace. A node that is there and refuses it raises `AttachError`.

        Without `epoch` the space takes the node's. A given one says with which weights the caller
        computes: the node moves to a larger one, and refuses a smaller one.

        `ttl` (seconds, or text such as 90m) and `priority` (0 leaves memory first, 3 last; 1 if
        nobody says) hold for all blocks of the namespace that are stored from then on, whoever
        stores them, until an attach names others. The node's configuration bounds both.

        A node that is not there is no error: calls miss until it is; if it refuses then, they
        miss with `identity`, and `Space.problem` says why.
        """
        if not isinstance(namespace, Namespace):
            raise ArgumentError(
                f"namespace is {type(namespace).__name__}: pass a keepwarm.Namespace"
            )
        if self._core.health()["state"] == "closed":
            raise ClosedError("the memory is closed: open it, or connect, again")
        asked = 0 if epoch is None else whole("epoch", epoch, 32)
        ttl_s, priority = terms(ttl, priority)
        core = self._core.attach(namespace._core, asked, left(deadline_s), ttl_s, priority)
        if epoch is not None and core.epoch > asked:
            current = core.epoch
            core.close()
            raise AttachError(outdated(asked, current))
        space = Space(self, core, namespace)
        self._spaces[id(space)] = space
        return space

    def stat(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The node's figures: the store's by name, `tenants`, `namespaces`, and the server's."""
        return nest(self._core.stat(left(deadline_s)))

    def health(self) -> dict[str, Any]:
        """How it stands with the node: state (up, down, closed), transport, last_error, node.

        `fallback` says why a node on this machine is not reached by shared memory. Of several nodes
        it is up if any is, and `nodes` has a row for each: name, state, share, weight, last_error.
        """
        return {**self._core.health(), "nodes": self._core.nodes()}

    def counts(self) -> dict[str, Any]:
        """What this client has seen in this process, and how its bytes travelled."""
        return self._core.counts()

    @property
    def aio(self) -> AsyncMemory:
        """The same calls for asyncio."""
        from keepwarm.aio import AsyncMemory

        return AsyncMemory(self)

    def close(self) -> None:
        """Ends connections and threads; calls under way end by their deadlines, leases by theirs.

        A memory with flash of its own first writes there what it alone holds (see `open`).

        Waits for those of `aio`, but not where an event loop runs: `await memory.aio.close()`.
        Later calls, and those that wait for a thread, raise `ClosedError`. Twice is harmless.
        """
        self._closed_in = os.getpid()
        self._core.close()
        threads = self._threads.pop(self._closed_in, None)
        if threads is not None:
            threads.close()
        for reference in self._spaces.valuerefs():
            space = reference()
            if space is not None:
                space._core.close()
        embedded, self._embedded = self._embedded, None
        if embedded is not None and self._opened_in == self._closed_in:
            if embedded.drain_s is not None:
                embedded.store.drain_flash(embedded.drain_s)
            embedded.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        health = self._core.health()
        return f"<keepwarm.Memory {health['transport']} {health['state']}>"


class Space:
    """One namespace in a memory."""

    def __init__(self, memory: Memory, core: _core.Space, namespace: Namespace) -> None:
        self._memory = memory
        self._core = core
        self.namespace = namespace

    @property
    def epoch(self) -> int:
        """The epoch of this space's requests."""
        return self._core.epoch

    @property
    def joined(self) -> bool:
        """Whether a node has accepted the namespace at least once."""
        return self._core.joined

    @property
    def problem(self) -> str | None:
        """Why the node refuses the namespace, if it does."""
        return self._core.problem

    @property
    def behind(self) -> list[str]:
        """The nodes that have not acknowledged the epoch of the last `bump_epoch`."""
        return self._core.behind

    @property
    def nearest(self) -> str | None:
        """How the namespace differs from the most similar one on the node: explains zero hits."""
        return self._core.nearest

    def lookup(
        self,
        keys: Keys,
        first_position: int | None = None,
        lease_s: float | None = LEASE_S,
        deadline_s: float = DEADLINE_S,
    ) -> Lookup:
        """Which of a prompt's blocks are here, in one round trip; not a use of them.

        `first_position` is the place of plain keys' first one in its prompt, in blocks; a `Prompt`
        knows its own. The lease pins all hits for up to 10 s; None asks for none. Use the answer in
        a `with` statement, which releases the lease, in no more time than the lookup had.
        """
        plain, at = unpack(keys, self.namespace)
        if first_position is not None:
            position = whole("first_position", first_position, 63)
            if at is not None and at[0] != position:
                raise ArgumentError(
                    f"first_position is {position} for {keys!r}: a prompt knows its own"
                )
            at = at or (position, b"")
        lease = None if lease_s is None else real("lease_s", lease_s)
        found = self._core.lookup(plain, at, lease, left(deadline_s))
        return Lookup(found, self, deadline_s)

    def get_into(
        self,
        keys: Keys,
        buffers: Buffers,
        part: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> list[Outcome]:
        """Lands one part of each block in the caller's memory; one outcome per key.

        `buffers` is one writable buffer that is split evenly, or a sequence with one writable
        buffer or (pointer, length) per key, each exactly as long as its part: one of another
        length is a miss with `identity`, though `Space.problem` is None. Where the outcome is not
        `ok` the content is undefined. Nobody else may use the memory until this returns.
        """
        plain, at = unpack(keys, self.namespace)
        codes = self._core.get_into(plain, buffers, _part(part), at, left(deadline_s))
        return outcomes(codes)

    def put_from(
        self,
        keys: Keys,
        buffers: Buffers,
        part: int = 0,
        engine_hashes: Sequence[int | None] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> list[Outcome]:
        """Stores one part of each block, in prompt order; one outcome per key.

        `buffers` as in `get_into`, read-only ones too. `engine_hashes` are the engine's own 64-bit
        names of the blocks, for those who follow events. Nobody may write the memory until this
        returns.
        """
        if engine_hashes is not None and not isinstance(engine_hashes, Iterable):
            raise ArgumentError(
                f"engine_hashes is {engine_hashes!r}: pass one number, or None, a key"
            )
        hashes = None if engine_hashes is None else list(engine_hashes)
        for place, value in enumerate(hashes or ()):
            if value is not None:
                whole(f"engine_hashes[{place}]", value, 64)
        plain, at = unpack(keys, self.namespace)
        codes = self._core.put_from(plain, buffers, _part(part), hashes, at, left(deadline_s))
        return outcomes(codes)

    def touch(self, keys: Keys, deadline_s: float = DEADLINE_S) -> int:
        """Tells which prefix was used; returns how many of its blocks are here (0: no answer)."""
        plain, at = unpack(keys, self.namespace)
        return self._core.touch(plain, at, left(deadline_s)) or 0

    def renew(
        self, found: Lookup | int, hold_s: float = LEASE_S, deadline_s: float = DEADLINE_S
    ) -> bool:
        """Makes a lease hold for `hold_s` from now, at most 10 s, and 60 s in all.

        False: it has ended, or the node did not answer.
        """
        lease = _lease(found)
        hold_s, left_s = real("hold_s", hold_s), left(deadline_s)
        return lease is not None and bool(self._core.renew(lease, hold_s, left_s))

    def release(self, found: Lookup | int, deadline_s: float = DEADLINE_S) -> None:
        """Ends a lease. If the node is not reached, it ends by itself."""
        lease = _lease(found)
        if lease is not None:
            self._core.release(lease, left(deadline_s))

    def report(
        self,
        key: BufferLike,
        generation: int,
        part: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> Reported:
        """Tells the node that a block's bytes are bad. What a get finds out it reports itself."""
        number = whole("generation", generation, 32)
        said = self._core.report(key, _part(part), number, left(deadline_s))
        return Reported.NOT_REACHED if said is None else Reported(said)

    def drop(self, keys: Keys | None = None, deadline_s: float = DEADLINE_S) -> int:
        """Removes blocks, without `keys` all of the namespace's; returns how many were here.

        They are hidden at once, on every node; one that is not reached raises `NodeError` by its
        name. Leased bytes are freed when their leases end.
        """
        plain = None if keys is None else unpack(keys, self.namespace)[0]
        return self._core.drop(plain, left(deadline_s))

    def bump_epoch(self, epoch: int, deadline_s: float = DEADLINE_S) -> EpochOutcome:
        """Moves the namespace, and this space with it, to a larger epoch: hides all older blocks.

        Waits up to the deadline for leases of older epochs to end. Of several nodes all must
        acknowledge; `behind` names those that have not.
        """
        number = whole("epoch", epoch, 32)
        return EpochOutcome(self._core.bump_epoch(number, left(deadline_s)))

    def subscribe(
        self,
        since: Since | None = None,
        wait_s: float = 1.0,
        deadline_s: float = DEADLINE_S,
    ) -> Subscription:
        """Follows what happens in the namespace, from `since` on if the node still knows.

        Else, and without `since`, a snapshot of what is here comes first. Of several nodes each
        batch names its own, and the subscription ends when one of them goes: subscribe again.
        """
        places = _places(since)
        wait_s = real("wait_s", wait_s)
        return Subscription(self._core.subscribe(places, left(deadline_s)), wait_s)

    @property
    def aio(self) -> AsyncSpace:
        """The same calls for asyncio."""
        from keepwarm.aio import AsyncSpace

        return AsyncSpace(self)

    def __repr__(self) -> str:
        return f"<keepwarm.Space {self.namespace!r} in {self._memory!r}>"


def _places(since: Since | None) -> list[tuple[str, int, int]]:
    if since is None:
        return []
    if not isinstance(since, Mapping):
        return [("", *_place(since))]
    return [(str(name), *_place(place)) for name, place in since.items()]


def _place(since: tuple[int, int]) -> tuple[int, int]:
    try:
        incarnation, sequence = since
    except (TypeError, ValueError):
        raise ArgumentError(f"since is {since!r}: pass (incarnation, sequence)") from None
    return whole("since[0]", incarnation, 64), whole("since[1]", sequence, 64)


def _part(part: int) -> int:
    return whole("part", part, 8)


def _lease(found: Lookup | int) -> int | None:
    return found.lease if isinstance(found, Lookup) else whole("lease", found, 64)
