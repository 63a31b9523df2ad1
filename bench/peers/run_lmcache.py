"""LMCache: its multiprocess server, and the client of its own `lmcache bench server`, on the CPU.

Its client gets into the paged KV tensors that it registered, so blocks are chunks of those: two
layers of keys and values, 256 tokens a chunk, one page a chunk, 2 MiB.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmcache.cli.commands.bench.server_bench.client import RequestContext, ServerBenchClient
from lmcache.cli.commands.bench.server_bench.config import BenchConfig
from runner import Memory, Peer, Shape, answer, free_port, until

TOKENS = 256
HEADS, HEAD_BYTES, LAYERS = 8, 256, 2


class LMCache(Peer):
    """One worker whose tensors have a page for each block, stored a round's blocks at a time."""

    def __init__(self, client: ServerBenchClient, shape: Shape) -> None:
        self.name = f"LMCache {importlib.metadata.version('lmcache')}"
        self.settings = (
            "`lmcache server` over POSIX shared memory (transfer mode lmcache_driven, its fastest "
            "on a CPU), RETRIEVE by the client of `lmcache bench server`; its LOOKUP before each "
            "is not timed"
        )
        self._client = client
        self._shape = shape
        self._requests = [self._request(n) for n in range(shape.total // shape.blocks)]
        self._next = self._requests[0]
        for each in self._requests:
            stored = client.store(each, 0, each.num_full_tokens)
            if stored is None or not stored.succeeded:
                raise RuntimeError(f"lmcache store: {stored}")

    def _request(self, n: int) -> RequestContext:
        made = self._client.create_request(n, f"round-{n}", "keepwarm")
        if made is None or made.total_chunks != self._shape.blocks:
            raise RuntimeError(f"lmcache makes another number of chunks: {made}")
        # Page 0 means that there is nothing.
        return dataclasses.replace(made, block_offset=1 + n * self._shape.blocks)

    def before(self, places: range) -> None:
        """LMCache locks what a lookup finds; a retrieve needs that."""
        self._next = self._requests[places.start // self._shape.blocks]
        found = self._client.lookup(self._next)
        if not found.is_full_hit:
            raise RuntimeError(f"lmcache lookup: {found}")

    def get(self, _places: range, _to: Memory) -> None:
        """Retrieves a round's chunks into its tensors."""
        got = self._client.retrieve(self._next, 0, self._next.num_full_tokens)
        if got is None or not got.succeeded:
            raise RuntimeError(f"lmcache retrieve: {got}")

    def check(self, _source: Memory, to: Memory) -> None:
        """As its tensors are its own, compares them with what they were."""
        (worker,) = self._client._workers
        tensors = list(worker.kv_caches.values())
        pages = slice(1, 1 + self._shape.blocks)
        before = [tensor[:, pages].clone() for tensor in tensors]
        for tensor in tensors:
            tensor[:, pages].zero_()
        self.before(range(self._shape.blocks))
        self.get(range(self._shape.blocks), to)
        if not all((t[:, pages] == old).all() for t, old in zip(tensors, before, strict=True)):
            raise ValueError("lmcache gave other bytes than were put")


@contextmanager
def opened(shape: Shape, folder: str, _source: Memory) -> Iterator[LMCache]:
    """Starts the server and stores all blocks."""
    if shape.block != TOKENS * HEADS * HEAD_BYTES * 2 * LAYERS:
        raise ValueError("the tensors' shape here is for blocks of 2 MiB")
    port, http = free_port(), free_port()
    log_path = Path(folder) / "lmcache.log"
    command = [str(Path(sys.executable).parent / "lmcache"), "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--http-port", str(http), "--l1-size-gb", "1"]
    command += ["--eviction-policy", "LRU"]
    environment = {**os.environ, "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"}
    pages = shape.total + 1
    config = BenchConfig(
        rpc_url=f"tcp://127.0.0.1:{port}",
        http_url=f"http://127.0.0.1:{http}",
        mode="cpu",
        transfer_mode="lmcache_driven",
        tp_size=1,
        use_mla=False,
        num_tokens=shape.blocks * TOKENS - 1,
        kvcache_shape_spec=f"(2,{pages},{TOKENS},{HEADS},{HEAD_BYTES // 2}):float16:{LAYERS}",
        num_blocks=pages,
        block_size=TOKENS,
    )
    kept: list[ServerBenchClient] = []

    def is_up() -> bool:
        client = ServerBenchClient(config, lambda _: None)
        with suppress(RuntimeError, TimeoutError):
            client.start()
            kept.append(client)
        return bool(kept)

    with (
        log_path.open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as server,
    ):
        try:
            until("lmcache's server answers", is_up)
            yield LMCache(kept[0], shape)
            kept[0].close()
        finally:
            server.terminate()


if __name__ == "__main__":
    answer(opened)
