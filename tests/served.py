"""The command as a process, and a node that it serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 30


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "keepwarm.cli", *arguments],
        env=clean(environment),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def clean(more: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KEEPWARM_")}
    return {**kept, **more}


class Served:
    """`keepwarm serve --json` as a process that is ready."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.address = folder / "node.sock"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "keepwarm.cli", "serve", "--json"),
                *("--address", f"unix:{self.address}", "--admin", "127.0.0.1:0"),
                *("--capacity", "8MiB", *arguments),
            ],
            env=clean(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: dict[str, Any] = self.next_line()

    def next_line(self) -> dict[str, Any]:
        """The next thing it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"it ended: {self.process.stderr.read()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def admin(self, path: str) -> tuple[int, str]:
        """One page of admin HTTP."""
        url = self.said["settings"]["admin"]["value"] + path
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    node = Served(folder, *arguments, **environment)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()
        for stream in (node.process.stdout, node.process.stderr):
            assert stream is not None
            stream.close()
