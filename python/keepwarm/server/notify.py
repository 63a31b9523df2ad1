"""Tells the service manager how the node stands (systemd's sd_notify), where there is one."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress


def notify(*lines: str) -> None:
    """Sends lines such as READY=1. Without a manager, or with a deaf one, nothing happens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    where = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto("\n".join(lines).encode(), where)


def ready(status: str) -> None:
    """It serves."""
    notify("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")


def reloading() -> None:
    """It reads its settings again; `ready` follows."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping(status: str, longest_s: float) -> None:
    """It goes down, which takes at most so long."""
    notify("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(longest_s * 1e6)}")
