"""`keepwarm doctor node`: asks a node, and puts all groups of checks together.

It stores a few blocks in a namespace of its own, and drops them however it ends. What others have
stored it neither reads nor names; where the arena is full, its blocks displace a few others, as any
put does: at most 1/64 of the arena at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import keepwarm
from keepwarm.client import Memory, Space, Transport
from keepwarm.config import is_socket, parse_address
from keepwarm.connecting import connect
from keepwarm.connecting import open as open_memory
from keepwarm.errors import KeepwarmError, NodeError
from keepwarm.ops.doctor import figures, flash, host, reach
from keepwarm.ops.doctor.checks import Check, Level, as_values, fail, worst
from keepwarm.ops.doctor.paths import BLOCKS, block_bytes, copy_speed, over

INPROC_BYTES = 32 << 20
Tell = Callable[[Check], None]


@dataclass(slots=True)
class Report:
    """All that was found."""

    address: str
    checks: list[Check] = field(default_factory=list)
    is_reached: bool = False

    @property
    def level(self) -> Level:
        """How it stands in all."""
        return worst(self.checks)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"address": self.address, **as_values(self.checks)}


def examine(
    address: str | None = None,
    *,
    tenant: str = "default",
    secret: str | PathLike[str] | None = None,
    deadline_s: float = 5.0,
    tell: Tell = lambda _: None,
) -> Report:
    """Looks at a node from all sides; `tell` hears each check as it is done."""
    where = parse_address(address)
    report = Report(where)
    with ExitStack() as stack:
        for check in _examine(report, stack, where, tenant, secret, deadline_s):
            report.checks.append(check)
            tell(check)
    return report


def _examine(
    report: Report,
    stack: ExitStack,
    where: str,
    tenant: str,
    secret: str | PathLike[str] | None,
    deadline_s: float,
) -> Iterator[Check]:
    local = is_socket(where)
    try:
        memory = stack.enter_context(connect(where, connections_max=1, deadline_s=deadline_s))
    except NodeError as error:
        # It is there and refuses us, or is not to be trusted.
        yield fail("node", str(error), "give credentials that the node knows, from its own CA")
        return
    yield reach.node(memory.health(), where)
    try:
        asked, asked_s = host.boottime_ns(), time.time()
        found = memory.stat(deadline_s)
        heard, heard_s = host.boottime_ns(), time.time()
    except NodeError as error:
        if memory.health()["state"] == "up":
            report.is_reached = True
            todo = "give this principal the right to it, or look at the node's log and load"
            yield fail("figures", str(error), todo)
        return
    report.is_reached = memory.health()["state"] == "up"
    server = found["server"]
    yield reach.version(keepwarm.__version__, str(server["version"]))
    yield reach.transport(memory.health(), local)
    yield host.clock(server, local, asked, heard, (asked_s + heard_s) * 500)
    if local:
        yield from host.limits(server, len(found.get("devices", ())))
        yield from host.disk([Path(where).parent, Path(f"{where}.state")])
    elif "://" in where:
        name, _, port = where.partition("://")[2].rpartition(":")
        yield from host.mtu(name.strip("[]"), int(port))
    yield from figures.of_node(found)
    yield from flash.of_node(found)
    opened = reach.attach(memory, tenant, secret)
    if isinstance(opened, Check):
        yield opened
        return
    stack.callback(_drop, opened)
    yield Check("attach", "ok", f"tenant {tenant}, a namespace of its own")
    yield from _over_all(stack, memory, opened, found, where, deadline_s)


def _over_all(
    stack: ExitStack,
    memory: Memory,
    first: Space,
    found: dict[str, Any],
    where: str,
    deadline_s: float,
) -> Iterator[Check]:
    local = is_socket(where)
    names = first.namespace
    each = block_bytes(found["capacity_bytes"])
    copy = copy_speed(BLOCKS * each)
    turn = iter(range(1 << 20))

    def keys_of(_: int) -> bytes:
        count = BLOCKS * names.block_tokens
        begin = next(turn) * count
        return names.block_keys(range(begin, begin + count))

    yield reach.round_trip(first, keys_of(0)[:16], local, deadline_s)
    with open_memory(INPROC_BYTES) as embedded:
        inner = min(each, block_bytes(INPROC_BYTES))
        own = embedded.attach(reach.names("default", None))
        yield from over("inproc", own, keys_of, inner, copy, deadline_s)
    memories = {"the first": memory}
    for name, address, transport in reach.paths(found["server"], where, local):
        try:
            another = _connect(address, transport, deadline_s)
        except KeepwarmError as error:
            if name != "shm":  # which the check of the transport tells
                yield fail(f"get over {name}", str(error), f"clients cannot come over {name}")
            continue
        memories[name] = stack.enter_context(another)
        try:
            space = another.attach(names, deadline_s=deadline_s)
        except KeepwarmError as error:
            yield fail(f"get over {name}", str(error), f"clients cannot come over {name}")
            continue
        yield from over(name, space, keys_of, each, copy, deadline_s)
    yield reach.breaker(memories)
    yield reach.checksum(memory.counts())


def _connect(address: str, transport: Transport, deadline_s: float) -> Memory:
    memory = connect(address, connections_max=1, deadline_s=deadline_s, transport=transport)
    health = memory.health()
    if health["state"] != "up":
        memory.close()
        raise NodeError(f"no node at {address}: {health['last_error'] or 'it does not answer'}")
    return memory


def _drop(space: Space) -> None:
    """Leaves nothing behind, if the node is still there."""
    with suppress(KeepwarmError):
        space.drop()
