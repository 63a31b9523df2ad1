"""Makes keepwarm.json, the Grafana dashboard, from the catalogue of metrics.

    python deploy/grafana/generate.py

A panel is a title, a unit and queries over catalogue names: one that is not in the catalogue stops
it. Whatever the catalogue has and no panel shows is listed at the end by hand-made choice alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from keepwarm.ops import metrics

FILE = Path(__file__).with_name("keepwarm.json")
WIDTH, HEIGHT, COLUMNS = 8, 8, 24
HERE = '{instance=~"$instance"}'
TENANT = '{instance=~"$instance",tenant=~"$tenant"}'


class Panel(NamedTuple):
    """One chart: queries by legend."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""


def rate(name: str, where: str = TENANT, by: str = "") -> str:
    """A counter's rate, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}_total{where}[$__rate_interval]))"


HITS = rate("keepwarm_lookup_hits")
MISSES = rate("keepwarm_lookup_misses")
BEHIND = rate("keepwarm_lookup_after_miss")
ROWS: dict[str, list[Panel]] = {
    "What it is worth": [
        Panel(
            "Keys found",
            "percentunit",
            {"found": f"{HITS} / ({HITS} + {MISSES} + {BEHIND})"},
            "Of all keys that lookups asked for.",
        ),
        Panel(
            "First misses by reason",
            "ops",
            {"{{reason}}": rate("keepwarm_lookup_misses", by="reason")},
            "evicted: more capacity pays. absent: new content, or names that differ.",
        ),
        Panel(
            "Bytes read and stored",
            "Bps",
            {
                "read": rate("keepwarm_read_bytes"),
                "stored": rate("keepwarm_stored_bytes"),
            },
        ),
    ],
    "Room": [
        Panel(
            "Arena",
            "bytes",
            {
                "capacity": f"sum (keepwarm_arena_capacity_bytes{HERE})",
                "used": f"sum (keepwarm_arena_used_bytes{HERE})",
                "leased": f"sum (keepwarm_leased_bytes{HERE})",
                "being written": f"sum (keepwarm_arena_writing_bytes{HERE})",
            },
        ),
        Panel(
            "Blocks that left",
            "ops",
            {
                "evicted": rate("keepwarm_blocks_evicted"),
                "for a quota": rate("keepwarm_blocks_evicted_for_quota"),
                "expired": rate("keepwarm_blocks_expired"),
                "outdated": rate("keepwarm_blocks_outdated"),
                "dropped": rate("keepwarm_blocks_dropped"),
            },
        ),
        Panel("Puts not stored", "ops", {"{{reason}}": rate("keepwarm_puts_shed", by="reason")}),
    ],
    "Tenants": [
        Panel("Bytes", "bytes", {"{{tenant}}": f"sum by (tenant) (keepwarm_tenant_bytes{TENANT})"}),
        Panel(
            "Share of the quota",
            "percentunit",
            {"{{tenant}}": f"keepwarm_tenant_bytes{TENANT} / keepwarm_tenant_quota_bytes{TENANT}"},
        ),
        Panel("Keys found", "ops", {"{{tenant}}": rate("keepwarm_lookup_hits", by="tenant")}),
    ],
    "Clients": [
        Panel(
            "Connections",
            "none",
            {
                "now": f"sum (keepwarm_server_connections{HERE})",
                "most": f"sum (keepwarm_server_clients_limit{HERE})",
            },
        ),
        Panel(
            "Requests", "ops", {"{{request}}": rate("keepwarm_server_requests", HERE, "request")}
        ),
        Panel(
            "Connections that ended badly",
            "ops",
            {
                "stalled": rate("keepwarm_server_stalled", HERE),
                "violations": rate("keepwarm_server_violations", HERE),
                "no place": rate("keepwarm_server_refused_clients", HERE),
                "wrong user": rate("keepwarm_server_refused_peers", HERE),
                "throttled": rate("keepwarm_server_throttled", HERE),
            },
        ),
    ],
    "What should be zero": [
        Panel(
            "Corrupt",
            "ops",
            {
                "in memory": rate("keepwarm_blocks_corrupt"),
                "on the way out": rate("keepwarm_reports_intact"),
                "on the way in": rate("keepwarm_server_puts_corrupt", HERE),
            },
        ),
        Panel(
            "Epochs",
            "ops",
            {
                "adopted": rate("keepwarm_epochs_adopted"),
                "failed": rate("keepwarm_epochs_failed"),
            },
        ),
        Panel(
            "Log lines",
            "ops",
            {
                "lost": rate("keepwarm_server_log_lost", HERE),
                "beyond their kind's limit": rate("keepwarm_server_log_suppressed", HERE),
            },
        ),
    ],
}


def names() -> set[str]:
    """Every name on a node's metrics page."""
    own = (metrics.NODE_INFO, metrics.NODE_READY, metrics.NODE_START)
    return {
        f"{metric.name}_total" if metric.kind == "counter" else metric.name
        for metric in (*metrics.CATALOGUE, *own)
    }


def used(text: str) -> set[str]:
    """The names of ours in a text."""
    return set(re.findall(r"\bkeepwarm_\w+", text))


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        panels.append({"type": "row", "title": title, "gridPos": place, "panels": []})
        for number, panel in enumerate(row):
            place = {"h": HEIGHT, "w": WIDTH, "x": number * WIDTH, "y": y + 1}
            panels.append(_panel(panel, place))
        y += HEIGHT + 1
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "uid": "keepwarm",
        "title": "Keepwarm",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "tags": ["keepwarm"],
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    queries = [
        {"refId": chr(ord("A") + number), "legendFormat": legend, "expr": query}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": queries,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "datasource", "name": "datasource", "query": "prometheus"}

    def values(name: str, metric: str) -> dict[str, Any]:
        return {
            "type": "query",
            "name": name,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": f"label_values({metric}, {name})",
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        }

    return [
        source,
        values("instance", "keepwarm_node_ready"),
        values("tenant", "keepwarm_tenant_bytes"),
    ]


def text() -> str:
    """The file's content; raises for a name that the catalogue does not have."""
    made = json.dumps(dashboard(), indent=1) + "\n"
    if unknown := used(made) - names():
        raise ValueError(f"not in the catalogue: {', '.join(sorted(unknown))}")
    return made


if __name__ == "__main__":
    FILE.write_text(text())
