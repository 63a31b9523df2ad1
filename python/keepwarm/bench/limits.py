"""The bare loops that the native core runs, as rounds of a pair."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from keepwarm import _core
from keepwarm.bench.machine import cpu_seconds
from keepwarm.bench.pairs import Round

Place = tuple[int, int]
"""Address and length of a block."""

_Move = Callable[[Sequence[Place], int, int], float]

SOCKET_BUFFER_BYTES = 1 << 20


class Shape(NamedTuple):
    """What one round moves: `blocks` blocks of `block` bytes out of `total` that there are.

    Rounds begin at random places, or take turns: each where the one before it ended.
    """

    block: int
    blocks: int
    total: int
    seed: int
    turns: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of a round."""
        return self.block * self.blocks

    def first(self, number: int) -> int:
        """Where round `number` begins, of those that fit without a break; the same for all."""
        if self.turns:
            return number * self.blocks % (self.total - self.blocks + 1)
        chance = random.Random(self.seed * 1_000_003 + number)
        return chance.randrange(self.total - self.blocks + 1)


class Blocks:
    """Memory of `total` blocks whose pages all exist: what a caller gets into and puts from."""

    def __init__(self, shape: Shape, fill: bool = False) -> None:
        self.shape = shape
        nbytes = shape.block * shape.total
        # Shared, as an arena is, and on huge pages where they are given.
        self._memory = mmap.mmap(-1, nbytes)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        self._base = ctypes.addressof(self._anchor)
        ctypes.memset(self._base, 0x11, nbytes)
        if fill:
            chance = random.Random(shape.seed)
            for at in range(shape.total):
                pattern = chance.randbytes(1 << 12)
                start = at * shape.block
                self._memory[start : start + shape.block] = pattern * (shape.block >> 12)

    def places(self, first: int) -> list[Place]:
        """The blocks of a round that begins at `first`."""
        block = self.shape.block
        return [(self._base + (first + n) * block, block) for n in range(self.shape.blocks)]

    def content(self, first: int) -> bytes:
        """Their bytes."""
        start = first * self.shape.block
        return self._memory[start : start + self.shape.nbytes]

    def wipe(self) -> None:
        """Makes sure that what is found later was written after this."""
        ctypes.memset(self._base, 0, self.shape.block * self.shape.total)


def copy(way: str, to: Blocks, source: Blocks, number: int) -> Round:
    """Copies a round's blocks from memory to memory."""
    first = to.shape.first(number)
    count = to.shape.blocks
    seconds = _core.limit_copy(way, to.places(first), source.places(first), count)
    return Round(seconds, to.shape.nbytes)


class Secrets(NamedTuple):
    """Files of a certificate authority and of a node that it vouches for."""

    authority: Path
    certificate: Path
    key: Path


class BareServer:
    """The bare loop's server in a process of its own, and a client of it.

    `streams` connections share each round; `at` is a path for a Unix socket, or None for TCP on
    loopback.
    """

    def __init__(
        self,
        shape: Shape,
        at: Path | None,
        *,
        streams: int = 1,
        secrets: Secrets | None = None,
        buffers: int | None = SOCKET_BUFFER_BYTES,
    ) -> None:
        self._shape = shape
        with _listening(at) as listener:
            self._address = listener.getsockname()
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "keepwarm.bench.bare", str(listener.fileno())),
                    *(str(shape.block * shape.total), str(buffers or 0)),
                    *([] if secrets is None else [str(secrets.certificate), str(secrets.key)]),
                ],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
            )
        self._sockets = [self._connect(buffers) for _ in range(streams)]
        descriptors = [each.fileno() for each in self._sockets]
        authority = secrets and secrets.authority.read_bytes()
        self._client = _core.LimitStreams(descriptors, authority)

    def _connect(self, buffers: int | None) -> socket.socket:
        family = socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        made = socket.socket(family)
        if buffers:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        made.connect(self._address)
        if family == socket.AF_INET:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(True)
        return made

    def get(self, to: Blocks, number: int) -> Round:
        """A round out of the server's pool."""
        return self._round(self._client.get, to, number)

    def put(self, source: Blocks, number: int) -> Round:
        """A round into the server's pool."""
        return self._round(self._client.put, source, number)

    def _round(self, move: _Move, blocks: Blocks, number: int) -> Round:
        first = self._shape.first(number)
        before = cpu_seconds(self._child.pid)
        seconds = move(blocks.places(first), self._shape.blocks, first)
        return Round(seconds, self._shape.nbytes, cpu_seconds(self._child.pid) - before)

    def close(self) -> None:
        """Ends the server."""
        for each in self._sockets:
            each.close()
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _listening(at: Path | None) -> socket.socket:
    if at is None:
        return socket.create_server(("127.0.0.1", 0))
    made = socket.socket(socket.AF_UNIX)
    made.bind(os.fspath(at))
    made.listen(16)
    return made
