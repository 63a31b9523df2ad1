"""What the peers' runners share: blocks, and the loop that answers `keepwarm bench`.

A runner is started with its peer's own Python and talks JSON lines. The first line it reads has
`block`, `blocks` (of one round), `total`, `seed`, `folder`; it starts the peer's server, stores all
blocks, and answers with `peer` and `settings`. Each further line has `first`: it gets a round's
blocks from there on, and answers with `seconds` and `nbytes`. It ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """What there is, and what a round moves."""

    block: int
    blocks: int
    total: int
    seed: int


class Memory:
    """As many blocks as there are, in touched memory."""

    def __init__(self, shape: Shape, fill: bool = False) -> None:
        self.shape = shape
        self.nbytes = shape.block * shape.total
        self.bytes = mmap.mmap(-1, self.nbytes)
        self.bytes.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self.bytes)
        self.base = ctypes.addressof(self._anchor)
        ctypes.memset(self.base, 0, self.nbytes)
        if fill:
            chance = random.Random(shape.seed)
            for n in range(shape.total):
                pattern = chance.randbytes(4096)
                self.bytes[n * shape.block : (n + 1) * shape.block] = pattern * (shape.block >> 12)

    def address(self, n: int) -> int:
        """Of the nth block."""
        return self.base + n * self.shape.block

    def view(self, n: int) -> memoryview:
        """The nth block."""
        return memoryview(self.bytes)[n * self.shape.block : (n + 1) * self.shape.block]


class Peer(ABC):
    """A peer with all blocks stored."""

    name: str
    settings: str

    def before(self, places: range) -> None:  # noqa: B027  # most need none
        """What a peer wants to be told before a get; not timed."""

    @abstractmethod
    def get(self, places: range, to: Memory) -> Any:
        """Gets these blocks: to their places in `to`, or else as objects that it returns."""

    def check(self, source: Memory, to: Memory) -> None:
        """The first round's bytes are those that were stored."""
        places = range(source.shape.blocks)
        self.before(places)
        given = self.get(places, to)
        for n in places:
            found = to.view(n) if given is None else given[n]
            if bytes(found) != bytes(source.view(n)):
                raise ValueError(f"{self.name} gave other bytes than were put, in block {n}")


def names(places: Iterable[int]) -> list[str]:
    """Keys of blocks, as long as an engine's."""
    return [f"{n:032x}" for n in places]


def free_port() -> int:
    """A port of loopback that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def until(what: str, is_so: Callable[[], Any], within_s: float = 60.0) -> None:
    """Waits for a server that was just started."""
    end = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within_s} s")
        time.sleep(0.02)


Open = Callable[[Shape, str, Memory], AbstractContextManager[Peer]]


def answer(open_peer: Open) -> None:
    """Answers `keepwarm bench` until it has no more to ask."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what a peer prints is not for the bench
    asked = json.loads(sys.stdin.readline())
    shape = Shape(asked["block"], asked["blocks"], asked["total"], asked["seed"])
    source, to = Memory(shape, fill=True), Memory(shape)

    def say(what: dict[str, Any]) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    with open_peer(shape, asked["folder"], source) as peer:
        peer.check(source, to)
        say({"peer": peer.name, "settings": peer.settings})
        for line in sys.stdin:
            first = json.loads(line)["first"]
            places = range(first, first + shape.blocks)
            peer.before(places)
            start = time.perf_counter()
            peer.get(places, to)
            seconds = time.perf_counter() - start
            say({"seconds": seconds, "nbytes": shape.blocks * shape.block})
