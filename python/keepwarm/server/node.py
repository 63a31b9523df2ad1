"""The life of a node: starting, serving, draining, stopped.

```text
starting ──store open, socket bound──► serving ──first signal──► draining ──► stopped
    └────────────first signal──────────────────────────────────────────────────►┘
```
A second signal ends the process at once. Admin HTTP answers in every state.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import keepwarm
from keepwarm import _core
from keepwarm.config import Loaded, make_folder, tenant_rows
from keepwarm.errors import ClosedError, NodeError
from keepwarm.outcomes import nest
from keepwarm.server.admin import AdminServer

T = TypeVar("T")


class State(StrEnum):
    """Where in its life a node is."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Node:
    """One node, for one process."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.config = loaded.config
        self.state = State.STARTING
        self.started_unix_s = time.time()
        self.admin: AdminServer | None = None
        self._store: _core.Store | None = None
        self._server: _core.Server | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes calls."""
        return self.state is State.SERVING

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.node

    def figures(self) -> dict[str, Any] | None:
        """Its figures, as `Memory.stat` gives them; None without a store."""
        server = self._server
        if server is None:
            return None
        try:
            return nest(server.stat())
        except ClosedError:
            return None  # it stopped while we looked

    def status(self) -> dict[str, Any]:
        """What it runs with, where that came from, and its figures."""
        return {
            "state": self.state,
            "version": keepwarm.__version__,
            "node": self.name,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self.started_unix_s, 3),
            "settings": self.settings(),
            "figures": self.figures(),
        }

    def settings(self) -> dict[str, dict[str, Any]]:
        """Each setting: its value, and where it came from. Secrets are files, and not read."""
        out = {}
        for name, origin in self._loaded.origins.items():
            value = getattr(self.config, name)
            if name == "tenants":
                value = sorted(value) or ["default alone"]
            elif name == "listen" and self._server is not None:
                value = self._listening()
            elif name == "admin":
                value = str(self.admin.address if self.admin else value or "off")
            elif name == "state_dir":
                value = str(value or "off")
            out[name] = {"value": value, "origin": origin}
        return out

    def _listening(self) -> list[str]:
        """Where it listens beside the socket, with the ports that the system chose."""
        server = self._server
        try:
            return server.addresses()[1:] if server is not None else []
        except ClosedError:
            return []  # it stopped while we looked

    def start(self) -> None:
        """Takes what it needs, the small things that can fail first."""
        config = self.config
        if config.admin is not None:
            self.admin = AdminServer(self, config.admin)
        make_folder(Path(config.address).parent, "address")
        check_free(config.address)
        if config.state_dir is not None:
            make_folder(config.state_dir, "state_dir")
        self._store = _core.Store(
            config.capacity,
            policy=config.policy,
            max_blocks=config.max_blocks,
            tenants=tenant_rows(config.tenants),
            ttl_s=config.ttl,
            state_dir=config.state_dir,
            populate=config.populate,
        )
        self._server = _core.Server(
            self._store,
            config.address,
            listen=config.listen,
            node=config.node,
            clients_max=config.clients_max,
            idle_s=config.idle,
        )
        self.state = State.SERVING

    def drain(self) -> bool:
        """Takes no more clients or puts, and waits for calls under way. True when all ended."""
        self.state = State.DRAINING
        return self._server is None or self._server.drain(self.config.drain)

    def stop(self) -> None:
        """Gives everything back; harmless twice."""
        if self._server is not None:
            self._server.stop()
        if self._store is not None:
            self._store.close()
        self._server, self._store = None, None
        self.state = State.STOPPED
        if self.admin is not None:
            self.admin.stop()


def check_free(path: str) -> None:
    """Refuses a socket on which a node listens, before memory is taken; the core asks again."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(0)
        try:
            asking.connect(path)
        except BlockingIOError:
            holder = "a node that is busy"  # its queue of new connections is full
        except OSError:
            return  # free, or for the core to say why not
        else:
            peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            holder = f"pid {struct.unpack('3i', peer)[0]}"
    raise NodeError(f"socket path {path} in use by {holder}: stop that node or choose another path")


def run(node: Node, started: Callable[[], None], say: Callable[[str, str], None]) -> None:
    """Runs a node until a signal ends it, in the main thread.

    `started` is called once it serves, `say` with the name and a line of each later step:
    draining, overdue, stopped.
    """
    awaited = Awaited()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, awaited.on_signal)
    try:
        starting = awaited.call(node.start)
        awaited.until(lambda: starting.done or awaited.asked)
        if not starting.done:
            say("stopped", "stopped before it had started")
            os._exit(0)  # the store is still allocating; nothing of it outlives the process
        starting.result()
        started()
        awaited.until(lambda: awaited.asked)
        node.state = State.DRAINING  # true before it is said
        say("draining", f"draining, for {node.config.drain:g} s at most")
        draining = awaited.call(node.drain)
        awaited.until(lambda: draining.done)
        if not draining.result():
            say("overdue", "calls were still under way when the time to drain ended")
    finally:
        stopping = awaited.call(node.stop)
        awaited.until(lambda: stopping.done)
        stopping.result()
    say("stopped", "stopped")


class Awaited:
    """What the main thread waits for: signals, and calls that run in threads.

    Python runs signal handlers in the main thread alone, between two steps of it: so it must never
    be inside a long call. And a handler may not wait for a lock that the step it interrupts holds,
    as those of threading.Event are: of what the library has, SimpleQueue.put alone promises that.
    """

    def __init__(self) -> None:
        self.asked = False
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def on_signal(self, number: int, _: object) -> None:
        """The first signal asks for an end; the second is one."""
        if self.asked:
            os._exit(128 + number)
        self.asked = True
        self._woken.put(None)

    def call(self, work: Callable[[], T]) -> Call[T]:
        """Runs `work` in a thread."""
        return Call(work, self._woken)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a signal or a finished call makes it true."""
        while not condition():
            self._woken.get()


class Call(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, work: Callable[[], T], woken: queue.SimpleQueue[None]) -> None:
        self._work = work
        self._woken = woken
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self.done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:
            self._error = error
        self.done = True
        self._woken.put(None)

    def result(self) -> T:
        """What the call returned or raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]
