"""The doctor: each thing that can be wrong is made wrong, and named first."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keepwarm import Tenant, connect
from keepwarm import open as open_memory
from keepwarm.config import tenant_rows
from keepwarm.ops.doctor import figures, flash, host, reach
from keepwarm.ops.doctor.checks import ORDER, Check, fail, ok, the_one, warn, worst
from keepwarm.ops.doctor.node import Report, examine
from keepwarm.ops.doctor.paths import block_bytes
from keepwarm.testing.faults import FaultProxy, Towards
from nodes import LocalNode, eventually, keys_of, make
from served import WAIT_S, clean, run, served

Figures = dict[str, Any]


def named_first(report: Report) -> Check:
    first = the_one(report.checks)
    assert first is not None, [check for check in report.checks if check.level != "ok"]
    return first


def test_a_node_that_is_well(folder: Path) -> None:
    """Every path is tried, and nothing is left behind."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(folder, "--listen", f"tcp://127.0.0.1:{port}") as node:
        said = run("doctor", "node", str(node.address), "--json")
        answer = json.loads(said.stdout)
        names = [check["name"] for check in answer["checks"]]
        wrong = [check for check in answer["checks"] if check["level"] == "fail"]
        assert (said.returncode, wrong) == (0, []), said.stderr
        for path in ("inproc", "shm", "unix", "tcp"):
            assert f"get over {path}" in names
        for name in ("node", "version", "transport", "clock", "descriptors", "corrupt", "attach"):
            assert name in names
        with connect(node.address) as memory:
            left = memory.stat()
        assert (left["blocks"], left["evicted"]) == (0, 0)
        assert [space["blocks"] for space in left["namespaces"].values()] == [0]


def test_a_table_for_people(node: LocalNode) -> None:
    said = run("doctor", "node", str(node.path))
    assert said.returncode == 0, said.stderr
    assert "ok    get over unix" in said.stdout
    assert said.stdout.rstrip().splitlines()[-1].startswith(("all well", "change this", "then "))


def test_what_others_stored_stays(node: LocalNode) -> None:
    with node.connect() as memory:
        space = memory.attach(make())
        keys = keys_of(make(), 64)
        space.put_from(keys, bytes(64 << 16))
        examine(str(node.path))
        with space.lookup(keys) as found:
            assert found.prefix == 64
        assert memory.stat()["blocks"] == 64


def test_no_node_is_3(folder: Path) -> None:
    said = run("doctor", "node", str(folder / "none"), "--json")
    answer = json.loads(said.stdout)
    assert said.returncode == 3
    assert (answer["level"], answer["change"]["name"]) == ("fail", "node")
    assert "start one with keepwarm serve" in answer["change"]["todo"]


