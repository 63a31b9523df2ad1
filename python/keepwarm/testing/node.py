"""A real node as a child process, to be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keepwarm

START_S_MAX = 30.0
END_S_MAX = 10.0


class ProcessError(RuntimeError):
    """A process did not do what it must: which one, and what it said."""


def _environment() -> dict[str, str]:
    """Ours without settings of nodes: a test's node has those that the test gives it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KEEPWARM_")}


class NodeProcess:
    """`keepwarm serve` as a child; started again after a kill, at the same address."""

    def __init__(
        self, folder: Path, arena_bytes: int, policy: str = "lru", extra: Sequence[str] = ()
    ) -> None:
        self.address = f"unix:{folder / 'node.sock'}"
        self._log = folder / "node.log"
        self._command = [
            *(sys.executable, "-m", "keepwarm.cli", "serve"),
            *("--capacity", str(arena_bytes)),
            *("--address", self.address),
            *("--policy", policy),
            *("--admin", "off"),
            *(() if "--state-dir" in extra else ("--state-dir", "off")),
            *extra,
        ]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> str:
        """What is run, for people."""
        return " ".join(["keepwarm", *self._command[3:]])

    @property
    def pid(self) -> int:
        """The running node's."""
        assert self._child is not None
        return self._child.pid

    def start(self) -> float:
        """Starts the node; returns when (monotonic) its process was made, without waiting."""
        with self._log.open("ab") as log:
            made = time.monotonic()
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        return made

    def wait_ready(self) -> float:
        """Waits until the node answers; returns when that was."""
        until = time.monotonic() + START_S_MAX
        pause = threading.Event()
        with keepwarm.connect(self.address) as memory:
            while time.monotonic() < until:
                self._check_alive()
                try:
                    memory.stat()
                    return time.monotonic()
                except keepwarm.NodeError:
                    pause.wait(0.01)
        raise ProcessError(f"the node did not answer within {START_S_MAX} s: {self._said()}")

    def _check_alive(self) -> None:
        if self._child is None or self._child.poll() is not None:
            raise ProcessError(f"the node ended by itself: {self._said()}")

    def _said(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return text[-2000:].strip() or "it said nothing"

    def last_line(self, start: str) -> str:
        """The last line of its output that starts so; empty if there is none."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith(start)), "")

    def wait_claimed(self) -> dict[str, Any]:
        """Waits until what an earlier run left on flash is claimed; returns the figures."""
        until = time.monotonic() + START_S_MAX
        pause = threading.Event()
        while (stat := self.stat()).get("flash_recovering") and time.monotonic() < until:
            pause.wait(0.02)
        return stat

    def stat(self) -> dict[str, Any]:
        """The node's own account."""
        with keepwarm.connect(self.address) as memory:
            return dict(memory.stat())

    def descriptors(self) -> int:
        """How many files and sockets the node has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def kill(self) -> float:
        """kill -9; returns when. The process is gone when this returns."""
        assert self._child is not None
        killed = time.monotonic()
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(END_S_MAX)
        return killed

    def stop(self) -> None:
        """Ends the node in an orderly way, or else by force."""
        if self._child is None or self._child.poll() is not None:
            return
        self._child.terminate()
        try:
            self._child.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
