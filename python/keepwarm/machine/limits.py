"""Limits of a process and its control groups, and what they mean for a node."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from keepwarm.machine.files import field, groups, number, text

Level = Literal["ok", "warn", "fail"]
Pair = tuple[int, int]  # soft, hard; -1: none

# Descriptors and threads of a node besides one for each client.
OWN = 64
# Of each flash device: queues of its own, threads where there is no io_uring, and rings, which
# kernels before 5.12 count as locked memory.
DEVICE_DESCRIPTORS = 72
DEVICE_THREADS = 16
DEVICE_RING_BYTES = 2 << 20
NONE = resource.RLIM_INFINITY


class Finding(NamedTuple):
    """One limit against what a node needs."""

    name: str
    level: Level
    figure: str
    todo: str = ""


def findings(
    clients_max: int,
    devices: int = 0,
    process: str = "self",
    root: Path = Path("/"),
) -> list[Finding]:
    """The limits of a process against what a node with so many clients and flash devices needs."""
    limits = _limits(root, process)
    return [
        _descriptors(clients_max + OWN + devices * DEVICE_DESCRIPTORS, limits.get("open files")),
        _threads(clients_max + OWN + devices * DEVICE_THREADS, root, process),
        _locked(devices * DEVICE_RING_BYTES, limits.get("locked memory")),
        _swap(root, process),
    ]


def raise_descriptors(clients_max: int, devices: int = 0) -> None:
    """Raises this process' soft limit as far as a node needs and the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = clients_max + OWN + devices * DEVICE_DESCRIPTORS
    if soft != NONE and soft < wanted and (hard == NONE or hard >= wanted):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _limits(root: Path, process: str) -> dict[str, Pair]:
    """As /proc/PID/limits shows them, by their names there without Max."""
    found = {}
    for line in text(root / "proc" / process / "limits").splitlines():
        if match := re.match(r"Max (\S+(?: \S+)*)\s{2,}(\d+|unlimited)\s+(\d+|unlimited)", line):
            soft, hard = (NONE if word == "unlimited" else int(word) for word in match.groups()[1:])
            found[match[1]] = (soft, hard)
    return found


def _descriptors(needed: int, limit: Pair | None) -> Finding:
    name = "descriptors"
    if limit is None:
        return Finding(name, "ok", "limit unknown")
    _, hard = limit
    if hard == NONE or hard >= needed:
        return Finding(name, "ok", f"{needed} needed of {_count(hard)}")
    return Finding(
        name,
        "fail",
        f"{needed} needed of {hard}",
        f"clients and devices need {needed} descriptors and the hard limit is {hard}: set "
        f"LimitNOFILE={needed}, run ulimit -Hn {needed}, or lower clients_max",
    )


def _threads(needed: int, root: Path, process: str) -> Finding:
    name = "threads"
    left = NONE
    where = ""
    for folder, _ in groups(root, "pids", process):
        most, now = number(folder / "pids.max"), number(folder / "pids.current") or 0
        if most is not None and (left == NONE or most - now < left):
            left, where = max(most - now, 0), str(folder)
    if left == NONE or left >= needed:
        return Finding(name, "ok", f"{needed} needed of {_count(left)}")
    return Finding(
        name,
        "warn",
        f"{needed} needed of {left}",
        f"a thread serves each client, and control group {where} leaves {left} of the {needed} "
        "that clients_max may need: raise pids.max (TasksMax=), or lower clients_max",
    )


def _locked(needed: int, limit: Pair | None) -> Finding:
    name = "memlock"
    if limit is None:
        return Finding(name, "ok", "limit unknown")
    soft, _ = limit
    if soft == NONE or soft >= needed:
        return Finding(name, "ok", f"{_bytes(soft)}, {_bytes(needed)} needed")
    return Finding(
        name,
        "warn",
        f"{_bytes(soft)}, {_bytes(needed)} needed",
        f"rings of flash devices take {needed} bytes, which kernels before 5.12 count as locked "
        f"memory, and the limit is {soft}: set LimitMEMLOCK=infinity, or threads do their work",
    )


def _swap(root: Path, process: str) -> Finding:
    name = "swap"
    total = field(text(root / "proc/meminfo"), "SwapTotal:") or 0
    allowed = min((total << 10, *_swap_limits(root, process)))
    if allowed == 0:
        return Finding(name, "ok", "none")
    return Finding(
        name,
        "warn",
        f"{_bytes(allowed)} may be used",
        "blocks that the kernel swaps out are read back slower than they are recomputed: run "
        "swapoff -a, or set MemorySwapMax=0",
    )


def _swap_limits(root: Path, process: str) -> Iterator[int]:
    for folder, is_new in groups(root, "memory", process):
        if is_new:
            limit = number(folder / "memory.swap.max")
        else:
            both, memory = (
                number(folder / f"memory.{name}limit_in_bytes") for name in ("memsw.", "")
            )
            limit = None if both is None or memory is None else max(both - memory, 0)
            if number(folder / "memory.swappiness") == 0:
                limit = 0
        if limit is not None:
            yield limit


def _count(number: int) -> str:
    return "no limit" if number == NONE else str(number)


def _bytes(number: int) -> str:
    if number == NONE:
        return "no limit"
    return f"{number >> 20} MiB" if number >= 1 << 20 or number == 0 else f"{number} B"
