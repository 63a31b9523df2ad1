"""What a node says about itself: judged from its own figures, taken before the doctor's calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepwarm.config import show_size
from keepwarm.ops.doctor.checks import Check, fail, ok, warn

Figures = Mapping[str, Any]

# Below so many, a share says nothing.
FEW = 1_000
SHED_SHARE = 0.01
EVICTED_SHARE = 0.10
CLIENTS_SHARE = 0.80


def of_node(figures: Figures) -> Iterator[Check]:
    """All of them."""
    yield _corrupt(figures)
    yield _suspect(figures)
    yield _epochs(figures)
    yield _clients(figures["server"])
    yield _hits(figures)
    yield _pressure(figures)
    yield from _sheds(figures)
    yield _leases(figures)
    yield _endings(figures["server"], "stalled", "stalls")
    yield _endings(figures["server"], "violations", "violations")
    yield _pages(figures)
    yield _memory(figures)
    yield _log(figures["server"])


def _corrupt(figures: Figures) -> Check:
    blocks = figures["corrupt"]
    if blocks == 0:
        return ok("corrupt", "no block whose bytes changed")
    return fail(
        "corrupt",
        f"{blocks} blocks whose bytes changed in memory",
        "bytes changed while they lay in this machine's memory: take the node out and test the "
        "memory (memtest86+, EDAC counters)",
    )


def _suspect(figures: Figures) -> Check:
    reports, puts = figures["reports_intact"], figures["server"]["puts_corrupt"]
    if reports + puts == 0:
        return ok("suspect", "no transfer whose bytes changed")
    return warn(
        "suspect",
        f"{reports} reads and {puts} puts arrived with other bytes than were sent",
        "bytes change between clients and the node: the log's report_intact and put_corrupt lines "
        "name the clients; test their machines' memory and network",
    )


def _epochs(figures: Figures) -> Check:
    if not figures["epochs_durable"]:
        return warn(
            "epochs",
            "in memory only",
            "after a restart the node knows no epoch, so that outdated engines pass for current "
            "ones until they attach anew: set state_dir",
        )
    failed = figures["epochs_failed"]
    if failed:
        todo = (
            "larger epochs did not get to disk and were refused: make room at state_dir, or mend it"
        )
        return fail("epochs", f"{failed} not kept", todo)
    return ok("epochs", "durable")


def _clients(server: Figures) -> Check:
    now, most, refused = server["connections"], server["clients_max"], server["refused_clients"]
    figure = f"{now} of {most} places taken, {refused} refused since the start"
    if refused or now > CLIENTS_SHARE * most:
        todo = f"raise clients_max above {most}, or have engines share connections"
        return warn("clients", figure, todo)
    return ok("clients", figure)


def _hits(figures: Figures) -> Check:
    hits, missed = figures["lookup_hits"], figures["lookup_misses"]
    asked = hits + sum(missed.values()) + figures["lookup_after_miss"]
    figure = f"{hits} of {asked} keys found"
    if hits or asked < FEW or not figures["blocks_stored"]:
        return ok("hits", figure)
    spaces = len(figures["namespaces"])
    return warn(
        "hits",
        f"{figure}, though {figures['blocks_stored']} blocks were stored",
        f"who stores and who looks up name blocks differently ({spaces} namespaces here): compare "
        "them; the log's namespace_differs lines and Space.nearest say in which field they differ",
    )


def _pressure(figures: Figures) -> Check:
    used, capacity = figures["used_bytes"], figures["capacity_bytes"]
    evicted, stored = figures["evicted"], figures["blocks_stored"]
    missed = figures["lookup_misses"]
    first = sum(missed.values())
    lost = missed.get("evicted", 0)
    figure = (
        f"{show_size(used)} of {show_size(capacity)} used, {evicted} of {stored} blocks evicted, "
        f"{lost} of {first} first misses for it"
    )
    if first >= FEW and lost > EVICTED_SHARE * first:
        todo = (
            f"blocks leave before they are used again: raise capacity above {show_size(capacity)}"
        )
        return warn("pressure", figure, todo)
    return ok("pressure", figure)


_SHED_TODO = {
    "leased": "leases hold too much of the arena: raise capacity, or hold shorter leases",
    "watermark": "loads come first and leave too little for stores: raise capacity or add a node",
    "quota": "a tenant's quota is filled with what cannot leave: raise its quota",
    "busy": "too many blocks are incomplete or too large at once: store smaller batches",
    "too_large": "blocks are larger than the node takes: make them smaller, or raise capacity",
    "corrupt": "bytes arrive with another checksum than they left with: test memory and network",
    "epoch": "engines store under an epoch that is over: attach them again with current weights",
    "invalid": "clients name parts that their namespace does not have: bring both to one version",
}


def _sheds(figures: Figures) -> Iterator[Check]:
    shed, stored = figures["shed"], figures["stored"]
    total = sum(shed.values())
    if total == 0 or total <= SHED_SHARE * (stored + total) or stored + total < FEW:
        yield ok("sheds", f"{total} of {stored + total} puts not stored")
        return
    reason, count = max(shed.items(), key=lambda item: item[1])
    figure = f"{total} of {stored + total} puts not stored, {count} of them for {reason}"
    todo = _SHED_TODO.get(reason, f"look at what {reason} means in the documentation")
    if reason == "quota":
        tenants = figures["tenants"].items()
        worst = max(tenants, key=lambda item: item[1]["shed"].get("quota", 0))[0]
        yield warn("quota", figure, f"tenant {worst}'s quota is filled: raise it")
    else:
        yield warn("sheds", figure, todo)


def _leases(figures: Figures) -> Check:
    held, most = figures["leased_bytes"], figures["leased_bytes_max"]
    refused, granted = figures["leases_refused"], figures["leases_granted"]
    figure = (
        f"{show_size(held)} of {show_size(most)} held, {refused} refused of {refused + granted}"
    )
    if refused > SHED_SHARE * (refused + granted):
        todo = "lookups go without a lease, so that what they found may leave: raise capacity"
        return warn("leases", figure, todo)
    return ok("leases", figure)


def _endings(server: Figures, source: str, name: str) -> Check:
    count, accepted = server[source], server["accepted"]
    figure = f"{count} of {accepted} connections"
    if count > SHED_SHARE * accepted and count > 1:
        what = {
            "stalled": "stopped in the middle of a call: they hang, or the network drops",
            "violations": "broke the protocol: something else speaks to this address",
        }[source]
        return warn(name, figure, f"clients {what}; the log's {source} lines name them")
    return ok(name, figure)


def _pages(figures: Figures) -> Check:
    pages, huge = figures["arena_pages"], figures["arena_huge_bytes"]
    capacity = figures["capacity_bytes"]
    if pages == "plain":
        if capacity < 1 << 30:
            return ok("pages", "plain; enough for an arena below 1 GiB")
        return warn(
            "pages",
            "plain",
            "huge pages make copies cheaper: write advise to "
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled and start the node again",
        )
    return ok("pages", f"{pages}, {show_size(huge)} of {show_size(capacity)} huge")


def _memory(figures: Figures) -> Check:
    nodes = figures["memory_nodes"]
    if nodes > 1 and not figures["memory_interleaved"]:
        return warn(
            "memory nodes",
            f"{nodes}, not interleaved",
            "the arena may fill one memory node and leave others: give the container CAP_SYS_NICE, "
            "or run the node under numactl --interleave=all",
        )
    return ok("memory nodes", f"{nodes}{', interleaved' if nodes > 1 else ''}")


def _log(server: Figures) -> Check:
    lost = server["log_lost"]
    if lost:
        todo = "nobody takes the node's standard error fast enough: send it to a file or journald"
        return warn("log", f"{lost} lines lost", todo)
    return ok("log", "no line lost")
