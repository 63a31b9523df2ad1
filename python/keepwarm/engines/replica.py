"""A real `vllm serve` as a child: started, waited for, stopped, and nothing of it left behind.

An engine is a family of processes (API server, engine core, worker) and a few files in /dev/shm.
All of the family is one process group, which is what we end; files that it had mapped and that
are still there afterwards are removed. If we are killed ourselves the kernel ends the API server,
and that its children.

    Flags, ReplicaConfig   what is run, and with which connector
    Replica                one engine at one port
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from keepwarm.engines.asking import EngineClient, EngineError

PACKAGE = Path(__file__).resolve().parents[1]
# Run by the engine's Python, by path: keepwarm.engines.leash.
LEASH = PACKAGE / "engines" / "leash.py"
MODULE = "keepwarm.connectors.vllm"
READY_S_MAX = 300.0
TERM_S_MAX = 20.0
ORPHANS_S_MAX = 2.0
KILL_S_MAX = 10.0
SAID_LINES = 12

Connector = Literal["direct", "tier"]


def transfer_config(
    connector: Connector, address: str, host_bytes: int = 256 << 20, **settings: object
) -> dict[str, Any]:
    """The value of --kv-transfer-config: what docs/vllm.md tells people to write."""
    named = {"direct": "KeepwarmConnector", "tier": "KeepwarmOffloadingConnector"}
    common: dict[str, Any] = {
        "kv_connector": named[connector],
        "kv_role": "kv_both",
        "kv_connector_module_path": MODULE,
        "kv_load_failure_policy": "recompute",
    }
    given = {"address": address, **settings}
    if connector == "direct":
        return {**common, "kv_connector_extra_config": given}
    tier = {"type": "KeepwarmTier", "module_path": MODULE, **given}
    return {
        **common,
        "kv_connector_extra_config": {
            "spec_name": "HostTieringSpec",
            "spec_module_path": MODULE,
            "cpu_bytes_to_use": host_bytes,
            "secondary_tiers": [tier],
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """What is run. One process each for two replicas on two cores: small sizes throughout."""

    python: Path
    model: Path
    served: str = "demo"
    transfer: Mapping[str, object] | None = None
    block_tokens: int = 32
    context_tokens: int = 4096
    kv_bytes: int = 1 << 30
    requests_max: int = 8
    threads: int = 2
    extra: Sequence[str] = ()

    def arguments(self, port: int) -> list[str]:
        """Of the engine's Python."""
        made = [
            *("-m", "vllm.entrypoints.cli.main", "serve", str(self.model)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--served-model-name", self.served),
            # float32 is the only type that a CPU without bf16 units is fast at.
            *("--dtype", "float32", "--enforce-eager"),
            *("--block-size", str(self.block_tokens)),
            *("--max-model-len", str(self.context_tokens)),
            *("--max-num-seqs", str(self.requests_max)),
            *("--kv-cache-memory-bytes", str(self.kv_bytes)),
            *("--disable-uvicorn-access-log",),
        ]
        if self.transfer is not None:
            made += ["--kv-transfer-config", json.dumps(self.transfer)]
        return [*made, *self.extra]

    def environment(self, modules: Path) -> dict[str, str]:
        """Ours, without what would change an engine or a node unseen."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KEEPWARM_", "VLLM_", "PYTHON"))
        }
        return kept | {
            "PYTHONPATH": str(modules),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self.threads),
        }


class Replica:
    """One engine. It ends with the thread that started it: start it from a lasting one."""

    def __init__(
        self, name: str, config: ReplicaConfig, folder: Path, logs: Path | None = None
    ) -> None:
        """`folder` is for as long as it runs; its log goes to `logs`, over an earlier one."""
        self.name = name
        self.config = config
        self.log = (logs or folder) / f"replica-{name}.log"
        self.log.unlink(missing_ok=True)
        self._modules = folder / "modules"
        self._child: subprocess.Popen[bytes] | None = None
        self._shared: set[Path] = set()
        self._port = 0

    @property
    def client(self) -> EngineClient:
        """To ask it."""
        return EngineClient(f"http://127.0.0.1:{self._port}")

    @property
    def command(self) -> str:
        """What is run, for people."""
        given = shlex.join(self.config.arguments(self._port)[2:])
        return f"vllm {given}"

    def start(self) -> None:
        """Starts it, without waiting; at another port each time."""
        assert self._child is None, "stop it first"
        self._link_modules()
        self._port = _free_port()
        python = str(self.config.python)
        command = [
            *(python, str(LEASH), str(os.getpid())),
            *(python, *self.config.arguments(self._port)),
        ]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.config.environment(self._modules),
                cwd=self._modules,
                start_new_session=True,
            )

    def wait_ready(
        self, patience_s: float = READY_S_MAX, tell: Callable[[], None] = lambda: None
    ) -> None:
        """Until it answers; `tell` is called now and then. EngineError with its own last words."""
        until, pause = time.monotonic() + patience_s, threading.Event()
        while not self.client.is_well():
            if self._child is None or self._child.poll() is not None:
                raise EngineError(f"replica {self.name} ended by itself: {self.said()}")
            if time.monotonic() > until:
                why = f"did not answer within {patience_s:.0f} s"
                raise EngineError(f"replica {self.name} {why}: {self.said()}")
            tell()
            pause.wait(0.25)

    def stop(self) -> None:
        """Ends it in an orderly way, or else by force. What it had shared is gone, too."""
        self._end(signal.SIGTERM)

    def tell_to_end(self) -> None:
        """SIGTERM, without waiting: for several, before each is stopped."""
        if self._child is not None:
            self._shared |= _shared_files(_group(self._child.pid))
            with suppress(ProcessLookupError):
                # The API server ends its own children; at the group all would be told twice.
                self._child.terminate()

    def kill(self) -> None:
        """kill -9 of all of it."""
        self._end(signal.SIGKILL)

    def said(self) -> str:
        """The lines of its log that say why, or else the last ones."""
        if not self.log.exists():
            return "it said nothing"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if re.search(r"\w*(Error|Exception)\b: ", line)]
        shown = telling[-1:] + lines[-SAID_LINES:] if telling else lines[-SAID_LINES:]
        return "\n".join([f"(all of it in {self.log})", *shown]) if shown else "it said nothing"

    def processes(self) -> list[int]:
        """All that is left of the family."""
        return [] if self._child is None else _group(self._child.pid)

    def _end(self, how: signal.Signals) -> None:
        child = self._child
        if child is None:
            return
        self._shared |= _shared_files(_group(child.pid))
        if how is signal.SIGTERM:
            self.tell_to_end()
            _wait_gone(child, TERM_S_MAX, orphans_s=ORPHANS_S_MAX)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        _wait_gone(child, KILL_S_MAX, orphans_s=KILL_S_MAX)
        child.wait()
        self._child = None
        for path in self._shared:
            path.unlink(missing_ok=True)
        self._shared.clear()

    def _link_modules(self) -> None:
        """A folder that holds this package alone: beside it may lie others that an engine has, too.

        Several replicas share it, and each may be the first.
        """
        self._modules.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (self._modules / PACKAGE.name).symlink_to(PACKAGE, target_is_directory=True)

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _group(leader: int) -> list[int]:
    """Processes of a group that are still alive; zombies are not."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError, ValueError):
            # Behind the name, which may hold anything: state, parent, group.
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def _shared_files(processes: list[int]) -> set[Path]:
    """What they have mapped in /dev/shm, and nobody else has."""
    ours: set[Path] = set()
    for process in processes:
        with suppress(OSError):
            ours |= _mapped(process)
    if not ours:
        return ours
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in processes:
            with suppress(OSError):
                ours -= _mapped(int(entry.name))
    return ours


def _mapped(process: int) -> set[Path]:
    lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    paths = (line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line)
    return {Path(path) for path in paths if not path.endswith(" (deleted)")}


def _wait_gone(child: subprocess.Popen[bytes], patience_s: float, orphans_s: float) -> None:
    """Until the family has ended; those that the first of it leaves behind have less time."""
    until, pause = time.monotonic() + patience_s, threading.Event()
    alone = False
    while time.monotonic() < until:
        if child.poll() is not None and not alone:
            alone, until = True, min(until, time.monotonic() + orphans_s)
        if not _group(child.pid):
            return
        pause.wait(0.05)
