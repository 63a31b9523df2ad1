"""Whether a node is there, takes us in, and answers soon."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from keepwarm.client import Memory, Space, Transport
from keepwarm.errors import AttachError, IdentityError
from keepwarm.identity import Namespace
from keepwarm.ops.doctor.checks import Check, fail, ok, warn

ASKED = 50
# On one machine a lookup of one key takes well below a millisecond.
ROUND_S_MAX = 0.005
MODEL = "keepwarm-doctor"


def names(tenant: str, secret: str | PathLike[str] | None) -> Namespace:
    """A namespace that nothing else has: another one each time."""
    return Namespace(
        secret=secret,
        tenant=tenant,
        model=MODEL,
        weights=f"doctor:{os.urandom(16).hex()}",
        load="none",
        quantisation="none",
        kv_dtype="none",
        kv_scales="none",
        layers=1,
        kv_heads=1,
        head_dim=1,
        layout="bytes",
        engine=MODEL,
        attention_backend="none",
        isa="any",
        block_tokens=16,
        kv_options=[],
        parallel="none",
        connector=MODEL,
        parts=1,
        run_blocks=1,
    )


def node(health: Mapping[str, Any], address: str) -> Check:
    """Whether one answers there."""
    if health["state"] == "up":
        return ok("node", f"{health['node']}, process {health['node_pid']}, at {address}")
    why = health["last_error"] or "it does not answer"
    return fail(
        "node", f"none at {address}: {why}", "start one with keepwarm serve, or name another"
    )


def version(ours: str, theirs: str) -> Check:
    """The node's against ours."""
    if ours == theirs:
        return ok("version", f"{theirs} on both ends")
    todo = "run one version on both ends: what one of them mends, the other may not know"
    return warn("version", f"node {theirs}, client {ours}", todo)


def transport(health: Mapping[str, Any], local: bool) -> Check:
    """Whether bytes take the shortest way."""
    chosen, why = health["transport"], health.get("fallback")
    if local and chosen != "shm":
        todo = "same-host engines copy through the socket instead of sharing memory: see the reason"
        return warn("transport", f"{chosen}: {why or 'shared memory is not offered'}", todo)
    return ok("transport", str(chosen))


def attach(memory: Memory, tenant: str, secret: str | PathLike[str] | None) -> Space | Check:
    """A space of the doctor's own under the tenant, or why there is none."""
    try:
        return memory.attach(names(tenant, secret))
    except IdentityError as error:
        return fail("attach", str(error), f"tenant {tenant}: give its secret with --secret")
    except AttachError as error:
        return fail("attach", str(error), _attach_todo(str(error), tenant))


def _attach_todo(why: str, tenant: str) -> str:
    if "unknown" in why:
        return (
            f"add [tenants.{tenant}] to the node's file and start it again, or name another tenant"
        )
    if "key check" in why:
        return f"give node and clients of tenant {tenant} the same secret file"
    return "see the reason"


def round_trip(space: Space, key: bytes, local: bool, deadline_s: float) -> Check:
    """How long the smallest question takes."""
    took = []
    for _ in range(ASKED):
        begun = time.perf_counter()
        with space.lookup(key, lease_s=None, deadline_s=deadline_s) as found:
            took.append(time.perf_counter() - begun)
        if found.miss is not None and str(found.miss) in ("store_down", "deadline"):
            todo = "it does not answer in time: look at the load of its machine"
            return fail("round trip", str(found.miss), todo)
    middle, longest = statistics.median(took), max(took)
    figure = f"p50 {middle * 1e3:.3f} ms, longest {longest * 1e3:.3f} ms of {ASKED}"
    if local and middle > ROUND_S_MAX:
        todo = "processors are busy with something else: give the node cores of its own"
        return warn("round trip", figure, todo)
    return ok("round trip", figure)


def breaker(memories: Mapping[str, Memory]) -> Check:
    """Whether connections held through all of it."""
    counts = {path: memory.counts() for path, memory in memories.items()}
    lost = sum(count["reconnects"] + count["deadlines"] for count in counts.values())
    down = [path for path, memory in memories.items() if memory.health()["state"] != "up"]
    if down or lost:
        where = f"; down now: {', '.join(down)}" if down else ""
        figure = f"{lost} calls missed their deadline or lost their connection{where}"
        return warn("breaker", figure, "connections do not hold: look at the node's log and load")
    return ok("breaker", "closed on every path")


def checksum(counts: Mapping[str, Any]) -> Check:
    """Whether what a client gets is verified."""
    if counts["checksum"]:
        return ok("checksum", "every block verified where it lands")
    return warn("checksum", "not verified", "blocks may change on the way unnoticed: turn it on")


def paths(
    server: Mapping[str, Any], address: str, local: bool
) -> Iterator[tuple[str, str, Transport]]:
    """Name, address and transport of every way to the node that we may take."""
    if local:
        yield "shm", address, "shm"
        yield "unix", address, "unix"
    else:
        yield address.partition(":")[0], address, "auto"
    for listen in filter(None, str(server.get("listen", "")).split(",")):
        # The port that the system chose is not known here; TLS needs what only the caller has.
        if local and listen.startswith("tcp://") and not listen.endswith(":0"):
            yield "tcp", listen, "auto"
