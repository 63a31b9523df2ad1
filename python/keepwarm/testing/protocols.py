"""The shapes that the real client and the fake one share, for functions that take either."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from keepwarm import EpochOutcome, Namespace, Outcome, Reason

if TYPE_CHECKING:
    from keepwarm.prompt import Keys


class LookupLike(Protocol):
    """An answer to a lookup; leaving it as a context manager releases its lease."""

    @property
    def prefix(self) -> int:
        """Hits before the first miss."""
        ...

    @property
    def hits(self) -> Sequence[bool]:
        """One a key."""
        ...

    @property
    def miss(self) -> Reason | None:
        """Why the first missing key is missing."""
        ...

    @property
    def lease(self) -> int | None:
        """What pins the hits, if anything does."""
        ...

    @property
    def lengths(self) -> Sequence[int]:
        """Bytes of each hit's first part; 0 for a miss."""
        ...

    @property
    def generations(self) -> Sequence[int]:
        """The version of each hit's place; 0 for a miss."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class SpaceLike(Protocol):
    """A namespace in a memory."""

    def lookup(
        self,
        keys: Keys,
        first_position: int | None = None,
        lease_s: float | None = 2.0,
        deadline_s: float = 1.0,
    ) -> LookupLike:
        """Which keys are here; not a use."""
        ...

    def get_into(
        self, keys: Keys, buffers: Any, part: int = 0, deadline_s: float = 1.0
    ) -> list[Outcome]:
        """Lands blocks in the caller's buffers."""
        ...

    def put_from(
        self,
        keys: Keys,
        buffers: Any,
        part: int = 0,
        engine_hashes: Sequence[int | None] | None = None,
        deadline_s: float = 1.0,
    ) -> list[Outcome]:
        """Stores blocks from the caller's buffers."""
        ...

    def touch(self, keys: Keys) -> int:
        """Marks the prefix that was used."""
        ...

    def bump_epoch(self, epoch: int, deadline_s: float = 1.0) -> EpochOutcome:
        """Moves the namespace to a larger epoch."""
        ...

    def drop(self, keys: Keys | None = None) -> int:
        """Removes blocks; without keys all of the namespace."""
        ...


class MemoryLike(Protocol):
    """A node, or an embedded store."""

    def attach(
        self,
        namespace: Namespace,
        epoch: int | None = None,
        *,
        ttl: float | str | None = None,
        priority: int | None = None,
    ) -> Any:
        """A `SpaceLike` for this namespace, and terms for what is stored in it from then on."""
        ...

    def stat(self) -> dict[str, Any]:
        """The node's counts."""
        ...

    def close(self) -> None:
        """Ends the handle and releases its leases."""
        ...
