"""Nodes and namespaces for the tests of the Python package."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keepwarm import Memory, Namespace, _core, connect

CAPACITY_BYTES = 64 << 20
BLOCK_BYTES = 64 << 10
FIELDS: dict[str, Any] = {
    "tenant": "default",
    "model": "m",
    "weights": "sha256:0",
    "load": "auto",
    "quantisation": "none",
    "kv_dtype": "bf16",
    "kv_scales": "none",
    "layers": 2,
    "kv_heads": 2,
    "head_dim": 8,
    "layout": "NHD/KV",
    "engine": "test/1",
    "attention_backend": "none",
    "isa": "any",
    "block_tokens": 16,
    "kv_options": [],
    "parallel": "tp=1,pp=1",
    "connector": "test/1",
    "parts": 1,
    "run_blocks": 4,
}


def make(secret: Path | None = None, **changes: Any) -> Namespace:
    """A namespace that no real engine has."""
    fields: dict[str, Any] = {**FIELDS, **changes}
    return Namespace(secret=secret, **fields)


def keys_of(names: Namespace, blocks: int, seed: int = 0) -> bytes:
    """Keys of a prompt of its own for each seed."""
    count = blocks * names.block_tokens
    return names.block_keys(range(seed << 16, (seed << 16) + count))


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    folder = tempfile.mkdtemp(prefix="kw-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


class LocalNode:
    """A store and its server in this process, on a socket of its own."""

    def __init__(self, folder: Path, capacity: int = CAPACITY_BYTES, **settings: Any) -> None:
        self.path = folder / "node.sock"
        settings.setdefault("policy", "lru")
        settings.setdefault("populate", False)
        self.store = _core.Store(capacity, **settings)
        self.server: _core.Server | None = None
        self.start()

    def start(self) -> None:
        """Listens."""
        self.server = _core.Server(self.store, self.path, node="test", clients_max=64, idle_s=60.0)

    def stop(self) -> None:
        """Listens no more; the store stays."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    def close(self) -> None:
        """Ends it, after counting everything again."""
        self.stop()
        problem = self.store.check()
        self.store.close()
        assert problem is None, problem

    def connect(self, **settings: Any) -> Memory:
        """A client of it."""
        return connect(self.path, **settings)


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Waits for a condition that another thread or process makes true."""
    pause, until = threading.Event(), time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"not so within {within_s} s"
        pause.wait(0.005)
