"""Exit codes, and the way to a node that every asking command shares."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from keepwarm.client import Memory
from keepwarm.config import parse_addresses
from keepwarm.connecting import connect
from keepwarm.errors import NodeError

FAILED = 1
USAGE = 2
UNREACHABLE = 3


class UnreachableError(NodeError):
    """No node answers."""


@contextmanager
def reach(address: str | None, deadline_s: float) -> Iterator[Memory]:
    """A memory on a node that is there now. Ctrl-C ends the process meanwhile."""
    given = parse_addresses(address)
    where = ", ".join(given)
    with _interruptible(), connect(given, connections_max=1, deadline_s=deadline_s) as memory:
        health = memory.health()
        if health["state"] != "up":
            why = health["last_error"] or "it does not answer"
            raise UnreachableError(
                f"no node at {where} ({why}): start one with keepwarm serve, or name another"
            )
        yield memory


@contextmanager
def _interruptible() -> Iterator[None]:
    """Leaves Ctrl-C to the system: Python's own handler waits for the call under way to end."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
