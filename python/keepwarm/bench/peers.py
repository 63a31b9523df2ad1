"""Figures against other stores, each in an environment of its own that `make bench-peers` made.

A runner (`bench/peers/` in the sources) is run with its peer's Python and answers JSON lines:
it stores the same number of blocks of the same size as ours, and gets the same rounds of them.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import keepwarm
from keepwarm.bench.context import Context, Found, Group, UnavailableError
from keepwarm.bench.limits import Blocks, Shape
from keepwarm.bench.local import arena_bytes, filled
from keepwarm.bench.network import free_port
from keepwarm.bench.nodes import FailedError, Node
from keepwarm.bench.pairs import Round, interleave, speeds


def installed(peer: str) -> Path:
    """Where `make bench-peers` says how a peer is run."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "keepwarm" / "bench-peers" / f"{peer}.json"


class Runner:
    """A peer's runner as a child, with all blocks stored."""

    def __init__(self, peer: str, shape: Shape, folder: Path) -> None:
        self._shape = shape
        self._log = folder / f"{peer}.log"
        manifest = json.loads(installed(peer).read_text(encoding="utf-8"))
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [manifest["python"], manifest["runner"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **manifest["environment"]},
            )
        try:
            told = self._ask({**shape._asdict(), "folder": str(folder)})
        except BaseException:
            self._child.kill()
            self._end()
            raise
        self.notes = {"peer": told["peer"], "settings": told["settings"]}

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(what) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            said = self._log.read_text(encoding="utf-8", errors="replace")[-1000:].strip()
            raise FailedError(f"the peer's runner ended: {said or 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def get(self, number: int) -> Round:
        """A round of gets."""
        told = self._ask({"first": self._shape.first(number)})
        return Round(told["seconds"], told["nbytes"])

    def _end(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


def _compare(peer: str, figures: dict[str, str], context: Context) -> Found:
    """`figures`: which way to a node each is about."""
    if not installed(peer).exists():
        raise UnavailableError(f"{peer} is not installed: make bench-peers PEERS={peer}")
    shape = context.shape()
    source, to = Blocks(shape, fill=True), Blocks(shape)
    port = free_port()
    found: Found = {}
    with ExitStack() as stack:
        context.say("the peer starts and is filled")
        runner = stack.enter_context(Runner(peer, shape, context.folder))
        listen = ("--listen", f"tcp://127.0.0.1:{port}")
        node = stack.enter_context(Node(arena_bytes(shape), listen))
        for name, way in figures.items():
            context.say(name)
            address = node.address if way == "local" else listen[1]
            memory = stack.enter_context(keepwarm.connect(address))
            client = stack.enter_context(filled(memory, node, source, to))

            def ours(number: int, client: Any = client) -> Round:
                taken: Round = client.get(to, number)
                return taken

            pairs = interleave(context.pairs, runner.get, ours)
            transport = memory.health()["transport"]
            found[name] = speeds(pairs, transport=transport, **runner.notes)
            client.space.drop(deadline_s=30.0)
    return found


def _group(peer: str, **figures: str) -> Group:
    return Group(tuple(figures), lambda context: _compare(peer, figures, context))


GROUPS = (
    _group("mooncake", local_get_over_mooncake="local", tcp_get_over_mooncake="tcp"),
    _group("valkey", local_get_over_redis="local"),
    _group("lmcache", local_get_over_lmcache="local"),
)