def test_a_tenant_that_the_node_does_not_know(node: LocalNode, folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("ef" * 32)
    secret.chmod(0o600)
    first = named_first(examine(str(node.path), tenant="other", secret=secret))
    assert (first.name, first.level) == ("attach", "fail")
    assert "add [tenants.other]" in first.todo
    said = run("doctor", "node", str(node.path), "--tenant", "other")
    assert said.returncode == 1
    assert "change this first (attach)" in said.stdout
    assert "--secret" in said.stdout


def test_two_secrets_of_one_tenant(folder: Path) -> None:
    secrets = [folder / "a", folder / "b"]
    for secret, digits in zip(secrets, ("ab", "cd"), strict=True):
        secret.write_text(digits * 32)
        secret.chmod(0o600)
    node = LocalNode(folder, tenants=tenant_rows({"t": Tenant(secret=secrets[0])}))
    try:
        assert the_level(examine(str(node.path), tenant="t", secret=secrets[0])) != "fail"
        first = named_first(examine(str(node.path), tenant="t", secret=secrets[1]))
        assert first.name == "attach"
        assert "same secret file" in first.todo
    finally:
        node.close()


def the_level(report: Report) -> str:
    return report.level


@pytest.fixture
def way(node: LocalNode, folder: Path) -> Iterator[FaultProxy]:
    """A way to the node that can be made bad."""
    proxy = FaultProxy(f"unix:{node.path}", f"unix:{folder / 'way'}")
    yield proxy
    proxy.close()


def during_paths(fault: Callable[[], None]) -> Callable[[Check], None]:
    """Makes a way bad once the node has taken the doctor in."""

    def tell(check: Check) -> None:
        if check.name.startswith("get over inproc"):
            fault()

    return tell


def test_bytes_that_change_on_the_way(way: FaultProxy) -> None:
    fault = during_paths(lambda: way.set(Towards.CLIENT, corrupt_every=50_000))
    first = named_first(examine(way.address, deadline_s=1.0, tell=fault))
    assert first.level == "fail"
    assert first.name in ("put over unix", "get over unix")
    assert first.figure.startswith("miss: ") or "shed" in first.figure, first


def test_a_way_that_stalls(way: FaultProxy) -> None:
    fault = during_paths(lambda: way.set(Towards.CLIENT, stall=True))
    first = named_first(examine(way.address, deadline_s=0.3, tell=fault))
    assert first.level == "fail"
    assert first.name.endswith("over unix"), first


def test_an_interrupted_doctor_leaves_nothing(folder: Path) -> None:
    way = f"unix:{folder}/proxy"
    with served(folder) as node, FaultProxy(str(node.address), way) as proxy:
        # Each answer takes a while, so that a signal comes long before the last one.
        proxy.set(Towards.CLIENT, delay_s=0.02)
        command = (sys.executable, "-m", "keepwarm.cli", "doctor", "node", way)
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean({}),
                # A shell's background job, as this test may be, has its children ignore SIGINT.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            assert process.stdout is not None
            for line in process.stdout:
                if b"round trip" in line[:20]:
                    process.send_signal(number)
                    break
            process.communicate(timeout=WAIT_S)
            assert process.returncode != 0
        with connect(node.address) as memory:
            eventually(lambda: memory.stat()["blocks"] == 0)


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Figures of a node with nothing wrong."""
    local = LocalNode(tmp_path_factory.mktemp("n"), state_dir=tmp_path_factory.mktemp("state"))
    try:
        with local.connect() as memory:
            memory.attach(make())
            return memory.stat()
    finally:
        local.close()


BUSY = {"lookup_hits": 5000, "blocks_stored": 5000, "stored": 5000}
FAULTS: dict[str, tuple[Figures, str, str]] = {
    "memory that lost bits": ({"corrupt": 1}, "corrupt", "test the memory"),
    "a network that changes bytes": ({"server.puts_corrupt": 2}, "suspect", "put_corrupt"),
    "a reader with bad memory": ({"reports_intact": 1}, "suspect", "report_intact"),
    "epochs in memory alone": ({"epochs_durable": 0}, "epochs", "set state_dir"),
    "epochs that do not get to disk": ({"epochs_failed": 1}, "epochs", "state_dir"),
    "too many clients": ({"server.connections": 60}, "clients", "raise clients_max"),
    "clients that were refused": ({"server.refused_clients": 1}, "clients", "raise clients_max"),
    "zero hits": (
        {"lookup_misses.absent": 5000, "blocks_stored": 9},
        "hits",
        "name blocks differently",
    ),
    "too little capacity": (
        {**BUSY, "lookup_misses.evicted": 900, "lookup_misses.absent": 1100},
        "pressure",
        "raise capacity",
    ),
    "leases that hold all": ({**BUSY, "shed.leased": 900}, "sheds", "leases hold too much"),
    "a full quota": (
        {**BUSY, "shed.quota": 900, "tenants.default.shed.quota": 900},
        "quota",
        "tenant default's quota",
    ),
    "lookups without a lease": (
        {"leases_refused": 50, "leases_granted": 100},
        "leases",
        "without a lease",
    ),
    "engines that hang": ({"server.stalled": 5, "server.accepted": 50}, "stalls", "hang"),
    "strangers": ({"server.violations": 5, "server.accepted": 9}, "violations", "something else"),
    "a log that nobody reads": ({"server.log_lost": 3}, "log", "journald"),
    "plain pages for a large arena": ({"capacity_bytes": 1 << 35}, "pages", "shmem_enabled"),
    "one memory node of two": ({"memory_nodes": 2}, "memory nodes", "interleave"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_figure_that_is_wrong_is_named_first(well: Figures, fault: str) -> None:
    assert the_one(figures.of_node(well)) is None
    changes, name, todo = FAULTS[fault]
    first = the_one(figures.of_node(changed(well, changes)))
    assert first is not None
    assert first.name == name, first
    assert todo in first.todo


def changed(before: Figures, changes: Figures) -> Figures:
    after = copy.deepcopy(before)
    for path, value in changes.items():
        table, words = after, path.split(".")
        for word in words[:-1]:
            table = table[word]
        assert words[-1] in table, f"{path} is no figure"
        table[words[-1]] = value
    return after


DEVICE = {
    "name": "/dev/nvme1n1",
    "state": "live",
    "why": "",
    "engine": "io_uring",
    "errors": 0,
    "capacity_bytes": 1 << 40,
    "segments": 100,
    "segments_free": 9,
}
FLASH = {
    "flash_blocks": 7,
    "flash_recovering": 0,
    "flash_budget_short": 0,
    "flash_corrupt": 0,
    "flash_recovered_segments": 5,
    "flash_recovered_segments_max": 9,
}


@pytest.mark.parametrize(
    ("device", "store", "name", "todo"),
    [
        ({"state": "fenced", "why": "EIO"}, {}, "flash /dev/nvme1n1", "replace /dev/nvme1n1"),
        ({"state": "read_only", "why": "EROFS"}, {}, "flash /dev/nvme1n1", "writable"),
        ({"errors": 3}, {}, "flash /dev/nvme1n1", "smartctl"),
        ({}, {"flash_corrupt": 1}, "corrupt on flash", "smartctl"),
        ({}, {"flash_budget_short": 1}, "flash budget", "flash_budget"),
        ({}, {"flash_recovering": 1}, None, ""),
        ({}, {}, None, ""),
    ],
)
def test_flash(device: Figures, store: Figures, name: str | None, todo: str) -> None:
    found = {**FLASH, **store, "devices": {"0": {**DEVICE, **device}}}
    first = the_one(flash.of_node(found))
    assert (first.name if first else None) == name
    assert first is None or todo in first.todo
    assert list(flash.of_node({})) == []


def test_flash_of_a_real_store(tmp_path: Path) -> None:
    """The names that the checks go by are those that a store gives."""
    device = tmp_path / "f"
    with open_memory("64MiB", flash=f"{device}=256MiB", state_dir=tmp_path) as memory:
        found = memory.stat()
    checks = list(flash.of_node(found))
    assert [check.level for check in checks if check.name == f"flash {device}"] == ["ok"]
    assert set(FLASH) <= set(found)
    assert set(DEVICE) <= set(found["devices"]["0"])


def test_clocks() -> None:
    server = {"boottime_ns": 5_000_000_000, "unix_ms": 1_700_000_000_000}

    def check(
        same: bool = True, asked: float = 4.9, heard: float = 5.1, ours: float = 0.0
    ) -> Check:
        when = server["unix_ms"] + ours
        return host.clock(server, same, int(asked * 1e9), int(heard * 1e9), when)

    assert check().level == "ok"
    namespaced = check(asked=1.0, heard=1.1)
    assert (namespaced.name, namespaced.level) == ("clock", "warn")
    assert "time namespaces" in namespaced.todo
    assert check(same=False, asked=1.0, heard=1.1).level == "ok", "another machine's boot"
    skewed = check(same=False, ours=2_500.0)
    assert "chrony" in skewed.todo
    assert "-2.500 s" in skewed.figure
    # What the question took is not the clocks' fault.
    assert check(same=False, asked=0.0, heard=4.0, ours=2_500.0).level == "ok"


def test_limits_of_the_nodes_process(tmp_path: Path) -> None:
    process = tmp_path / "proc/77"
    process.mkdir(parents=True)
    (process / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max open files            128                  128                  files\n"
    )
    found = list(host.limits({"pid": 77, "clients_max": 256}, root=tmp_path))
    first = the_one(found)
    assert first is not None
    assert (first.name, first.level) == ("descriptors", "fail")
    assert list(host.limits({"pid": 78, "clients_max": 256}, root=tmp_path)) == [], (
        "not seen from here"
    )


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check.name for check in host.disk([tmp_path, tmp_path / "absent"])] == ["disk"]

    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    first = the_one(host.disk([tmp_path]))
    assert first is not None
    assert f"make room at {tmp_path}" in first.todo


def test_the_way_of_packets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = list(host.mtu("127.0.0.1", listening.getsockname()[1]))
    assert [check.level for check in found] == ["ok"]
    assert list(host.mtu("127.0.0.1", 1)) == [], "nobody there: another check says so"


def test_versions_and_transports() -> None:
    assert reach.version("1", "1").level == "ok"
    assert reach.version("1", "2").figure == "node 2, client 1"
    slow = reach.transport({"transport": "unix", "fallback": "no seal"}, local=True)
    assert (slow.level, slow.figure) == ("warn", "unix: no seal")
    assert reach.transport({"transport": "tcp"}, local=False).level == "ok"


def test_failures_come_before_warnings_and_causes_before_effects() -> None:
    checks = [
        ok("node", ""),
        warn("clock", "", "a"),
        fail("get over unix", "", "b"),
        fail("attach", "", "c"),
        fail("something new", "", "d"),
    ]
    assert the_one(checks) == checks[3]
    assert the_one(checks[:2]) == checks[1]
    assert the_one(checks[:1]) is None
    assert [worst(checks[:count]) for count in (1, 2, 3)] == ["ok", "warn", "fail"]
    assert len(set(ORDER)) == len(ORDER)


def test_blocks_are_small_against_the_arena() -> None:
    for capacity in (4096 * 256, 64 << 20, 1 << 40):
        each = block_bytes(capacity)
        assert each % 4096 == 0
        assert 4096 <= each <= 2 << 20
        assert 4 * each <= max(capacity // 64, 4 * 4096)
