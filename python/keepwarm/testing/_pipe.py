"""Proxied connections, one direction at a time: what is read, spoiled, held back and written on.

Nothing here waits: `release_at` tells the proxy's loop when to come back.

    source socket ──read──► held (reorder) ──► queue of (release time, bytes) ──write──► sink socket
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

QUEUE_BYTES_MAX = 1 << 20
REORDER_HOLD_S = 0.01
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Towards(Enum):
    """A direction."""

    NODE = "node"
    CLIENT = "client"


class Side(Enum):
    """An end of a proxied connection."""

    NODE = "node"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Faults:
    """What one direction does to the bytes that pass. Offsets count per connection, from zero.

    delay_s        each chunk leaves this much later than it came
    bytes_per_s    bandwidth limit
    cut_after      after this many bytes both sides are closed
    corrupt_at     the byte at this offset is inverted
    corrupt_every  every n-th byte is inverted
    stall          nothing is read and nothing leaves, as if the process were stopped; what was
                   held flows on when this is switched off
    reorder        neighbouring chunks change places; a lone one leaves after 10 ms
    chunk_bytes    most bytes read at once: the unit of delay and reorder
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    cut_after: int | None = None
    corrupt_at: int | None = None
    corrupt_every: int | None = None
    stall: bool = False
    reorder: bool = False
    chunk_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if self.delay_s < 0:
            raise ValueError(f"delay_s is {self.delay_s}: time does not run backwards")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ValueError("bytes_per_s must be positive: use stall to pass nothing")
        if self.corrupt_every is not None and self.corrupt_every < 1:
            raise ValueError("corrupt_every must be at least 1")
        if self.chunk_bytes < 1:
            raise ValueError("chunk_bytes must be at least 1")


@dataclass(slots=True)
class PipeStats:
    """Counts of one direction, over all connections of a proxy."""

    bytes_passed: int = 0
    bytes_corrupted: int = 0
    chunks_reordered: int = 0
    cuts: int = 0


@dataclass(slots=True)
class Pipe:
    """The state of one direction of one connection."""

    source: socket.socket | None
    sink: socket.socket | None
    stats: PipeStats
    swallow: bool = False
    ended: bool = False
    cut: bool = False
    _read: int = 0
    _queued: int = 0
    _free_at: float = 0.0
    _held: tuple[float, bytes] | None = None
    _queue: deque[tuple[float, memoryview]] = field(default_factory=deque)

    def wants_read(self, faults: Faults) -> bool:
        """Whether the source may be read now."""
        if self.source is None or self.ended or self.cut:
            return False
        return self.swallow or (not faults.stall and self._queued < QUEUE_BYTES_MAX)

    def release_at(self, faults: Faults) -> float | None:
        """When something may be written, None when nothing waits for time."""
        if faults.stall or self.sink is None:
            return None
        if self._queue:
            return self._queue[0][0]
        return None if self._held is None else self._held[0] + REORDER_HOLD_S

    def drained(self) -> bool:
        """Whether all that was read has been written."""
        return not self._queue and self._held is None

    def abandon(self) -> None:
        """The source is gone: nothing more will come, and what came is not passed on."""
        self.ended = True
        self.abandon_queue()

    def abandon_queue(self) -> None:
        """Forgets what was read and not yet written."""
        self._queue.clear()
        self._queued, self._held = 0, None

    def read(self, faults: Faults, now: float) -> None:
        """Takes one chunk from the source. Raises OSError when the source is broken."""
        assert self.source is not None
        try:
            data = self.source.recv(faults.chunk_bytes)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self.ended = True
            self._unhold(faults, now)
            return
        if not self.swallow:
            self._take(faults, now, self._spoil(faults, data))

    def _spoil(self, faults: Faults, data: bytes) -> bytes:
        start, end = self._read, self._read + len(data)
        if faults.cut_after is not None and end > faults.cut_after:
            end = max(start, faults.cut_after)
            data = data[: end - start]
            self.cut = True
            self.stats.cuts += 1
        places = set()
        if faults.corrupt_at is not None and start <= faults.corrupt_at < end:
            places.add(faults.corrupt_at - start)
        if faults.corrupt_every is not None:
            every = faults.corrupt_every
            places.update(range((-start - 1) % every, end - start, every))
        if places:
            spoiled = bytearray(data)
            for place in places:
                spoiled[place] ^= 0xFF
            data = bytes(spoiled)
            self.stats.bytes_corrupted += len(places)
        self._read = end
        return data

    def _take(self, faults: Faults, now: float, data: bytes) -> None:
        if not faults.reorder or self.cut:
            self._unhold(faults, now)
            self._enqueue(faults, now, data)
        elif self._held is None:
            self._held = (now, data)
        else:
            earlier = self._held[1]
            self._held = None
            self._enqueue(faults, now, data)
            self._enqueue(faults, now, earlier)
            self.stats.chunks_reordered += 2

    def _unhold(self, faults: Faults, now: float) -> None:
        if self._held is not None:
            self._enqueue(faults, now, self._held[1])
            self._held = None

    def _enqueue(self, faults: Faults, now: float, data: bytes) -> None:
        if not data:
            return
        release_at = now + faults.delay_s
        if faults.bytes_per_s is not None:
            release_at = max(release_at, self._free_at + len(data) / faults.bytes_per_s)
            self._free_at = release_at
        if self._queue:
            # Bytes of a stream never overtake: only `reorder` changes their order.
            release_at = max(release_at, self._queue[-1][0])
        self._queue.append((release_at, memoryview(data)))
        self._queued += len(data)

    def write(self, faults: Faults, now: float) -> None:
        """Writes what is due. Raises OSError when the sink is broken."""
        if faults.stall or self.sink is None:
            return
        if self._held is not None and now >= self._held[0] + REORDER_HOLD_S:
            self._unhold(faults, now)
        while self._queue and self._queue[0][0] <= now:
            release_at, data = self._queue[0]
            try:
                sent = self.sink.send(data)
            except (BlockingIOError, InterruptedError):
                return
            self._queued -= sent
            self.stats.bytes_passed += sent
            if sent < len(data):
                self._queue[0] = (release_at, data[sent:])
                return
            self._queue.popleft()


