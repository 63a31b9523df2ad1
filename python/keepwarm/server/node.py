"""The life of a node: starting, serving, draining, stopped.

```text
starting ──store open, socket bound──► serving ──first signal──► draining ──► stopped
    └────────────first signal──────────────────────────────────────────────────►┘
```
A second signal ends the process at once; SIGHUP reads the settings again. Admin HTTP answers in
every state. `running.py` is the main thread that waits for signals.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import keepwarm
from keepwarm import _core
from keepwarm.config import (
    Loaded,
    flash_row,
    make_folder,
    principal_rows,
    show_size,
    tenant_rows,
)
from keepwarm.errors import ClosedError, ConfigError, NodeError
from keepwarm.machine import Finding, findings, raise_descriptors
from keepwarm.outcomes import nest
from keepwarm.server.admin import AdminServer
from keepwarm.server.log import Log, say
from keepwarm.server.reload import Change, Plan, Reloaded, Step, reload, shown, tunings


class State(StrEnum):
    """Where in its life a node is."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Drained(NamedTuple):
    """What the end wrote to flash."""

    blocks: int
    size: int
    left: int
    durable: bool

    def __str__(self) -> str:
        kept = f"wrote {self.blocks} blocks, {show_size(self.size)}, to flash"
        if self.left:
            kept += f"; {self.left} found no time or room"
        return kept if self.durable else f"{kept}; the device did not confirm all of it"


