"""What the demo runs on: one node, and two replicas that know of each other only through it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from keepwarm.engines.asking import EngineClient
from keepwarm.engines.replica import Connector, Replica, ReplicaConfig, transfer_config
from keepwarm.errors import NodeError
from keepwarm.testing.node import NodeProcess

REPLICAS = ("A", "B")
SETTLE_S_MAX = 5.0
QUIET_S = 0.3
# Two engines and the node share two cores: a load may wait for its turn longer than elsewhere.
LOAD_DEADLINE_S = 2.0
Tell = Callable[[str], None]


class Fleet(Protocol):
    """What a run needs. The real one is below; tests have one of fakes."""

    def client(self, replica: str) -> EngineClient:
        """To ask a replica."""

    def settle(self) -> None:
        """Returns when what the replicas computed has been stored, or cannot be."""

    def restart(self, replica: str) -> None:
        """A new engine in a replica's place, that remembers nothing."""

    def kill_node(self) -> None:
        """kill -9, told to nobody."""

    def about(self) -> dict[str, Any]:
        """Commands and versions, for the report."""


class VllmFleet:
    """A node and real engines as children; use as a context, which leaves nothing behind."""

    def __init__(
        self,
        folder: Path,
        logs: Path,
        python: Path,
        model: Path,
        connector: Connector,
        node_bytes: int,
        tell: Tell,
        **engine: Any,
    ) -> None:
        self._tell = tell
        self._node = NodeProcess(folder, node_bytes, policy="default")
        config = ReplicaConfig(
            python=python,
            model=model,
            transfer=transfer_config(
                connector, self._node.address, load_deadline_s=LOAD_DEADLINE_S
            ),
            **engine,
        )
        self._replicas = {name: Replica(name, config, folder, logs) for name in REPLICAS}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._tell(f"starting the node: {self._node.command}")
            self._stack.callback(self._node.stop)
            self._node.start()
            self._node.wait_ready()
            for replica in self._replicas.values():
                self._stack.callback(replica.stop)
                replica.start()
            self._stack.callback(self._tell_all_to_end)
            self._tell(f"starting two replicas: {self._replicas['A'].command}")
            for replica in self._replicas.values():
                self._await(replica)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def client(self, replica: str) -> EngineClient:
        """To ask a replica."""
        return self._replicas[replica].client

    def settle(self) -> None:
        """Until the node has stored nothing more for a moment; at once if there is no node."""
        until, pause = time.monotonic() + SETTLE_S_MAX, threading.Event()
        last, since = -1, time.monotonic()
        while time.monotonic() < until and time.monotonic() - since < QUIET_S:
            try:
                stored = int(self._node.stat()["stored"])
            except NodeError:
                return
            if stored != last:
                last, since = stored, time.monotonic()
            pause.wait(0.03)

    def restart(self, replica: str) -> None:
        """Stops it and starts another in its place."""
        found = self._replicas[replica]
        found.stop()
        found.start()
        self._await(found)

    def kill_node(self) -> None:
        """kill -9."""
        self._node.kill()

    def about(self) -> dict[str, Any]:
        """Commands and versions."""
        return {
            "engine": self.client("A").version(),
            "model": self._replicas["A"].config.model.name,
            "node_command": self._node.command,
            "replica_command": self._replicas["A"].command,
        }

    def _tell_all_to_end(self) -> None:
        for replica in self._replicas.values():
            replica.tell_to_end()

    def _await(self, replica: Replica) -> None:
        begun, said = time.monotonic(), 0

        def patiently() -> None:
            nonlocal said
            waited = int(time.monotonic() - begun)
            if waited >= said + 10:
                said = waited
                self._tell(f"replica {replica.name}: {waited} s, still loading")

        replica.wait_ready(tell=patiently)
        self._tell(f"replica {replica.name} is ready after {time.monotonic() - begun:.0f} s")
