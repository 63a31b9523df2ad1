"""The catalogue of a node's metrics: names, kinds, labels, what they say, and where they come from.

The metrics page, the documents and the dashboards are made from this list; a test holds that every
figure of a node is in it or in `NOT_METRICS`, and that nothing in it is without a figure.

`source` names a figure of `Memory.stat()`: of the store, or with a `scope` of each tenant or
namespace, or of the server. With `table` the source is a table of figures, by that label.
Units come last in names, Prometheus' base units; counters end in `_total` on the page.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]
Scope = Literal["store", "tenants", "namespaces", "server"]


class Metric(NamedTuple):
    """One name on the metrics page."""

    name: str
    kind: Kind
    help: str
    source: str
    scope: Scope = "store"
    table: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its labels."""
        return SCOPE_LABELS[self.scope] + ((self.table,) if self.table else ())


SCOPE_LABELS: dict[Scope, tuple[str, ...]] = {
    "store": (),
    "server": (),
    "tenants": ("tenant",),
    "namespaces": ("tenant", "model", "namespace"),
}


def _gauge(name: str, source: str, text: str, scope: Scope = "store") -> Metric:
    return Metric(f"keepwarm_{name}", "gauge", text, source, scope)


def _count(name: str, source: str, text: str, scope: Scope = "tenants") -> Metric:
    return Metric(f"keepwarm_{name}", "counter", text, source, scope)


def _reasons(name: str, source: str, text: str) -> Metric:
    return Metric(f"keepwarm_{name}", "counter", text, source, "tenants", "reason")


def _served(name: str, text: str) -> Metric:
    return _count(f"server_{name}", name, text, "server")


