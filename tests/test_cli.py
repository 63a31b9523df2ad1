"""The command line, as processes: what it says, and with which code it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keepwarm
import pytest
from cyclopts import App
from keepwarm import Outcome, Status, cli
from keepwarm.testing import FaultProxy, Towards
from nodes import FIELDS, LocalNode, eventually, keys_of, make
from served import WAIT_S, clean, run, served


def test_help_teaches() -> None:
    for arguments in ((), ("--help",), ("-h",)):
        said = run(*arguments)
        assert said.returncode == 0
        assert "A shared context memory for LLM inference fleets." in said.stdout
        first, second = (said.stdout.index(f"keepwarm {c}") for c in ("serve --capacity", "stat "))
        assert first < second
        assert "Exit codes: 0 ok, 1 failed, 2 usage, 3 node unreachable." in said.stdout
        assert "\x1b" not in said.stdout
        for command in ("serve", "stat", "drop"):
            assert re.search(rf"{command} +[A-Z]", said.stdout)
        assert said.stderr == ""


def test_each_command_has_help_and_every_setting_a_flag() -> None:
    for command in ("serve", "stat", "drop"):
        said = run(command, "--help")
        assert said.returncode == 0
        assert "Usage: keepwarm " in said.stdout
    shown = run("serve", "--help").stdout
    for setting in set(keepwarm.config.PARSERS) - {"tenants"}:
        assert f"--{setting.replace('_', '-')} " in shown


def test_version() -> None:
    said = run("--version")
    assert (said.returncode, said.stdout.strip()) == (0, keepwarm.__version__)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serv",), 'Unknown command "serv". Did you mean "serve"?'),
        (("serve", "--capcity", "1GiB"), "Unknown option: --capcity. Did you mean --capacity?"),
        (("serve", "extra"), "extra"),
        (("serve", "--capacity", "much"), "capacity is 'much': give bytes.*from --capacity"),
        (
            ("serve", "--capacity", "4TiB", "--admin", "off"),
            "capacity: arena of 4398046511104 bytes does not fit",
        ),
        (("serve", "--capacity", "99TiB", "--admin", "off"), "capacity is 1088.*: give from 4096"),
        (("serve", "--admin", "0.0.0.0:1"), "which others can reach: give a loopback address"),
        (
            ("serve", "--state-dir", "/dev/null/x", "--admin", "off"),
            "state_dir: folder /dev/null/x cannot be made",
        ),
        (
            ("serve", "--address", "/proc/x/y", "--admin", "off"),
            "address: folder /proc/x cannot be made",
        ),
        (("serve", "--policy", "best"), "policy is 'best': give one of default"),
        (("serve", "--config", "/absent"), "file /absent cannot be read"),
        (("stat", "--address", "ftp://x"), "of a kind that this version does not know"),
        (("serve", "--listen", "/x"), "listen is '/x': give tcp://host:port"),
        (("serve", "--listen", "tcp://x:0x"), "has no port below 65536"),
        (("serve", "--address", "tcp://x"), "for TCP it is the setting listen"),
        (("stat", "--deadline", "soon"), "deadline is 'soon': give a time"),
        (("drop",), "(?i)namespace"),
        (("drop", "/absent"), "file /absent cannot be read: No such file"),
    ],
)
def test_usage_errors_are_one_line_and_2(
    folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    said = run(*arguments, XDG_RUNTIME_DIR=str(folder))
    assert said.returncode == 2
    assert re.search(says, said.stderr), said.stderr
    assert said.stderr.startswith("keepwarm: ")
    assert said.stderr.count("\n") == 1
    assert said.stdout == ""


def test_an_unknown_variable_is_named() -> None:
    said = run("serve", KEEPWARM_CAPACTY="1GiB")
    assert said.returncode == 2
    assert "KEEPWARM_CAPACTY is unknown: did you mean KEEPWARM_CAPACITY" in said.stderr


def test_no_node_is_3(folder: Path) -> None:
    names = folder / "names.toml"
    names.write_text(as_toml(FIELDS))
    address = str(folder / "absent.sock")
    for arguments in (("stat",), ("drop", str(names))):
        said = run(*arguments, KEEPWARM_ADDRESS=address)
        assert said.returncode == 3
        assert f"no node at {address}" in said.stderr
        assert "start one with keepwarm serve" in said.stderr
        assert said.stderr.count("\n") == 1


def test_serve_says_what_it_chose_and_drains_on_a_signal(folder: Path) -> None:
    with served(folder, "--policy", "fifo", KEEPWARM_IDLE="7m") as node:
        settings = node.said["settings"]
        assert node.said["event"] == "serving"
        assert settings["capacity"] == {"value": 8 << 20, "origin": "--capacity"}
        assert settings["policy"]["value"] == "fifo"
        assert settings["idle"] == {"value": 420.0, "origin": "KEEPWARM_IDLE"}
        assert settings["clients_max"]["origin"] == "default"
        assert settings["state_dir"]["value"] == f"{node.address}.state"
        assert settings["admin"]["value"].startswith("http://127.0.0.1:")
        assert node.address.stat().st_mode & 0o777 == 0o600
        with keepwarm.connect(node.address) as memory:
            assert memory.stat()["epochs_durable"] == 1
        assert node.end() == 0
        assert [node.next_line() for _ in range(2)] == [
            {"event": "draining", "text": "draining, for 10 s at most"},
            {"event": "stopped", "text": "stopped"},
        ]
        assert not node.address.exists()


def test_ctrl_c_ends_it_with_0(folder: Path) -> None:
    with served(folder) as node:
        assert node.end(signal.SIGINT) == 0


def test_serve_for_people(folder: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "keepwarm.cli", "serve", "--capacity", "8MiB"),
            *("--admin", "off", "--state-dir", "off", "--address", str(folder / "s")),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=clean({}),
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "ready" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1]
    process.terminate()
    assert process.wait(WAIT_S) == 0
    text = "".join(lines) + process.stdout.read()
    process.stdout.close()
    assert re.search(r"capacity +8\.0 MiB +--capacity", text)
    assert re.search(r"policy +default +default", text)
    assert re.search(r"admin +off", text)
    assert re.search(r"epochs +lost with this process", text)
    assert f"keepwarm: ready; next: keepwarm stat --address {folder}/s\n" in text
    assert text.endswith("keepwarm: draining, for 10 s at most\nkeepwarm: stopped\n")


def test_a_second_signal_ends_it_at_once(folder: Path) -> None:
    with (
        served(folder, "--drain", "1h") as node,
        keepwarm.connect(node.address) as memory,
        FaultProxy(str(node.address), f"unix:{folder}/proxy") as proxy,
        keepwarm.connect(folder / "proxy") as slow,
    ):
        names, size = make(), 4 << 20
        keys, space = keys_of(names, 1), slow.attach(names)
        (stored,) = memory.attach(names).put_from(keys, bytes(size), deadline_s=WAIT_S)
        assert stored.status == Status.STORED
        # Its bytes are under way for longer than any test: the node waits for them.
        proxy.set(Towards.CLIENT, bytes_per_s=1 << 10)
        answers: list[Outcome] = []

        def get() -> None:
            answers.extend(space.get_into(keys, bytearray(size), deadline_s=WAIT_S))

        getting = threading.Thread(target=get)
        getting.start()
        eventually(lambda: memory.stat()["reads_in_flight"] == 1, WAIT_S)
        node.process.send_signal(signal.SIGTERM)
        assert node.next_line()["event"] == "draining"
        assert node.admin("/v1/ready")[0] == 503
        assert node.end() == 128 + signal.SIGTERM
        proxy.drop()
        getting.join(WAIT_S)
    assert [outcome.status for outcome in answers] == [Status.MISS]


def test_a_socket_and_a_port_in_use_are_named(folder: Path) -> None:
    with served(folder) as node:
        same = run("serve", "--address", str(node.address), "--admin", "off", "--capacity", "8MiB")
        assert same.returncode == 1
        assert f"in use by pid {node.process.pid}: stop that node" in same.stderr
        assert same.stderr.count("\n") == 1
        port = node.said["settings"]["admin"]["value"].rpartition(":")[2]
        other = ("--address", str(folder / "other"), "--capacity", "8MiB")
        port_taken = run("serve", *other, "--admin", f"127.0.0.1:{port}")
        assert port_taken.returncode == 1
        assert f"127.0.0.1:{port} is in use: give another --admin" in port_taken.stderr
        assert node.admin("/v1/ready")[0] == 200


def test_a_socket_left_by_a_killed_node_is_replaced(folder: Path) -> None:
    with served(folder) as node:
        node.process.kill()
        node.process.wait()
        assert node.address.exists()
    with served(folder) as node:
        assert node.end() == 0


def test_stat_for_people_and_for_programs(folder: Path) -> None:
    with served(folder) as node, keepwarm.connect(node.address) as memory:
        names = make()
        space, keys = memory.attach(names), keys_of(names, 3)
        space.put_from(keys[:32], bytes(8192))
        space.lookup(keys)
        said = run("stat", KEEPWARM_ADDRESS=str(node.address))
        assert said.returncode == 0
        assert re.search(r"lookup hits +2 of 3 keys \(66\.7 %\)", said.stdout)
        assert re.search(r"first misses +absent 1", said.stdout)
        assert re.search(r"arena +8\.0 KiB of 8\.0 MiB \(0\.1 %\), adaptive", said.stdout)
        assert names.fingerprint.hex()[:12] in said.stdout
        assert "\x1b" not in said.stdout
        machine = run("stat", "--json", "--address", f"unix:{node.address}")
        assert json.loads(machine.stdout)["lookup_hits"] == 2


@pytest.mark.parametrize("model", ["llama[/x]", "[red]x", "[link=/x]y"])
def test_stat_shows_any_name_as_it_is(
    node: LocalNode, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    """A client chooses the names of its namespaces: they are text, and no markup."""
    with node.connect() as memory:
        memory.attach(make(model=model))
        assert cli.main(["stat", "--address", str(node.path)]) == 0
    assert f" {model} " in capsys.readouterr().out


def test_ctrl_c_ends_a_question_that_no_node_answers(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "s"))
        silent.listen()
        silent.settimeout(WAIT_S)
        asking = subprocess.Popen(
            [
                *(sys.executable, "-m", "keepwarm.cli", "stat", "--deadline", "1h"),
                *("--address", str(folder / "s")),
            ],
            env=clean({}),
            # A shell's background jobs ignore Ctrl-C, and hand that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        connection, _ = silent.accept()
        with connection:
            asking.send_signal(signal.SIGINT)
            assert asking.wait(WAIT_S) == -signal.SIGINT


def as_toml(fields: dict[str, Any]) -> str:
    # For these values JSON and TOML agree.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


def test_drop(folder: Path) -> None:
    names = folder / "names.toml"
    names.write_text(as_toml(FIELDS))
    with served(folder) as node, keepwarm.connect(node.address) as memory:
        space, keys = memory.attach(make()), keys_of(make(), 2)
        space.put_from(keys, b"ab")
        said = run("drop", str(names), "--json", "--address", str(node.address))
        assert said.returncode == 0
        assert json.loads(said.stdout) == {
            "namespace": make().fingerprint.hex(),
            "here": True,
            "dropped": 2,
            "nearest": None,
        }
        assert space.lookup(keys).prefix == 0
        again = run("drop", str(names), "--address", str(node.address))
        assert again.stdout.startswith("dropped 0 blocks of <keepwarm.Namespace ")
        names.write_text(as_toml({**FIELDS, "parts": 99}))
        bad = run("drop", str(names), "--address", str(node.address))
        assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
        assert "parts is 99" in bad.stderr


def test_drop_of_what_is_not_there_says_what_is_near(
    node: LocalNode, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = folder / "names.toml"
    names.write_text(as_toml({**FIELDS, "model": "mistyped"}))
    command = ["drop", str(names), "--address", str(node.path)]
    with node.connect() as memory:
        space, keys = memory.attach(make()), keys_of(make(), 2)
        space.put_from(keys, b"ab")
        assert cli.main(command) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert "the node had no namespace <keepwarm.Namespace " in said.err
        assert "the most similar one here: " in said.err
        assert '"mistyped" here, "m" there' in said.err
        assert said.err.count("\n") == 1
        assert space.lookup(keys).prefix == 2
        names.write_text(as_toml({**FIELDS, "model": "another"}))
        assert cli.main([*command, "--json"]) == 1
        answer = json.loads(capsys.readouterr().out)
        assert (answer["here"], answer["dropped"]) == (False, 0)
        assert "model" in answer["nearest"]


def test_main_can_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert cli.main(["stat", "--address", "/absent/x"]) == 3
    assert "no node at /absent/x" in capsys.readouterr().err


def test_every_command_of_the_tuple_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands are a tuple of functions and apps: see keepwarm/cli/__init__.py."""
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert cli._COMMANDS
    for command in cli._COMMANDS:
        name = command.name[0] if isinstance(command, App) else command.__name__
        assert re.search(rf"{name} +[A-Z]", told)


def test_a_signal_while_starting(folder: Path) -> None:
    """Before it serves there is nothing to drain: it just ends."""
    taken = socket.socket(socket.AF_UNIX)
    taken.close()
    node = subprocess.Popen(
        [
            *(sys.executable, "-m", "keepwarm.cli", "serve", "--capacity", "512MiB"),
            *("--admin", "off", "--address", str(folder / "s")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean({}),
    )
    eventually(lambda: has_handler(node.pid, signal.SIGTERM), WAIT_S)
    node.terminate()
    said, complaint = node.communicate(timeout=WAIT_S)
    assert node.returncode == 0, complaint
    assert "stopped" in said


def has_handler(pid: int, number: int) -> bool:
    """Whether a process catches a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(match and int(match[1], 16) >> (number - 1) & 1)
