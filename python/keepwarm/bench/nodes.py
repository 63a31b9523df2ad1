"""A real node in a process of its own, filled with blocks, as rounds of a pair."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import keepwarm
from keepwarm.bench.limits import Blocks, Shape
from keepwarm.bench.machine import cpu_seconds
from keepwarm.bench.pairs import Round
from keepwarm.outcomes import Outcome, Status
from keepwarm.testing.namespaces import namespace
from keepwarm.testing.node import NodeProcess

DEADLINE_S = 30.0


class FailedError(RuntimeError):
    """A call that must work did not: nothing is measured."""


class Client:
    """Gets and puts of one shape over one way to a store; every outcome must be good."""

    def __init__(
        self, memory: keepwarm.Memory, shape: Shape, name: str, pid: int | None = None
    ) -> None:
        self.memory = memory
        self._shape = shape
        self._pid = pid
        names = namespace(model=name)
        self.space = memory.attach(names, deadline_s=DEADLINE_S)
        self._keys = names.block_keys(range(shape.total * names.block_tokens))

    def keys(self, first: int, count: int) -> bytes:
        """Keys of blocks side by side."""
        return self._keys[16 * first : 16 * (first + count)]

    def fill(self, source: Blocks) -> None:
        """Puts all blocks, a round's count at a time."""
        count = self._shape.blocks
        for first in range(0, self._shape.total - count + 1, count):
            keys, places = self.keys(first, count), source.places(first)
            stored(self.space.put_from(keys, places, deadline_s=DEADLINE_S))

    def check(self, source: Blocks, to: Blocks) -> None:
        """One round's bytes are those that were put."""
        to.wipe()
        first = self._shape.first(0)
        self.get(to, 0)
        if to.content(first) != source.content(first):
            raise FailedError("a get gave other bytes than were put")

    def get(self, to: Blocks, number: int) -> Round:
        """A round of gets."""
        first = self._shape.first(number)
        keys, places = self.keys(first, self._shape.blocks), to.places(first)
        with Timer(self._shape.nbytes, self._pid) as timer:
            outcomes = self.space.get_into(keys, places, deadline_s=DEADLINE_S)
        _all(outcomes, Status.OK)
        return timer.round

    def put(self, source: Blocks, number: int) -> Round:
        """A round of puts of blocks that are not there."""
        first = self._shape.first(number)
        keys, places = self.keys(first, self._shape.blocks), source.places(first)
        self.space.drop(keys, deadline_s=DEADLINE_S)
        with Timer(self._shape.nbytes, self._pid) as timer:
            outcomes = self.space.put_from(keys, places, deadline_s=DEADLINE_S)
        stored(outcomes)
        return timer.round


class Timer:
    """Wall time of a `with` block, and CPU time of another process meanwhile."""

    def __init__(self, nbytes: int, pid: int | None = None) -> None:
        self._nbytes = nbytes
        self._pid = pid
        self.round = Round(0.0, nbytes)

    def __enter__(self) -> Self:
        self._cpu = cpu_seconds(self._pid) if self._pid else 0.0
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._start
        cpu = cpu_seconds(self._pid) - self._cpu if self._pid else None
        self.round = Round(seconds, self._nbytes, cpu)


def stored(outcomes: Sequence[Outcome]) -> None:
    """All puts were."""
    _all(outcomes, Status.STORED)


def _all(outcomes: Sequence[Outcome], wanted: Status) -> None:
    bad = [outcome for outcome in outcomes if outcome.status is not wanted]
    if bad:
        raise FailedError(f"{len(bad)} of {len(outcomes)} blocks are not {wanted}: {bad[0]}")


class Node(NodeProcess):
    """`keepwarm serve` in a folder of its own, with what else a figure needs."""

    def __init__(self, arena_bytes: int, extra: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kw-bench-")
        super().__init__(Path(self._folder.name), arena_bytes, extra=extra)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._folder.cleanup()
