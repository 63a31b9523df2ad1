"""Mooncake Store: a master, a process that holds the segment, and this one, which gets over tcp."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import mooncake
from mooncake.store import MooncakeDistributedStore
from runner import Memory, Peer, Shape, answer, free_port, names, until

MIB = 1 << 20


def _store(master: str, segment: int, buffer: int) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", master)
    if code:
        raise RuntimeError(f"mooncake setup: {code}")
    return store


class Mooncake(Peer):
    """A client whose buffers are registered, as its zero-copy calls want them."""

    def __init__(self, store: MooncakeDistributedStore, shape: Shape) -> None:
        version = importlib.metadata.version("mooncake-transfer-engine-non-cuda")
        self.name = f"Mooncake Store {version}"
        self.settings = (
            "`batch_get_into` into registered buffers, protocol tcp on loopback, the segment in "
            "another process, one replica, P2P handshake, checksums off (its default)"
        )
        self._store = store
        self._shape = shape
        self._registered: set[int] = set()

    def _places(self, places: range, memory: Memory) -> tuple[list[str], list[int], list[int]]:
        if memory.base not in self._registered:
            self._store.register_buffer(memory.base, memory.nbytes)
            self._registered.add(memory.base)
        sizes = [self._shape.block] * len(places)
        return names(places), [memory.address(n) for n in places], sizes

    def put(self, source: Memory) -> None:
        """Stores all blocks."""
        codes = self._store.batch_put_from(*self._places(range(self._shape.total), source))
        if any(codes):
            raise RuntimeError(f"mooncake batch_put_from: {codes}")

    def get(self, places: range, to: Memory) -> None:
        """Gets blocks to their places."""
        lengths = self._store.batch_get_into(*self._places(places, to))
        if any(length != self._shape.block for length in lengths):
            raise RuntimeError(f"mooncake batch_get_into: {lengths}")


@contextmanager
def opened(shape: Shape, folder: str, source: Memory) -> Iterator[Mooncake]:
    """Starts everything and stores all blocks."""
    port, metrics = free_port(), free_port()
    log = (Path(folder) / "mooncake.log").open("wb")
    binary = Path(mooncake.__file__ or "").parent / "mooncake_master"
    flags = [f"--rpc_port={port}", f"--metrics_port={metrics}", "--rpc_address=127.0.0.1"]
    with log, subprocess.Popen([binary, *flags], stdout=log, stderr=log) as master:
        segment = shape.block * shape.total + 256 * MIB
        hold = [sys.executable, __file__, "hold", f"127.0.0.1:{port}", str(segment)]
        with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            try:
                if not holder.stdout or b"held" not in holder.stdout.readline():
                    raise RuntimeError("the process with mooncake's segment ended")
                peer = Mooncake(_store(f"127.0.0.1:{port}", 0, 64 * MIB), shape)
                peer.put(source)
                yield peer
            finally:
                holder.kill()
                master.kill()


def _hold(master: str, segment: str) -> None:
    """Holds a segment until its input ends."""
    kept: list[MooncakeDistributedStore] = []

    def is_up() -> bool:
        with suppress(RuntimeError):
            kept.append(_store(master, int(segment), 16 * MIB))
        return bool(kept)

    until("mooncake's master answers", is_up)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        _hold(*sys.argv[2:4])
    else:
        answer(opened)
