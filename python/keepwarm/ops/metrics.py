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
Scope = Literal["store", "tenants", "namespaces", "devices", "server"]


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
    "devices": ("device",),
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
    _gauge("namespace_flash_blocks", "flash_blocks", "Visible blocks on flash.", "namespaces"),
)
SERVER = (
    _gauge("server_connections", "connections", "Connections now.", "server"),
    _gauge("server_clients_limit", "clients_max", "Most connections at once.", "server"),
    _gauge("server_age_ms", "age_ms", "How long the node has served.", "server"),
    _gauge(
        "server_weight_permille",
        "weight_permille",
        "Its share among several nodes, in thousandths of an ordinary one's.",
        "server",
    ),
    _gauge("server_draining", "draining", "1: clients put elsewhere.", "server"),
    _gauge("server_loads_bytes", "loads_bytes", "Bytes asked for by gets under way.", "server"),
    _gauge("server_arena_maps", "arena_maps", "Clients that map the arena.", "server"),
    _gauge("server_stagings_bytes", "stagings_bytes", "Mapped bytes of clients.", "server"),
    _served("accepted", "Connections accepted."),
    _served("refused_clients", "Connections refused because all places were taken."),
    _served("refused_peers", "Connections refused because of their user."),
    _served("refused_versions", "Connections refused because of their wire version."),
    _served("refused_tls", "Connections that never spoke TLS as asked, or without a valid proof."),
    _served("refused_rights", "Requests refused because the principal has no right to them."),
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


def _flash(name: str, source: str, text: str) -> Metric:
    return _gauge(f"flash_{name}", f"flash_{source}", text)


def _flash_count(name: str, source: str, text: str) -> Metric:
    return _count(f"flash_{name}", f"flash_{source}", text)


def _device(name: str, text: str) -> Metric:
    return _gauge(f"flash_device_{name}", name, text, "devices")


def _device_count(name: str, text: str) -> Metric:
    return _count(f"flash_device_{name}", name, text, "devices")


FLASH = (
    _flash("capacity_bytes", "capacity_bytes", "Bytes of all segments on flash."),
    _flash("segment_bytes", "segment_bytes", "Bytes of one segment."),
    _flash("blocks", "blocks", "Blocks on flash that are found."),
    _flash("limit_blocks", "blocks_max", "Entries that the flash index can hold."),
    _flash("index_bytes", "index_bytes", "Tables of the flash index, allocated at start."),
    _flash("index_entry_bytes", "index_bytes_per_entry", "Flash index bytes for one entry."),
    _flash("queued_blocks", "queued", "Blocks that wait to be written to flash."),
    _flash("writing_blocks", "writing", "Blocks that are being written to flash."),
    _flash("returning_blocks", "returning", "Blocks on their way back from flash."),
    _flash("pinned_segments", "pinned_segments", "Segments that leases and reads hold."),
    _flash("pinned_limit_segments", "pinned_segments_max", "Most segments that may be held."),
    _flash("budget_short", "budget_short", "1 while no more may be written to flash today."),
    _flash("recovering", "recovering", "1 while blocks of an earlier run are being claimed."),
    _flash("recovered_segments", "recovered_segments", "Segments claimed since the start."),
    _flash("recovered_limit_segments", "recovered_segments_max", "Segments there are to claim."),
    _flash(
        "recovered_blocks_per_second", "recovered_blocks_per_second", "Rate of claiming blocks."
    ),
    _flash("recovery_seconds", "recovery_seconds", "How long claiming took, or has taken."),
    _flash(
        "restore_bytes_per_second",
        "restore_bytes_per_second",
        "What flash gives, as measured; it makes estimates of the time to restore.",
    ),
    _flash(
        "amplification_ratio",
        "amplification",
        "Bytes written to devices over bytes of blocks written for the first time.",
    ),
)
FLASH_TENANTS = (
    _gauge("tenant_flash_bytes", "flash_bytes", "Flash bytes of the tenant.", "tenants"),
    _gauge(
        "tenant_flash_quota_bytes", "flash_quota_bytes", "Flash the tenant may hold.", "tenants"
    ),
    _flash_count("lookup_hits", "lookup_hits", "Keys that lookups found on flash alone."),
    _flash_count("blocks_admitted", "admitted", "Blocks chosen to be written to flash."),
    _flash_count("blocks_written", "written", "Blocks written to flash."),
    _flash_count("written_bytes", "written_bytes", "Bytes of blocks written to flash."),
    _flash_count("blocks_rewritten", "rewritten", "Blocks written again because of their use."),
    _flash_count("rewritten_bytes", "rewritten_bytes", "Bytes of blocks written again."),
    _flash_count("blocks_promoted", "promoted", "Blocks brought back to memory."),
    _flash_count("promoted_bytes", "promoted_bytes", "Bytes of blocks brought back."),
    _flash_count("promotions_shed", "promotions_shed", "Blocks not brought back: no room."),
    _flash_count("blocks_evicted", "evicted", "Blocks that made room on flash."),
    _flash_count("blocks_expired", "expired", "Blocks on flash whose time had ended."),
    _flash_count("blocks_outdated", "outdated", "Blocks of older epochs taken off flash."),
    _flash_count("blocks_dropped", "dropped", "Blocks dropped from flash by request."),
    _flash_count("blocks_corrupt", "corrupt", "Blocks on flash found to be corrupt."),
    _flash_count("blocks_lost", "lost", "Blocks gone with their device."),
    _flash_count("blocks_recovered", "recovered", "Blocks of an earlier run that were claimed."),
    _flash_count("blocks_refused", "refused", "Blocks of an earlier run not wanted any more."),
    _reasons("flash_blocks_shed", "flash_shed", "Blocks not written to flash by reason."),
)
DEVICES = (
    _device("live", "1 while the flash device is in service."),
    _device("capacity_bytes", "Bytes of the device's segments."),
    _device("segments", "Segments of the device."),
    _device("segments_free", "Segments of the device that are free."),
    _device_count("read_bytes", "Bytes read from the device."),
    _device_count("written_bytes", "Bytes written to the device, headers included."),
    _device_count("flushes", "Flushes of the device."),
    _device_count("errors", "Operations of the device that failed."),
    _device("quarantined", "Operations past their time that the device may still finish."),
)
CATALOGUE: tuple[Metric, ...] = (
    STORE + TENANTS + NAMESPACES + FLASH + FLASH_TENANTS + DEVICES + SERVER
)

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
    "devices": {"name", "engine", "state", "why"},
    "server": {
        *("pid", "node", "transport", "version", "uid", "listen"),
        *("boottime_ns", "unix_ms"),  # clocks, to compare with
    },
}
