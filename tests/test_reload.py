"""SIGHUP: what changes at once, what is kept, and what happens when the file is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from keepwarm import ConfigError, Outcome, Status, connect
from keepwarm.config import Loaded, load
from keepwarm.errors import NodeError
from keepwarm.server.reload import Step, carry_out, plan, reload
from nodes import eventually, keys_of, make
from served import WAIT_S, Served, clean, run, served

STORED = Outcome(Status.STORED)


def loaded(text: str, folder: Path, **flags: str) -> Loaded:
    file = folder / "config.toml"
    file.write_text(text)
    return load({"address": str(folder / "s"), **flags}, {}, file)


def test_what_changes_and_what_is_kept_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("cd" * 32)
    secret.chmod(0o600)
    head = f'[tenants.a]\nsecret = "{secret}"\n'
    before = loaded(f'ttl = "1h"\nclients_max = 8\n{head}quota = "1MiB"', tmp_path)
    after = loaded(
        f'ttl = "2h"\nclients_max = 9\n{head}ttl = "5m"\n[tenants.default]\nquota = "2MiB"\n'
        f'[tenants.b]\nsecret = "{secret}"',
        tmp_path,
    )
    planned = plan(before, after)
    assert [str(change) for change in planned.live] == [
        "ttl 3600.0 -> 7200.0",
        "tenants.a.quota 1MiB -> -",
        "tenants.a.ttl - -> 5m",
        "tenants.default.quota - -> 2MiB",
    ]
    assert [str(change) for change in planned.kept] == [
        "clients_max 8 -> 9",
        "tenants.b - -> a new tenant",
    ]
    config = planned.loaded.config
    assert (config.ttl, config.clients_max, sorted(config.tenants)) == (7200, 8, ["a", "default"])
    # A second reload of the same file finds the same to be kept, and nothing to change.
    again = plan(planned.loaded, after)
    assert (again.live, len(again.kept)) == ([], 2)


def test_defaults_that_follow_the_machine_are_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded("", tmp_path)
    monkeypatch.setattr("keepwarm.config.serve.memory_available", lambda: 1 << 33)
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    planned = plan(before, loaded("", tmp_path))
    assert (planned.live, planned.kept, planned.loaded) == ([], [], before)


def test_a_step_that_fails_takes_the_others_back() -> None:
    done: list[str] = []

    def step(name: str, fails: bool = False) -> Step:
        def do() -> None:
            if fails:
                raise NodeError("refused")
            done.append(name)

        return Step(do, lambda: done.remove(name))

    carry_out([step("a"), step("b")])
    assert done == ["a", "b"]
    done.clear()
    with pytest.raises(NodeError, match="refused"):
        carry_out([step("a"), step("b"), step("c", fails=True), step("d")])
    assert done == []


def test_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    before = loaded("", tmp_path)

    def wrong() -> Loaded:
        raise ConfigError("ttl is 'x'", "ttl")

    after, said = reload(before, wrong, lambda _: [])
    assert after is before
    assert said.line() == "settings not reloaded, nothing changed: ttl is 'x'"


class Reloaded:
    """A node with a file, that is told to read it again."""

    def __init__(self, node: Served, file: Path) -> None:
        self.node = node
        self.file = file
        self.lines: list[dict[str, Any]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.node.process.stderr is not None
        for line in self.node.process.stderr:
            self.lines.append(json.loads(line))

    def write(self, text: str) -> str:
        """Writes the file and reloads; returns what the node says about it."""
        self.file.write_text(text)
        self.node.process.send_signal(signal.SIGHUP)
        said = self.node.next_line()
        assert said["event"] == "reloaded", said
        text = said["text"]
        assert isinstance(text, str)
        return text

    def logged(self, event: str) -> dict[str, Any]:
        """The newest line of that kind."""
        find: Callable[[], list[dict[str, Any]]] = lambda: [  # noqa: E731
            line for line in self.lines if line["event"] == event
        ]
        eventually(lambda: bool(find()))
        return find()[-1]


def test_a_serving_node_changes_and_loses_no_block(folder: Path) -> None:
    file = folder / "config.toml"
    file.write_text('ttl = "1h"\n')
    names = make()
    with (
        served(folder, "--config", str(file), "--idle", "9m") as node,
        connect(node.address) as memory,
    ):
        told = Reloaded(node, file)
        space = memory.attach(names)
        assert space.put_from(keys_of(names, 16), bytes(16 << 16)) == [STORED] * 16
        said = told.write(
            'ttl = "2h"\nidle = "1m"\nclients_max = 7\nlog_level = "debug"\n'
            "[tenants.default]\nquota = 524288\n"
        )
        assert "ttl 3600.0 -> 7200.0" in said
        assert "kept until a restart: clients_max" in said
        reloaded = told.logged("reloaded")
        assert (reloaded["changed"], reloaded["log_level"]) == (3, "info -> debug")
        assert reloaded["tenants.default.quota"] == "- -> 524288"
        assert told.logged("reload_kept")["clients_max"] == "256 -> 7"
        # The flag wins over the file again, the others hold: the tenant gives blocks back.
        settings = json.loads(node.admin("/v1/status")[1])["settings"]
        assert settings["idle"]["value"] == 540.0
        assert settings["ttl"] == {"value": 7200.0, "origin": f"file {file}"}
        eventually(lambda: memory.stat()["tenants"]["default"]["bytes"] <= 524288)
        assert memory.stat()["blocks"] == 8
        with connect(node.address) as another:
            another.stat()
        told.logged("connected")
        # A wrong file, then no file, then a FIFO: nothing changes, and the node goes on.
        assert "ttl is 'never'" in told.write('ttl = "never"\n')
        file.unlink()
        os.mkfifo(file)
        node.process.send_signal(signal.SIGHUP)
        assert "is a FIFO: give a plain file" in node.next_line()["text"]
        eventually(lambda: "is a FIFO" in told.logged("reload_failed")["reason"])
        file.unlink()
        assert told.write('ttl = "2h"\n').startswith("settings reloaded: ")
        assert memory.stat()["blocks"] == 8
        assert memory.health()["state"] == "up"
        assert node.end() == 0


def test_a_signal_before_it_serves_waits(folder: Path) -> None:
    file = folder / "config.toml"
    file.write_text("")
    with served(folder, "--config", str(file)) as node:
        for _ in range(3):
            node.process.send_signal(signal.SIGHUP)
        assert node.next_line()["text"] == "settings reloaded: nothing changed"
        assert node.end() == 0


def test_a_socket_that_cannot_be_had_again_ends_the_node(folder: Path) -> None:
    with served(folder) as node, socket.socket(socket.AF_UNIX) as stranger:
        node.address.unlink()
        stranger.bind(str(node.address))
        stranger.listen()
        assert node.process.wait(WAIT_S) == 1
        assert node.process.stderr is not None
        logged = node.process.stderr.read()
        assert '"event": "socket_lost"' in logged
        assert f"could reach it any more: socket path {node.address} in use by pid" in logged
        assert node.address.exists(), "it is another's"


def test_files_that_are_none_are_refused(folder: Path) -> None:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    for file, kind in ((fifo, "a FIFO"), (Path("/dev/zero"), "a device"), (folder, "a folder")):
        said = run("serve", "--config", str(file), **clean({}))
        assert said.returncode == 2
        assert f"file {file} is {kind}: give a plain file" in said.stderr
        said = run("drop", str(file), **clean({}))
        assert (said.returncode, f"is {kind}" in said.stderr) == (2, True), said.stderr


def test_the_service_manager_hears(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(WAIT_S)
        with served(folder, NOTIFY_SOCKET=str(folder / "notify")) as node:
            heard = manager.recv(4096).decode().splitlines()
            assert heard[0] == "READY=1"
            assert f"MAINPID={node.process.pid}" in heard
            node.process.send_signal(signal.SIGHUP)
            assert manager.recv(4096).decode().startswith("RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(4096).decode().startswith("READY=1")
            node.process.terminate()
            assert manager.recv(4096).decode().startswith("STOPPING=1")
            assert node.process.wait(WAIT_S) == 0
