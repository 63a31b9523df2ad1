"""Exit codes, and the way to a node that every asking command shares."""

from __future__ import annotations

from keepwarm.client import Memory, connect
from keepwarm.config import parse_address
from keepwarm.errors import NodeError

FAILED = 1
USAGE = 2
UNREACHABLE = 3


class UnreachableError(NodeError):
    """No node answers."""


def reach(address: str | None, deadline_s: float) -> Memory:
    """A memory on a node that is there now."""
    path = parse_address(address)
    memory = connect(path, connections_max=1, deadline_s=deadline_s)
    health = memory.health()
    if health["state"] != "up":
        memory.close()
        why = health["last_error"] or "it does not answer"
        raise UnreachableError(
            f"no node at {path} ({why}): start one with keepwarm serve, or give --address"
        )
    return memory
