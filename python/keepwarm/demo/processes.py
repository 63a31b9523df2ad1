"""The demo's processes: a node that can be killed, and replicas that are asked by JSON lines."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keepwarm
from keepwarm.demo import machine

START_S_MAX = 30.0
END_S_MAX = 10.0


class ProcessError(RuntimeError):
    """A process of the demo did not do what it must: which one, and what it said."""


class NodeProcess:
    """`keepwarm serve` as a child; started again after a kill, at the same address."""

    def __init__(self, folder: Path, arena_bytes: int, policy: str) -> None:
        self.address = f"unix:{folder / 'node.sock'}"
        self._log = folder / "node.log"
        self._command = [
            *(sys.executable, "-m", "keepwarm.cli", "serve"),
            *("--capacity", str(arena_bytes)),
            *("--address", self.address),
            *("--policy", policy),
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
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
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

    def stat(self) -> dict[str, Any]:
        """The node's own account."""
        with keepwarm.connect(self.address) as memory:
            return dict(memory.stat())

    def resident(self) -> dict[str, int]:
        """The node's memory."""
        return machine.resident_bytes(self.pid)

    def kill(self) -> float:
        """kill -9; returns when. The process is gone when this returns."""
        assert self._child is not None
        killed = time.monotonic()
        os.kill(self._child.pid, signal.SIGKILL)
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


class ReplicaProcess:
    """A replica as a child; its answers arrive in a queue that all replicas share."""

    def __init__(
        self, number: int, name: str, settings: dict[str, Any], answers: queue.Queue[Any]
    ) -> None:
        self.number = number
        self.name = name
        self._answers = answers
        self._child = subprocess.Popen(
            [sys.executable, "-m", "keepwarm.demo.replica"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"replica-{name}", daemon=True)
        self._reader.start()
        self.ask(settings)

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._answers.put((self.number, json.loads(line)))
        self._answers.put((self.number, None))

    def ask(self, job: dict[str, Any]) -> None:
        """Sends a job; its answer comes through the queue."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(job) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise ProcessError(f"replica {self.name} ended by itself; see its output") from None

    def close(self) -> None:
        """Ends the replica, or else by force."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join(END_S_MAX)
        if self._child.stdout is not None:
            self._child.stdout.close()
