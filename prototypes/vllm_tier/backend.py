"""A dictionary behind worker threads, with switches that stall, slow, fail or corrupt it.

The tier (tier.py) owns the `Transfer`; a worker thread moves its bytes in steps:

    scheduler thread          worker thread
    QUEUED  ──submit────────► MOVING ──step, step, …──► DONE      an outcome for every key
       └──fence()──► FENCED ◄──fence()──┘                         fence() returned: no byte moves

A step copies at most STEP bytes while it holds the transfer's lock, and only if the transfer is
not fenced. So fence() waits for one step at most, and nothing writes (or publishes) after it.
"""

from __future__ import annotations

import enum
import functools
import queue
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

STEP = 1 << 20
Key = tuple[str, bytes]  # namespace, engine key


@dataclass
class Switches:
    """What the back end does wrong. A `*_gate` that is cleared stalls at that point."""

    lookup_gate: threading.Event = field(default_factory=threading.Event)
    load_gate: threading.Event = field(default_factory=threading.Event)  # half of the bytes moved
    store_gate: threading.Event = field(default_factory=threading.Event)  # before the first byte
    lookup_delay_s: float = 0.0
    load_delay_s: float = 0.0
    fail_loads: bool = False
    corrupt_loads: bool = False
    fenced: bool = True  # False shows what late bytes do

    def __post_init__(self) -> None:
        self.heal()

    def heal(self) -> None:
        for gate in (self.lookup_gate, self.load_gate, self.store_gate):
            gate.set()
        self.lookup_delay_s = self.load_delay_s = 0.0
        self.fail_loads = self.corrupt_loads = False


class State(enum.Enum):
    QUEUED = enum.auto()
    MOVING = enum.auto()
    DONE = enum.auto()
    FENCED = enum.auto()


class Transfer:
    """One job: (key, the chunk's bytes) pairs that go in or out under one fence."""

    def __init__(self, parts: list[tuple[Key, memoryview]], is_load: bool) -> None:
        self.parts = parts
        self.is_load = is_load
        self.landed: set[bytes] = set()
        self.state = State.QUEUED
        self.reported = False  # set by the tier; a step after it is a late one
        self.late_steps = 0
        self._lock = threading.Lock()

    def fence(self, honour: bool = True) -> None:
        """After this returns no thread of ours touches the chunks (`honour=False`: a bad tier)."""
        with self._lock:
            if self.state is not State.DONE and honour:
                self.state = State.FENCED

    def step(self, move: Callable[[], None]) -> bool:
        """Run one bounded copy or publication; False once fenced."""
        with self._lock:
            if self.state is State.FENCED:
                return False
            self.state = State.MOVING
            self.late_steps += self.reported
            move()
            return True

    def finish(self) -> None:
        with self._lock:
            if self.state is not State.FENCED:
                self.state = State.DONE


class Dictionary:
    """Keys to (bytes, checksum), one lookup thread and two transfer threads, counted."""

    def __init__(self, switches: Switches) -> None:
        self.switches = switches
        self.blocks: dict[Key, tuple[bytes, int]] = {}
        self.lookups = self.stores = self.loads = 0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._transfers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        for inbox, threads in ((self._inbox, 1), (self._transfers, 2)):
            for _ in range(threads):
                threading.Thread(target=_serve, args=(inbox,), daemon=True).start()

    def close(self) -> None:
        self.switches.heal()
        for inbox in (self._inbox, self._transfers, self._transfers):
            inbox.put(None)

    def lookup(self, keys: list[Key], reply: Callable[[set[bytes]], None]) -> None:
        """One round trip for one prompt: replies with the engine keys that are here."""
        self.lookups += 1

        def answer() -> None:
            self.switches.lookup_gate.wait()
            time.sleep(self.switches.lookup_delay_s)
            reply({key[1] for key in keys if key in self.blocks})

        self._inbox.put(answer)

    def submit(self, transfer: Transfer) -> None:
        move = self._load if transfer.is_load else self._store
        self._transfers.put(lambda: move(transfer))

    def _load(self, transfer: Transfer) -> None:
        self.loads += 1
        time.sleep(self.switches.load_delay_s)
        for key, chunk in transfer.parts:
            block = self.blocks.get(key)
            if block is None or self.switches.fail_loads:
                continue
            if not self._land(transfer, key, chunk, *block):
                return
        transfer.finish()

    def _land(
        self, transfer: Transfer, key: Key, chunk: memoryview, data: bytes, checksum: int
    ) -> bool:
        half = len(data) // 2
        for start in (*range(0, half, STEP), *range(half, len(data), STEP)):
            if start == half:
                self.switches.load_gate.wait()
            end = min(start + STEP, half if start < half else len(data))
            if not transfer.step(functools.partial(_copy, chunk, data, start, end)):
                return False
        if self.switches.corrupt_loads:
            transfer.step(lambda: chunk.__setitem__(0, chunk[0] ^ 0xFF))
        if zlib.crc32(chunk) == checksum:  # verified at the destination
            transfer.landed.add(key[1])
        return True

    def _store(self, transfer: Transfer) -> None:
        self.stores += 1
        for key, chunk in transfer.parts:
            staged = bytearray(len(chunk))
            self.switches.store_gate.wait()
            for start in range(0, len(chunk), STEP):
                end = min(start + STEP, len(chunk))
                if not transfer.step(functools.partial(_copy, staged, chunk, start, end)):
                    return
            # Publishing is a step too: a store that was reported failed must never appear.
            block = (bytes(staged), zlib.crc32(staged))
            if not transfer.step(functools.partial(self.blocks.__setitem__, key, block)):
                return
            transfer.landed.add(key[1])
        transfer.finish()


def _copy(to: memoryview | bytearray, source: memoryview | bytes, start: int, end: int) -> None:
    to[start:end] = source[start:end]


def _serve(inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := inbox.get()) is not None:
        job()