def parse(address: str) -> str | tuple[str, int]:
    """A socket path, or (host, port) on loopback. Raises ValueError for anything else."""
    if address.startswith("tcp:"):
        host, _, port = address.removeprefix("tcp:").removeprefix("//").rpartition(":")
        if host not in _LOOPBACK or not port.isdigit():
            raise ValueError(f"{address}: want tcp:127.0.0.1:PORT; the proxy stays on loopback")
        return host, int(port)
    return address.removeprefix("unix:").removeprefix("//")


def socket_for(place: str | tuple[str, int]) -> socket.socket:
    """A non-blocking stream socket of the family that `place` needs."""
    if isinstance(place, str):
        family = socket.AF_UNIX
    else:
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    if not isinstance(place, str):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Connection:
    """Two sockets and the two pipes between them; either socket may be gone (half-open)."""

    def __init__(
        self,
        client: socket.socket | None,
        node: socket.socket | None,
        to_node: PipeStats,
        to_client: PipeStats,
    ) -> None:
        self.client, self.node = client, node
        self.to_node = Pipe(client, node, to_node, swallow=node is None)
        self.to_client = Pipe(node, client, to_client, swallow=client is None)

    def sockets(self) -> list[socket.socket]:
        """The sides that are still here."""
        return [side for side in (self.client, self.node) if side is not None]

    def lost(self, pipe: Pipe, reading: bool) -> None:
        """A read or a write of `pipe` failed: that side is gone, and what it was owed with it."""
        other = self.to_client if pipe is self.to_node else self.to_node
        gone = pipe if reading else other
        gone.abandon()
        (other if reading else pipe).abandon_queue()

    def keep_only(self, side: Side) -> None:
        """Loses the other side's socket; from here on what comes from this side is swallowed."""
        gone = self.node if side is Side.CLIENT else self.client
        if gone is not None:
            gone.close()
        if side is Side.CLIENT:
            self.node = None
            self.to_node = Pipe(self.client, None, self.to_node.stats, swallow=True)
            self.to_client = Pipe(None, self.client, self.to_client.stats)
        else:
            self.client = None
            self.to_client = Pipe(self.node, None, self.to_client.stats, swallow=True)
            self.to_node = Pipe(None, self.node, self.to_node.stats)
