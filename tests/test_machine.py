"""The memory that is left: of the machine, and of control groups in and around this process.

The cases are those of the core, whose check refuses an arena: crates/store/src/arena/tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from keepwarm.machine import UNKNOWN_BYTES, memory_available

MACHINE = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000 kB\n"}
CASES: dict[str, tuple[dict[str, str], int]] = {
    "the machine": (MACHINE, 1_024_000),
    "nothing is known": ({}, UNKNOWN_BYTES),
    "an outer group of version 2 is tighter": (
        MACHINE
        | {
            "proc/self/cgroup": "0::/pod/app\n",
            "sys/fs/cgroup/pod/app/memory.max": "max\n",
            "sys/fs/cgroup/pod/app/memory.current": "5\n",
            "sys/fs/cgroup/pod/memory.max": "500000\n",
            "sys/fs/cgroup/pod/memory.current": "300000\n",
            "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 100000\nactive_file 7\n",
        },
        300_000,
    ),
    "where the kernel begins to slow a group down is a limit too": (
        MACHINE
        | {
            "proc/self/cgroup": "0::/app\n",
            "sys/fs/cgroup/app/memory.max": "600000\n",
            "sys/fs/cgroup/app/memory.high": "400000\n",
            "sys/fs/cgroup/app/memory.current": "150000\n",
        },
        250_000,
    ),
    "an inner group of version 1 is tighter": (
        MACHINE
        | {
            "proc/self/cgroup": "9:cpu:/\n4:foo,memory:/a/b\n",
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "700000\n",
            "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "600000\n",
            "sys/fs/cgroup/memory/a/b/memory.stat": "total_inactive_file 50000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "800000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "600000\n",
        },
        150_000,
    ),
    "over the limit is nothing left, in folders that only the host sees too": (
        MACHINE
        | {
            "proc/self/cgroup": "9:cpu:/\n4:memory:/host/only\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "800000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
        },
        0,
    ),
    "version 1 without a limit": (
        MACHINE
        | {
            "proc/self/cgroup": "4:memory:/\nno line\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
        },
        1_024_000,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_that_is_left_counts(tmp_path: Path, case: str) -> None:
    files, left = CASES[case]
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_available(tmp_path) == left
