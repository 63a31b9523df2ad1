"""The machine that a figure was taken on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """What matters for speed: processor, cores, kernel, memory, and how busy it is."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(_memory_kib() / (1 << 20), 1),
        "kernel": platform.release(),
        "virtual": "hypervisor" in (_field("/proc/cpuinfo", "flags") or "").split(),
        "load_1m": round(os.getloadavg()[0], 2),
        # Above the neighbours, as `chrt -r 1` puts it: a busy machine then counts for less.
        "realtime": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
    }


def line(machine: dict[str, Any]) -> str:
    """The same for people."""
    kind = "virtual, " if machine["virtual"] else ""
    return (
        f"{machine['cpu']}, {kind}{machine['cores']} cores, {machine['memory_gib']:g} GiB, "
        f"Linux {machine['kernel']}, load {machine['load_1m']:g}"
        f"{', real-time priority' if machine['realtime'] else ''}"
    )


def cpu_seconds(pid: int) -> float:
    """CPU time of a whole process, its ended threads included, to the nanosecond."""
    # How the kernel names another process's clock (clock_getcpuclockid).
    return time.clock_gettime(~pid << 3 | 2)


def _field(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for each in lines:
        label, _, value = each.partition(":")
        if label.strip() == name:
            return " ".join(value.split())
    return None


def _memory_kib() -> int:
    text = _field("/proc/meminfo", "MemTotal") or "0 kB"
    return int(text.split()[0])
