"""Limits of a process, as other machines show them, against what a node needs."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from keepwarm.machine import Finding, findings

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            {files}              {files}              files
Max locked memory         {locked}             {locked}             bytes
"""


def find(
    tmp_path: Path,
    name: str,
    files: dict[str, str],
    clients_max: int = 256,
    devices: int = 0,
) -> Finding:
    shown = {"proc/self/limits": LIMITS.format(files="1024", locked="8388608")} | files
    for file, text in shown.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = findings(clients_max, devices, root=tmp_path)
    return next(finding for finding in found if finding.name == name)


def test_enough_is_ok(tmp_path: Path) -> None:
    for name in ("descriptors", "threads", "memlock", "swap"):
        found = find(tmp_path, name, {})
        assert (found.level, found.todo) == ("ok", ""), found


def test_too_few_descriptors_refuse_the_start(tmp_path: Path) -> None:
    found = find(tmp_path, "descriptors", {}, clients_max=961)
    assert (found.level, found.figure) == ("fail", "1025 needed of 1024")
    assert "LimitNOFILE=1025" in found.todo
    assert find(tmp_path, "descriptors", {}, clients_max=900, devices=1).level == "fail"
    unlimited = {"proc/self/limits": LIMITS.format(files="unlimited", locked="unlimited")}
    assert find(tmp_path, "descriptors", unlimited, clients_max=16384).level == "ok"


@pytest.mark.parametrize(
    ("cgroup", "folder"),
    [("0::/pod/app\n", "sys/fs/cgroup/pod"), ("8:pids:/pod/app\n", "sys/fs/cgroup/pids/pod")],
)
def test_an_outer_groups_threads_count(tmp_path: Path, cgroup: str, folder: str) -> None:
    files = {
        "proc/self/cgroup": cgroup,
        f"{folder}/app/pids.max": "max\n",
        f"{folder}/pids.max": "400\n",
        f"{folder}/pids.current": "100\n",
    }
    found = find(tmp_path, "threads", files)
    assert (found.level, found.figure) == ("warn", "320 needed of 300")
    assert "TasksMax" in found.todo
    assert find(tmp_path, "threads", files, clients_max=100).level == "ok"


def test_memory_to_lock(tmp_path: Path) -> None:
    assert find(tmp_path, "memlock", {}, devices=4).level == "ok"
    found = find(tmp_path, "memlock", {}, devices=5)
    assert found.level == "warn"
    assert "LimitMEMLOCK" in found.todo


@pytest.mark.parametrize(
    ("files", "level"),
    [
        ({}, "warn"),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.swap.max": "0\n"}, "ok"),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.swap.max": "max\n"}, "warn"),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes": "500\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "500\n",
            },
            "ok",
        ),
    ],
)
def test_blocks_that_may_be_swapped_out(tmp_path: Path, files: dict[str, str], level: str) -> None:
    found = find(tmp_path, "swap", {"proc/meminfo": "SwapTotal:  1000 kB\n"} | files)
    assert found.level == level, found


def test_this_process_limits_are_read() -> None:
    found = {finding.name: finding for finding in findings(clients_max=16)}
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    assert found["descriptors"].figure == f"80 needed of {shown}"


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    program = (
        "import resource as r; from keepwarm.machine import raise_descriptors as up\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (128, 512)); up(100); print(r.getrlimit(r.RLIMIT_NOFILE))\n"
        "up(10000); print(r.getrlimit(r.RLIMIT_NOFILE)); up(3); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.splitlines() == ["(164, 512)"] * 3, said.stderr
