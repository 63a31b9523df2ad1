"""The node's log: its lines, its limits, its catalogue, and what it never says."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from keepwarm import AttachError, Outcome, Status, _core, connect
from keepwarm.server import log
from keepwarm.server.admin import Told
from keepwarm.server.log import FORMATS, Log, format_named
from nodes import eventually, keys_of, make
from served import WAIT_S, Served, clean, served

STORED = Outcome(Status.STORED)
ROOT = Path(__file__).resolve().parent.parent


def lines_of(node: Served) -> list[dict[str, Any]]:
    """All that a node has logged; ends it."""
    node.process.terminate()
    _, logged = node.process.communicate(timeout=WAIT_S)
    return [json.loads(line) for line in logged.splitlines()]


def talk(address: Path, words: bytes) -> None:
    """Says something that is no frame, and waits for the end."""
    with suppress(ConnectionResetError), socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(WAIT_S)
        stranger.connect(str(address))
        stranger.sendall(words)
        while stranger.recv(4096):
            pass


def named(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_a_nodes_life_in_lines(folder: Path) -> None:
    with served(folder, "--node", "n1", "--idle", "7m") as node:
        lines = lines_of(node)
    assert [line["event"] for line in lines if line["level"] != "warn"] == [
        *("started", "machine", "draining", "stopped")
    ]
    started = lines[0]
    assert (started["node"], started["pid"]) == ("n1", node.process.pid)
    assert (started["idle"], started["idle.from"]) == (420.0, "--idle")
    assert (started["drain"], started["drain.from"]) == (10.0, "default")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", started["time"])


def test_zero_hits_are_explained_where_the_operator_looks(folder: Path) -> None:
    with served(folder, "--log-level", "debug") as node:
        with connect(node.address) as memory:
            memory.attach(make())
            memory.attach(make(kv_dtype="fp8"))
        lines = lines_of(node)
    attached, differs = named(lines, "namespace_attached")[0], named(lines, "namespace_differs")[0]
    assert differs["nearest"] == 'kv_dtype: "fp8" here, "bf16" there'
    assert differs["level"] == "warn"
    for line in (attached, differs):
        assert (line["tenant"], line["model"]) == ("default", "m")
        assert (line["peer_pid"], line["peer_uid"]) == (os.getpid(), os.geteuid())
    assert attached["namespace"] == make().fingerprint.hex()[:12]
    assert len(named(lines, "connected")) == len(named(lines, "disconnected")) > 0


def test_who_is_refused_and_why(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    with served(folder) as node:
        talk(node.address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8)
        with (
            connect(node.address) as memory,
            pytest.raises(AttachError, match="tenant other is unknown"),
        ):
            memory.attach(make(secret=secret, tenant="other"))
        lines = lines_of(node)
    assert named(lines, "violation")[0]["peer_pid"] == os.getpid()
    assert "tenant other is unknown here" in named(lines, "attach_refused")[0]["reason"]


def test_epochs_drops_and_nothing_of_what_was_stored(folder: Path) -> None:
    content = b"the words of somebody" * 200
    keys = keys_of(make(), 1)
    with served(folder, "--log-level", "debug") as node:
        with connect(node.address) as memory:
            space = memory.attach(make())
            assert space.put_from(keys, content) == [STORED]
            space.bump_epoch(3)
            space.drop()
        lines = lines_of(node)
    assert named(lines, "epoch_adopted")[0]["epoch"] == 3
    assert named(lines, "namespace_dropped")[0]["blocks"] == 0
    text = json.dumps(lines)
    assert "somebody" not in text
    assert keys.hex() not in text


def test_a_flood_of_one_kind_is_counted_and_hides_no_other(folder: Path) -> None:
    with served(folder) as node:
        for _ in range(40):
            talk(node.address, bytes(64))
        with connect(node.address) as memory:
            memory.attach(make())
            server = memory.stat()["server"]
        lines = lines_of(node)
    kept = len(named(lines, "violation"))
    told = sum(line["count"] for line in named(lines, "suppressed") if line["of"] == "violation")
    assert kept + told == 40
    assert 10 <= kept <= 30, "a burst each interval of ten seconds, which this may cross"
    assert (server["log_suppressed"], server["log_lost"]) == (told, 0)
    assert named(lines, "namespace_attached")


def test_nobody_who_reads_stops_no_call(folder: Path) -> None:
    """The pipe of standard error is full: calls go on, and the end comes in time."""
    program = (
        "import fcntl, os, sys; fcntl.fcntl(2, 1031, 4096); os.set_blocking(2, False)\n"
        "try:\n    while True: os.write(2, b'x' * 4096)\n"
        "except BlockingIOError: os.set_blocking(2, True)\n"
        "from keepwarm.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    where = ("--admin", "off", "--state-dir", "off", "--address", str(folder / "s"))
    read, write = os.pipe()
    command = (sys.executable, "-c", program, "serve", "--json", "--capacity", "8MiB", *where)
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, env=clean({}))
    os.close(write)
    try:
        assert node.stdout is not None
        assert json.loads(node.stdout.readline())["event"] == "serving"
        with connect(folder / "s") as memory:
            space = memory.attach(make())
            for seed in range(50):
                assert space.put_from(keys_of(make(), 1, seed), bytes(4096)) == [STORED]
        node.terminate()
        assert node.wait(WAIT_S) == 0
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()
        os.close(read)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """A log of this process on a stream of its own."""
    stream = io.StringIO()
    kept = Log("n", "json", "info", stream)
    yield stream
    kept.close()


def test_lines_of_python_and_of_a_tuned_log(written: io.StringIO) -> None:
    log.say("machine", {"flag": True, "none": None, "many": [1, 2], "size": 1 << 70, "share": 0.5})
    eventually(lambda: "machine" in written.getvalue())
    line = json.loads(written.getvalue())
    fields = (line["flag"], line["none"], line["many"], line["size"], line["share"])
    assert fields == ("yes", "-", "1, 2", str(1 << 70), 0.5)
    with pytest.raises(Exception, match="not in the catalogue"):
        log.say("nonsense")


def test_formats_let_nothing_break_out_of_a_line() -> None:
    fields: dict[str, int | float | str] = {
        "reason": 'a "b"\nstarted fake=1',
        "count": 3,
        "share": 0.25,
        "name": "plain",
    }
    text = FORMATS["text"]("violation", "warn", 1_700_000_000_123, "n", fields)
    assert text == (
        "2023-11-14T22:13:20.123Z warn  violation "
        r'reason="a \"b\"\nstarted fake=1" count=3 share=0.25 name=plain'
    )
    assert "\n" not in FORMATS["json"]("violation", "warn", 0, "n", fields)
    assert json.loads(FORMATS["json"]("x", "warn", 0, "n", {"rate": float("inf")}))["rate"] is None


def test_a_fault_behind_admin_http_is_a_line(written: io.StringIO) -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        info = (RuntimeError, error, None)
        record = logging.LogRecord("uvicorn.error", 40, "", 0, "Exception in page\n", (), info)
    Told().handle(record)
    eventually(lambda: "admin_error" in written.getvalue())
    assert json.loads(written.getvalue())["reason"] == "Exception in page: RuntimeError('broken')"


def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert format_named("auto", Terminal()) is FORMATS["text"]
    assert format_named("auto", io.StringIO()) is FORMATS["json"]
    assert format_named("auto", None) is FORMATS["json"]


def test_the_document_lists_the_catalogue() -> None:
    text = (ROOT / "docs/operate.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    assert rows == _core.log_events()


def test_every_event_is_said_somewhere() -> None:
    """By the core as `Event::Name`, or by the node as `say("name"`; the journal says two itself."""
    rust = "".join(path.read_text() for path in ROOT.glob("crates/*/src/**/*.rs"))
    python = "".join(path.read_text() for path in ROOT.glob("python/keepwarm/server/*.py"))
    said = set(re.findall(r"Event::(\w+)[,)]", rust.partition("#[cfg(test)]")[0] + rust))
    names = {name.title().replace("_", "") for name in re.findall(r'say\(\s*"(\w+)"', python)}
    known = {event.title().replace("_", "") for event, _, _ in _core.log_events()}
    assert known - said - names == set()


def test_the_log_thread_alone_waits_for_a_reader() -> None:
    class Stuck(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.entered = threading.Event()
            self.freed = threading.Event()

        def write(self, text: str) -> int:
            self.entered.set()
            assert self.freed.wait(WAIT_S)
            return super().write(text)

    stream = Stuck()
    kept = Log("n", "json", "debug", stream)
    try:
        log.say("connected")
        assert stream.entered.wait(WAIT_S)
        for event, _, _ in _core.log_events():
            for _ in range(50):
                log.say(event)  # far more than the journal holds
        stream.freed.set()
        eventually(lambda: '"suppressed"' in stream.getvalue() or stream.getvalue() != "")
    finally:
        stream.freed.set()
        kept.close()
    assert [json.loads(line) for line in stream.getvalue().splitlines()]