STORE = (
    _gauge("arena_capacity_bytes", "capacity_bytes", "Bytes of the arena."),
    _gauge("arena_huge_bytes", "arena_huge_bytes", "Arena bytes on huge pages, at start."),
    _gauge("memory_nodes", "memory_nodes", "Memory nodes that the node may use."),
    _gauge("memory_interleaved", "memory_interleaved", "1 if the arena is spread over them."),
    _gauge("arena_used_bytes", "used_bytes", "Arena bytes in use."),
    _gauge("arena_writing_bytes", "writing_bytes", "Arena bytes granted to writers under way."),
    _gauge("leased_bytes", "leased_bytes", "Bytes of blocks under leases, each counted once."),
    _gauge("leased_limit_bytes", "leased_bytes_max", "Most that leases may hold."),
    _gauge("index_blocks", "blocks", "Entries of the index in use."),
    _gauge("index_limit_blocks", "blocks_max", "Entries that the index can hold."),
    _gauge("index_bytes", "index_bytes", "Index tables, allocated at start."),
    _gauge("index_entry_bytes", "index_bytes_per_entry", "Index bytes for one entry."),
    _gauge("index_part_bytes", "part_bytes", "Records of parts, allocated at start."),
    _gauge("ghost_bytes", "ghost_bytes", "List of keys that left, allocated at start."),
    _gauge("leases", "leases", "Leases now."),
    _gauge("reads_in_flight", "reads_in_flight", "Reads under way."),
    _gauge("epochs_durable", "epochs_durable", "1 if epochs survive a restart."),
    _gauge("events_next", "events_next", "Sequence number of the next event."),
)
TENANTS = (
    _gauge("tenant_bytes", "bytes", "Arena bytes of the tenant.", "tenants"),
    _gauge("tenant_quota_bytes", "quota_bytes", "What the tenant may hold at most.", "tenants"),
    _gauge("tenant_blocks", "blocks", "Complete blocks of the tenant.", "tenants"),
    _gauge("tenant_leased_bytes", "leased_bytes", "Leased bytes of the tenant.", "tenants"),
    _count("lookup_hits", "lookup_hits", "Keys that lookups found."),
    _reasons("lookup_misses", "lookup_misses", "First misses of lookups by reason."),
    _count("lookup_after_miss", "lookup_after_miss", "Keys missing after a lookup's first miss."),
    _count("reads", "reads", "Parts pinned for reading."),
    _count("read_bytes", "read_bytes", "Bytes of parts pinned for reading."),
    _reasons("read_misses", "read_misses", "Reads refused by reason."),
    _count("parts_stored", "stored", "Parts stored."),
    _count("stored_bytes", "stored_bytes", "Bytes of parts stored."),
    _count("blocks_stored", "blocks_stored", "Blocks that became visible."),
    _count("puts_present", "present", "Puts of what was here."),
    _count("puts_pending", "pending", "Puts of what another was writing."),
    _reasons("puts_shed", "shed", "Puts not stored by reason."),
    _count("puts_aborted", "aborted", "Writes given up before they were complete."),
    _count("blocks_evicted", "evicted", "Blocks that made room for others."),
    _count("blocks_evicted_for_quota", "evicted_for_quota", "Blocks evicted by a quota."),
    _count("blocks_expired", "expired", "Blocks whose time to live had ended."),
    _count("blocks_outdated", "outdated", "Blocks of older epochs taken back."),
    _count("blocks_dropped", "dropped", "Blocks dropped by request."),
    _count("blocks_corrupt", "corrupt", "Blocks found to be corrupt."),
    _count("blocks_incomplete", "incomplete", "Blocks taken back before all parts came."),
    _count("reports_intact", "reports_intact", "Reports of bad bytes that were good here."),
    _count("parts_relocated", "relocated", "Parts moved to join free space."),
    _count("leases_granted", "leases_granted", "Leases granted."),
    _count("leases_refused", "leases_refused", "Lookups left unleased because of a cap."),
    _count("leases_expired", "leases_expired", "Leases that ended by the clock."),
    _count("epochs_adopted", "epochs", "Larger epochs adopted."),
    _count("epochs_failed", "epochs_failed", "Larger epochs that did not get to disk."),
)
NAMESPACES = (
    _gauge("namespace_epoch", "epoch", "Epoch of the namespace.", "namespaces"),
    _gauge("namespace_sessions", "sessions", "Clients that have it open.", "namespaces"),
    _gauge("namespace_blocks", "blocks", "Visible blocks.", "namespaces"),
    _gauge(
        "namespace_hidden_blocks", "hidden_blocks", "Blocks hidden, not yet freed.", "namespaces"
    ),
    _gauge("namespace_filling_blocks", "filling_blocks", "Incomplete blocks.", "namespaces"),
    _gauge("namespace_bytes", "bytes", "Arena bytes held.", "namespaces"),
)
SERVER = (
    _gauge("server_connections", "connections", "Connections now.", "server"),
    _gauge("server_clients_limit", "clients_max", "Most connections at once.", "server"),
    _gauge("server_loads_bytes", "loads_bytes", "Bytes asked for by gets under way.", "server"),
    _gauge("server_arena_maps", "arena_maps", "Clients that map the arena.", "server"),
    _gauge("server_stagings_bytes", "stagings_bytes", "Mapped bytes of clients.", "server"),
    _served("accepted", "Connections accepted."),
    _served("refused_clients", "Connections refused because all places were taken."),
    _served("refused_peers", "Connections refused because of their user."),
    _served("refused_versions", "Connections refused because of their wire version."),
    _served("violations", "Connections closed because of what they sent."),
    _served("stalled", "Connections closed because they neither took nor sent."),
    _served("idle_closed", "Connections closed because nothing was asked."),
    Metric("keepwarm_server_sent_bytes", "counter", "Bytes sent.", "bytes_sent", "server"),
    Metric(
        "keepwarm_server_received_bytes", "counter", "Bytes received.", "bytes_received", "server"
    ),
    Metric(
        "keepwarm_server_located_bytes",
        "counter",
        "Bytes of blocks that clients copied out of the arena.",
        "bytes_located",
        "server",
    ),
    Metric(
        "keepwarm_server_staged_bytes",
        "counter",
        "Bytes of blocks taken out of clients' memory.",
        "bytes_staged",
        "server",
    ),
    _served("holds_ended", "Times that located blocks were let go before they had landed."),
    _served("throttled", "Requests refused because too many large ones came at once."),
    _served("puts_corrupt", "Blocks that arrived with another checksum."),
    _served("log_suppressed", "Log records beyond what is kept of one kind."),
    _served("log_lost", "Log records that found no room."),
    _served("system_calls", "System calls on client sockets."),
    Metric("keepwarm_server_requests", "counter", "Requests.", "requests", "server", "request"),
)
CATALOGUE: tuple[Metric, ...] = STORE + TENANTS + NAMESPACES + SERVER

# Of the node itself, beside the catalogue's figures: made in keepwarm.server.metrics.
NODE_INFO = Metric("keepwarm_node_info", "gauge", "1, with what the node is in its labels.", "")
NODE_READY = Metric("keepwarm_node_ready", "gauge", "1 while the node takes calls.", "")
NODE_START = Metric("keepwarm_node_start_time_seconds", "gauge", "When it started, Unix time.", "")
NODE_LABELS = ("version", "node", "policy", "incarnation")

# Figures that are no metrics: texts and identities, which are labels above, and sums over tenants.
NOT_METRICS = {
    "store": {"incarnation", "policy", "arena_pages"},
    "tenants": set[str](),
    "namespaces": {"fingerprint", "tenant", "model"},
    "server": {
        *("pid", "node", "transport", "version", "uid", "listen"),
        *("boottime_ns", "unix_ms"),  # clocks, to compare with
    },
}
