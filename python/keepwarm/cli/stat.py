"""`keepwarm stat`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from keepwarm.cli.exits import UnreachableError, reach
from keepwarm.cli.output import rows_table, wide_console
from keepwarm.config import parse_duration, show_size
from keepwarm.errors import NodeError


def stat(
    *,
    address: str | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    deadline: str = "5s",
) -> None:
    """Show what a node holds and how it does.

    Parameters
    ----------
    address
        Where the node is: unix:/path, a path, tcp://host:port or tls://host:port. Without it
        KEEPWARM_ADDRESS, else the default socket. Of several nodes: their addresses with commas
        between, or dns://name:port.
    json_
        All figures, as one JSON object.
    deadline
        How long to wait for the node.
    """
    deadline_s = parse_duration(deadline, "deadline")
    with reach(address, deadline_s) as memory:
        try:
            figures = memory.stat(deadline_s)
        except NodeError as error:
            raise UnreachableError(f"the node does not answer: {error}") from None
    if json_:
        json.dump(figures, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(figures)


def share(part: float, whole: float) -> str:
    """A part of a whole in per cent."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def totals(figures: Mapping[str, Any]) -> dict[str, int]:
    """Sums of what the figures give by reason."""
    return {
        name: sum(figures.get(name, {}).values())
        for name in ("lookup_misses", "read_misses", "shed")
    }


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    total = totals(figures)
    hits = figures["lookup_hits"]
    asked = hits + total["lookup_misses"] + figures["lookup_after_miss"]
    used, capacity = figures["used_bytes"], figures["capacity_bytes"]
    server = figures.get("server", {})
    kept = show_size(capacity)
    several = figures.get("nodes")
    node = f"{server.get('node', '-')}, process {server.get('pid', '-')}"
    if several is not None:
        node = f"{len(several)}, of which {sum(bool(each['figures']) for each in several)} answered"
    return [
        ("nodes" if several is not None else "node", node),
        ("arena", f"{show_size(used)} of {kept} ({share(used, capacity)}), {figures['policy']}"),
        ("pages", _pages(figures)),
        ("blocks", f"{figures['blocks']} of {figures['blocks_max']}"),
        ("leases", f"{figures['leases']}, {show_size(figures['leased_bytes'])}"),
        ("clients", f"{server.get('connections', 0)} of {server.get('clients_max', 0)}"),
        ("lookup hits", f"{hits} of {asked} keys ({share(hits, asked)})"),
        ("first misses", _by_reason(figures, "lookup_misses")),
        ("read", f"{figures['reads']} parts, {show_size(figures['read_bytes'])}"),
        ("stored", f"{figures['blocks_stored']} blocks, {show_size(figures['stored_bytes'])}"),
        ("not stored", _by_reason(figures, "shed")),
        ("evicted", f"{figures['evicted']} blocks"),
        ("corrupt", f"{figures['corrupt']} blocks"),
        ("epochs", "durable" if figures["epochs_durable"] else "in memory only"),
        *_flash_rows(figures),
    ]


def _flash_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "flash_capacity_bytes" not in figures:
        return []
    held = sum(tenant.get("flash_bytes", 0) for tenant in figures["tenants"].values())
    capacity = figures["flash_capacity_bytes"]
    claimed = f"{figures['flash_recovered']} blocks in {figures['flash_recovery_seconds']:.1f} s"
    if figures["flash_recovering"]:
        done, all_of = figures["flash_recovered_segments"], figures["flash_recovered_segments_max"]
        claimed += f", {done} of {all_of} segments so far"
    return [
        (
            "flash",
            f"{show_size(held)} of {show_size(capacity)} ({share(held, capacity)}), "
            f"{figures['flash_blocks']} blocks",
        ),
        *(
            ("device", f"{device['name']}: {device['state']}, {device['engine']} {device['why']}")
            for device in figures.get("devices", {}).values()
        ),
        (
            "to flash",
            f"{figures['flash_written']} blocks, {show_size(figures['flash_written_bytes'])}, "
            f"{figures['flash_queued']} waiting, "
            f"amplification {figures['flash_amplification']:.2f}",
        ),
        ("not to flash", _by_reason(figures, "flash_shed")),
        (
            "from flash",
            f"{figures['flash_promoted']} blocks, {show_size(figures['flash_promoted_bytes'])}, "
            f"{show_size(figures['flash_restore_bytes_per_second'])}/s",
        ),
        ("claimed", claimed),
    ]


def _pages(figures: Mapping[str, Any]) -> str:
    nodes = figures["memory_nodes"]
    huge = show_size(figures["arena_huge_bytes"])
    shown = figures["arena_pages"]
    shown += f", {huge} huge" if shown != "plain" else ""
    spread = "interleaved over" if figures["memory_interleaved"] else "on one of"
    return f"{shown}, {spread} {nodes} memory nodes" if nodes > 1 else shown


def _by_reason(figures: Mapping[str, Any], name: str) -> str:
    counts = sorted(figures.get(name, {}).items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {count}" for reason, count in counts if count) or "none"


def _show(figures: Mapping[str, Any]) -> None:

    console = wide_console()
    console.print(rows_table(_rows(figures)))
    if figures["namespaces"]:
        console.print()
        console.print(_namespaces(figures))
    if "nodes" in figures:
        console.print()
        console.print(_nodes(figures["nodes"]))


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", overflow="fold")
    table.add_column("state")
    for name in ("weight", "share", "arena", "blocks", "clients"):
        table.add_column(name, justify="right")
    table.add_column("last error", overflow="fold")
    for node in nodes:
        own = node["figures"] or {}
        used, kept = own.get("used_bytes", 0), own.get("capacity_bytes", 0)
        table.add_row(
            Text(node["name"]),
            node["state"],
            f"{node['weight']:g}",
            f"{100 * node['share']:.1f} %",
            f"{show_size(used)} of {show_size(kept)}" if own else "-",
            str(own.get("blocks", "-")),
            str(own.get("server", {}).get("connections", "-")),
            Text("" if node["up"] else node["last_error"]),
        )
    return table


def _namespaces(figures: Mapping[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("namespace", "tenant", "model"):
        table.add_column(name, overflow="fold")
    for name in ("epoch", "blocks", "bytes", "clients"):
        table.add_column(name, justify="right")
    for space in figures["namespaces"].values():
        table.add_row(
            space["fingerprint"][:12],
            Text(space["tenant"]),
            Text(space["model"]),
            str(space["epoch"]),
            str(space["blocks"]),
            show_size(space["bytes"]),
            str(space["sessions"]),
        )
    return table