class Node:
    """One node, for one process."""

    def __init__(self, loaded: Loaded, read: Callable[[], Loaded] | None = None) -> None:
        self._loaded = loaded
        self._read = read or (lambda: loaded)
        self.config = loaded.config
        self.state = State.STARTING
        self.started_unix_s = time.time()
        self.admin: AdminServer | None = None
        self.findings: list[Finding] = []
        self.log: Log | None = None
        self._store: _core.Store | None = None
        self._server: _core.Server | None = None
        self.drained: Drained | None = None

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
            "machine": [finding._asdict() for finding in self.findings],
            "figures": self.figures(),
        }

    def settings(self) -> dict[str, dict[str, Any]]:
        """Each setting: its value, and where it came from. Secrets are files, and not read."""
        out = {}
        for name, origin in self._loaded.origins.items():
            value = getattr(self.config, name)
            if name == "tenants":
                value = sorted(value) or ["default alone"]
            elif name == "principals":
                value = sorted(value) or ["the node's user alone"]
            elif isinstance(value, Path):
                value = str(value)
            elif name == "listen" and self._server is not None:
                value = self._listening()
            elif name == "admin":
                value = str(self.admin.address if self.admin else value or "off")
            elif name == "state_dir":
                value = str(value or "off")
            elif name == "flash":
                value = [str(device) for device in value]
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
        self._check_limits()
        if config.admin is not None:
            self.admin = AdminServer(self, config.admin)
        make_folder(Path(config.address).parent, "address")
        check_free(config.address)
        if config.state_dir is not None:
            make_folder(config.state_dir, "state_dir")
        self.log = Log(config.node, config.log_format, config.log_level)
        self._store = _core.Store(
            config.capacity,
            policy=config.policy,
            max_blocks=config.max_blocks,
            tenants=tenant_rows(config.tenants),
            ttl_s=config.ttl,
            state_dir=config.state_dir,
            populate=config.populate,
            huge_pages=config.huge_pages,
            flash=flash_row(
                config.flash,
                erase=config.format,
                budget=config.flash_budget,
                admission=config.flash_admission,
            ),
        )
        self._server = _core.Server(
            self._store,
            config.address,
            listen=config.listen,
            tls=(config.tls_ca, config.tls_cert, config.tls_key, config.tls_crl),
            principals=principal_rows(config.principals),
            node=config.node,
            clients_max=config.clients_max,
            idle_s=config.idle,
        )
        self._server.announce(config.weight)
        self.state = State.SERVING
        self._say_started()

    def _check_limits(self) -> None:
        """Refuses limits under which it cannot serve, and remembers those to mend."""
        clients_max, devices = self.config.clients_max, len(self.config.flash)
        raise_descriptors(clients_max, devices)
        self.findings = findings(clients_max, devices)
        for finding in self.findings:
            if finding.level == "fail":
                raise ConfigError(finding.todo, "clients_max")

    def _say_started(self) -> None:
        settings = self.settings()
        fields = {name: setting["value"] for name, setting in settings.items()}
        origins = {f"{name}.from": setting["origin"] for name, setting in settings.items()}
        say("started", {"pid": os.getpid(), "version": keepwarm.__version__, **fields, **origins})
        say("machine", dict(self.ground()) | {each.name: each.figure for each in self.findings})
        for finding in self.findings:
            if finding.level != "ok":
                told = {"limit": finding.name, "figure": finding.figure, "todo": finding.todo}
                say("machine_limit", told)

    def ground(self) -> list[tuple[str, str]]:
        """What the arena lies on, for people."""
        figures = self.figures()
        if figures is None:
            return []
        huge, whole = figures["arena_huge_bytes"], figures["capacity_bytes"]
        pages = figures["arena_pages"]
        if pages != "plain" and self.config.populate:
            pages = f"{pages}, {show_size(huge)} of {show_size(whole)} are huge"
        nodes = figures["memory_nodes"]
        spread = "all interleaved" if figures["memory_interleaved"] else "not interleaved"
        return [("pages", pages), ("memory_nodes", f"{nodes}, {spread}" if nodes > 1 else "1")]

    def lost(self) -> str | None:
        """Why nobody reaches it any more, if so."""
        server = self._server
        try:
            return server.lost() if server is not None else None
        except ClosedError:
            return None

    def reload(self) -> Reloaded:
        """Reads the settings again and changes what may change while it serves."""
        self._loaded, done = reload(self._loaded, self._read, self._steps)
        self.config = self._loaded.config
        if done.error is not None:
            say("reload_failed", {"reason": done.error})
            return done
        say("reloaded", {"changed": len(done.live), **_audit(done.live)})
        if done.kept:
            say("reload_kept", _audit(done.kept))
        return done

    def _steps(self, plan: Plan) -> list[Step]:
        """What a reload does to the running parts; the rest is read where it is used."""
        old, new = self.config, plan.loaded.config
        store, server, log = self._store, self._server, self.log
        if store is None or server is None or log is None:
            raise NodeError("the node does not serve: start it again with the new settings")
        return [
            Step(
                lambda: store.retune(tunings(new)),
                lambda: store.retune(tunings(old)),
            ),
            Step(
                lambda: server.set_idle(new.idle),
                lambda: server.set_idle(old.idle),
            ),
            Step(
                lambda: server.announce(new.weight),
                lambda: server.announce(old.weight),
            ),
            Step(
                # Certificates are read again whether or not their settings changed.
                lambda: server.reload_access(principal_rows(new.principals)),
                lambda: server.reload_access(principal_rows(old.principals)),
            ),
            Step(
                lambda: log.tune(new.log_format, new.log_level),
                lambda: log.tune(old.log_format, old.log_level),
            ),
        ]

    def retire(self) -> None:
        """Is ready no more: whoever is told that the node drains can rely on it."""
        self.state = State.DRAINING
        say("draining", {"longest_s": self.config.drain})

    def drain(self) -> bool:
        """Takes no more clients or puts, and waits for calls under way. True when all ended."""
        began = time.monotonic()
        ended = self._server is None or self._server.drain(self.config.drain)
        if not ended:
            say("drain_overdue", {"longest_s": self.config.drain})
        if self._store is not None and self.config.flash:
            # Whatever the calls took, flash gets a quarter of the time.
            left = self.config.drain - (time.monotonic() - began)
            self.drained = Drained(*self._store.drain_flash(max(left, self.config.drain / 4)))
        return ended

    def stop(self) -> None:
        """Gives everything back; harmless twice."""
        if self._server is not None:
            self._server.stop()
        if self._store is not None:
            self._store.close()
        self._server, self._store = None, None
        if self.state in (State.SERVING, State.DRAINING):
            say("stopped")
        self.state = State.STOPPED
        if self.admin is not None:
            self.admin.stop()
        if self.log is not None:
            self.log.close()


def _audit(changes: list[Change]) -> dict[str, str]:
    return {each.name: f"{shown(each.old)} -> {shown(each.new)}" for each in changes}


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
