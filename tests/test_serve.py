"""The life of a node's process: signals at any moment, and an output that nobody takes."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from keepwarm import NodeError
from keepwarm.cli import exits, output
from keepwarm.config import load
from keepwarm.server.node import Node, check_free
from keepwarm.server.running import Awaited
from nodes import LocalNode
from served import WAIT_S, clean


def test_a_signal_may_come_at_any_step_of_the_wait() -> None:
    """A handler runs between two steps of the thread that it interrupts, whatever that holds."""
    awaited = Awaited()
    rounds = iter(range(5))

    def at_each_step(_: FrameType, event: str, __: Any) -> Any:
        if event == "line":
            awaited.asked = False  # a second signal would end this process
            awaited.on_signal(signal.SIGTERM, None)
        return at_each_step

    def wait() -> None:
        awaited.on_signal(signal.SIGTERM, None)
        sys.settrace(at_each_step)
        awaited.until(lambda: next(rounds, None) is None)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WAIT_S)
    assert not waiting.is_alive(), "the handler waits for what it has interrupted"


def test_a_call_that_ends_wakes_who_waits() -> None:
    awaited = Awaited()
    calls = [awaited.call(lambda: 7) for _ in range(3)]
    awaited.until(lambda: all(call.done for call in calls))
    assert [call.result() for call in calls] == [7, 7, 7]


def test_no_signal_is_lost_that_comes_while_another_is_taken(folder: Path) -> None:
    """The system gives the second one to another thread than the main one."""
    for first in ([signal.SIGHUP], [signal.SIGSTOP, signal.SIGCONT], [signal.SIGHUP] * 3):
        command = (sys.executable, "-m", "keepwarm.cli", "serve", "--capacity", "8MiB")
        where = ("--admin", "off", "--state-dir", "off", "--address", str(folder / "s"))
        node = subprocess.Popen(
            [*command, *where], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean({})
        )
        assert node.stdout is not None
        try:
            assert any(b"ready" in line for line in node.stdout)
            for number in [*first, signal.SIGTERM]:
                node.send_signal(number)
            assert node.wait(WAIT_S) == 0
        finally:
            node.kill()
            node.communicate()


def test_it_drains_though_nobody_reads_what_it_says(folder: Path) -> None:
    command = (sys.executable, "-m", "keepwarm.cli", "serve", "--capacity", "8MiB")
    where = ("--admin", "off", "--state-dir", "off", "--address", str(folder / "s"))
    read, write = os.pipe()
    node = subprocess.Popen(
        [*command, *where], stdout=write, stderr=subprocess.PIPE, text=True, env=clean({})
    )
    os.close(write)
    said = b""
    while b"ready" not in said:
        said += (more := os.read(read, 4096))
        assert more, node.communicate()
    os.close(read)
    node.terminate()
    _, complaint = node.communicate(timeout=WAIT_S)
    assert node.returncode == 0
    assert [json.loads(line)["event"] for line in complaint.splitlines()][-1] == "stopped"


class Broken(io.StringIO):
    """An output that fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed")]
)
def test_what_is_told_never_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(error))
    monkeypatch.setattr(sys, "stderr", Broken(error))
    output.tell("a line")
    output.complain("a line")
    monkeypatch.setattr(sys, "stdout", None)
    output.tell("a line")


def test_what_an_ascii_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    output.tell("n\u00f8de")
    assert shown.getvalue() == b"n\\xf8de\n"


def test_a_full_disk_is_a_line_and_1() -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "keepwarm.cli", "--help"],
            env=clean({}),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert said.returncode == exits.FAILED
    assert said.stderr == "keepwarm: output: No space left on device\n"


def test_a_socket_in_use_is_found_before_memory_is_taken(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any, **__: Any) -> None:
        raise AssertionError("it took memory first")

    monkeypatch.setattr("keepwarm._core.Store", taken)
    flags = {"capacity": "8MiB", "address": str(node.path), "admin": "off", "state_dir": "off"}
    with pytest.raises(NodeError, match=f"{node.path} in use by pid {os.getpid()}: stop that node"):
        Node(load(flags, {})).start()


def test_a_free_socket_is_free(folder: Path) -> None:
    path = folder / "s"
    check_free(str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))  # as a killed node leaves it
        check_free(str(path))
        listening.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            with pytest.raises(NodeError, match="in use by a node that is busy"):
                check_free(str(path))
