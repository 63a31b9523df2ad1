"""Requests through a real node, as an engine asks it: what each finds, by tier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import keepwarm
import numpy as np
from keepwarm import Status
from keepwarm.testing.traces import Request
from keepwarm.workload.trace import Batch
from keepwarm.workload.twin import NodeTwin
from numpy.typing import NDArray

KEY_BYTES = 16
DEADLINE_S = 30.0
Tiers = tuple[int, int]
"""Blocks of a request's unbroken prefix in memory, and on flash alone."""


def batch_of(requests: Sequence[Request]) -> Batch:
    """The requests as columns."""
    count, none = len(requests), np.zeros(len(requests), dtype=np.uint64)
    ids = [np.array(request.block_ids, dtype=np.uint64) for request in requests]
    offsets = np.zeros(count + 1, dtype=np.uint64)
    offsets[1:] = np.cumsum([len(each) for each in ids])
    return Batch(
        times_s=np.array([request.arrival_s for request in requests], dtype=np.float64),
        input_tokens=np.array([request.input_tokens for request in requests], dtype=np.uint32),
        output_tokens=np.array([request.output_tokens for request in requests], dtype=np.uint32),
        sessions=none,
        tenants=none,
        offsets=offsets,
        block_ids=np.concatenate(ids) if ids else none,
    )


class Asker:
    """One client: looks a prompt up, gets the prefix that is there, puts the rest, touches all."""

    def __init__(
        self,
        space: keepwarm.Space,
        block_bytes: int,
        blocks_max: int,
        settle: Callable[[], None],
        call_blocks: int | None = None,
    ) -> None:
        """`settle` is called after each request; with `call_blocks` after each get and put too."""
        self._space = space
        self._block_bytes = block_bytes
        self._data = memoryview(bytearray(block_bytes * blocks_max))
        self._settle = settle
        self._call_blocks = call_blocks

    def ask(self, keys: bytes) -> Tiers:
        """What was there before the request changed anything."""
        found = self._space.lookup(keys, lease_s=None, deadline_s=DEADLINE_S)
        tiers = found.tiers[: found.prefix]
        served = self._get(keys[: found.prefix * KEY_BYTES])
        self._put(keys[served * KEY_BYTES :])
        self._space.touch(keys, deadline_s=DEADLINE_S)
        self._settle()
        return tiers.count("dram"), tiers.count("flash")

    def _calls(self, keys: bytes) -> Iterable[bytes]:
        most = (self._call_blocks or len(keys) or 1) * KEY_BYTES
        return (keys[start : start + most] for start in range(0, len(keys), most))

    def _end_call(self) -> None:
        if self._call_blocks is not None:
            self._settle()

    def _buffer(self, keys: bytes) -> memoryview:
        return self._data[: len(keys) // KEY_BYTES * self._block_bytes]

    def _get(self, keys: bytes) -> int:
        """Blocks that came before the first that did not."""
        came = 0
        for call in self._calls(keys):
            outcomes = self._space.get_into(call, self._buffer(call), deadline_s=DEADLINE_S)
            self._end_call()
            for outcome in outcomes:
                if outcome.status is not Status.OK:
                    return came
                came += 1
        return came

    def _put(self, keys: bytes) -> None:
        for call in self._calls(keys):
            self._space.put_from(call, self._buffer(call), deadline_s=DEADLINE_S)
            self._end_call()


class Turns:
    """Hands requests out in order; none before its session's last one is answered."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._next = 0
        self._busy: set[int] = set()
        self._changed = threading.Condition()

    def take(self) -> int | None:
        """The place of the next request, once its session is idle; None: there are no more."""
        with self._changed:
            while self._next < len(self._requests):
                session = self._requests[self._next].session
                if session not in self._busy:
                    self._busy.add(session)
                    self._next += 1
                    return self._next - 1
                self._changed.wait()
            return None

    def give_back(self, place: int) -> None:
        """The request is answered."""
        with self._changed:
            self._busy.discard(self._requests[place].session)
            self._changed.notify_all()


def ask_at_once(
    requests: Sequence[Request], twin: NodeTwin, askers: Sequence[Asker]
) -> NDArray[np.int64]:
    """All requests by several clients at once; what each request found."""
    keys = [twin.block_keys(np.array(r.block_ids, dtype=np.uint64)) for r in requests]
    found = np.zeros((len(requests), 2), dtype=np.int64)
    turns = Turns(requests)

    def work(asker: Asker) -> None:
        while (place := turns.take()) is not None:
            try:
                found[place] = asker.ask(keys[place])
            finally:
                turns.give_back(place)

    threads = [threading.Thread(target=work, args=(asker,)) for asker in askers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
