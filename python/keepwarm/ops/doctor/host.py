"""The machine under a node: limits, clocks, disks, the network between."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keepwarm.config import show_size
from keepwarm.machine import findings
from keepwarm.ops.doctor.checks import Check, ok, warn

# Wall clocks further apart than this confuse times to live on flash, and certificates.
SKEW_S_MAX = 1.0
DISK_BYTES_LEAST = 64 << 20
IP_MTU = 14
MTU_LEAST = 1500


def limits(server: Mapping[str, Any], devices: int = 0, root: Path = Path("/")) -> Iterator[Check]:
    """Those of the node's process, where it is to be seen from here."""
    process = str(server["pid"])
    if not (root / "proc" / process / "limits").exists():
        return
    for found in findings(server["clients_max"], devices, process=process, root=root):
        yield Check(found.name, found.level, found.figure, found.todo)


def clock(
    server: Mapping[str, Any], same_machine: bool, asked_ns: int, heard_ns: int, unix_ms: float
) -> Check:
    """The node's clocks against ours; it was asked and heard at these moments of BOOTTIME.

    `unix_ms` is our wall clock half-way between.
    """
    theirs = server["boottime_ns"]
    if same_machine and not asked_ns <= theirs <= heard_ns:
        off = (theirs - (asked_ns + heard_ns) / 2) / 1e9
        return warn(
            "clock",
            f"CLOCK_BOOTTIME differs by {off:+.3f} s",
            "node and client are in different time namespaces, so that leases end at other times "
            "than clients think: run both in one",
        )
    skew = (server["unix_ms"] - unix_ms) / 1e3
    about = (heard_ns - asked_ns) / 2e9
    figure = f"wall clocks {skew:+.3f} s apart (known to {about:.3f} s)"
    if abs(skew) > SKEW_S_MAX + about:
        todo = "times to live and certificates end at other times on both: run chrony or ntpd"
        return warn("clock", figure, todo)
    return ok("clock", figure)


def boottime_ns() -> int:
    """Our clock of leases."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def disk(folders: list[Path]) -> Iterator[Check]:
    """Room where a node of this machine keeps epochs and its socket."""
    for folder in folders:
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        left = found.f_bavail * found.f_frsize
        figure = f"{show_size(left)} left at {folder}"
        if left < DISK_BYTES_LEAST:
            todo = f"epochs may not get to disk, and then are refused: make room at {folder}"
            yield warn("disk", figure, todo)
        else:
            yield ok("disk", figure)


def mtu(host: str, port: int) -> Iterator[Check]:
    """The largest packet on the way to a node over TCP."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as connected:
            inner = connected.family == socket.AF_INET
            level = socket.IPPROTO_IP if inner else socket.IPPROTO_IPV6
            option = IP_MTU if inner else 24  # IPV6_MTU
            size = connected.getsockopt(level, option)
    except OSError:
        return
    if size < MTU_LEAST:
        todo = f"packets of {size} bytes cost more processor time a byte: raise the way's MTU"
        yield warn("mtu", f"{size} bytes", todo)
    else:
        yield ok("mtu", f"{size} bytes")
