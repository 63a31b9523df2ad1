"""The demo's replicas as child processes, asked by JSON lines."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import Any

from keepwarm.testing.node import ProcessError

END_S_MAX = 10.0


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
            start_new_session=True,
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
