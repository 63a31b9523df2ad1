"""What a fake node tells those who follow it: a bounded ring of events, and subscriptions to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from keepwarm import Event, EventBatch, NodeError

RING_MAX = 65_536


@dataclass(slots=True)
class Ring:
    """The last events of all namespaces; numbers go on when old ones are forgotten."""

    next_sequence: int = 0
    kept: deque[tuple[int, bytes, Event]] = field(default_factory=lambda: deque(maxlen=RING_MAX))

    def tell(self, fingerprint: bytes, event: Event) -> None:
        """Appends one event."""
        self.kept.append((self.next_sequence, fingerprint, event))
        self.next_sequence += 1

    def after(self, sequence: int) -> list[tuple[int, bytes, Event]] | None:
        """Events from this number on; None when some of them are forgotten."""
        oldest = self.kept[0][0] if self.kept else self.next_sequence
        if sequence < oldest:
            return None
        return [entry for entry in self.kept if entry[0] >= sequence]


class FakeSubscription:
    """An iterator of batches. It never waits: without news it yields an empty batch.

    It ends with NodeError once the node has restarted, as a lost connection does.
    """

    def __init__(
        self,
        ring: Callable[[], tuple[int, Ring]],
        fingerprint: bytes,
        present: Callable[[], Iterable[Event]],
        since: tuple[int, int] | None,
    ) -> None:
        self._ring, self._fingerprint, self._present = ring, fingerprint, present
        self._incarnation, log = ring()
        self._following: int | None = None
        self._snapshot_due = False
        if since is not None and since[0] == self._incarnation:
            known = log.after(since[1]) is not None
            self._following = since[1] if known else None

    @property
    def since(self) -> tuple[int, int] | None:
        """(incarnation, sequence) to go on from; None before a snapshot is complete."""
        return None if self._following is None else (self._incarnation, self._following)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventBatch:
        incarnation, ring = self._ring()
        if incarnation != self._incarnation:
            raise NodeError("the fake node has restarted: subscribe again")
        if self._snapshot_due:
            self._snapshot_due = False
            self._following = ring.next_sequence
            return EventBatch("snapshot", list(self._present()), True)
        news = None if self._following is None else ring.after(self._following)
        if news is None:
            self._snapshot_due = True
            return EventBatch("resync", [], False)
        self._following = ring.next_sequence
        mine = [event for _, fingerprint, event in news if fingerprint == self._fingerprint]
        return EventBatch("events", mine, False)

    def close(self) -> None:
        """Ends it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
