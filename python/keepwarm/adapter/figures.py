"""The catalogue of a connector's metrics: names, kinds, labels, and what they say.

`collect` makes one flat table of them, by name and label values, which any engine can carry between
its processes: `merge` joins those of several, `grown` is what has been added since. Prompt tokens:

    keepwarm_connector_prompt_tokens_total{source, reason}
        source  device | host | restored_dram | restored_flash | restored_object | restored_unknown
                | recomputed;  reason is empty but for recomputed: the closed list of `Recomputed`
    summed over all labels it is every prompt token of every request that had its first output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import keepwarm
from keepwarm.adapter.accounting import UNKNOWN_TIER, Accounting
from keepwarm.adapter.lookups import Lookups
from keepwarm.adapter.reasons import Recomputed
from keepwarm.adapter.session import Session
from keepwarm.adapter.transfers import Transfers
from keepwarm.planner import Planner

Table: TypeAlias = dict[tuple[str, tuple[str, ...]], float]
"""A value by name and label values."""

TIERS = ("dram", "flash", "object", UNKNOWN_TIER)


class Figure(NamedTuple):
    """One metric. Counters end in `_total`, as Prometheus shows them."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


def _count(name: str, text: str, *labels: str) -> Figure:
    return Figure(f"keepwarm_{name}_total", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Figure:
    return Figure(f"keepwarm_{name}", "gauge", text, labels)


TOKENS = _count(
    "connector_prompt_tokens",
    "Prompt tokens of requests that had their first output, each once.",
    "source",
    "reason",
)
INFO = _gauge(
    "connector_info",
    "1: what this engine is to the memory; 0: what it was before a move.",
    "namespace",
    "connector",
    "version",
    "load_failure_policy",
)
CATALOGUE: tuple[Figure, ...] = (
    INFO,
    TOKENS,
    _count("connector_requests", "Requests counted.", "end"),
    _count(
        "connector_load_failed_after_schedule_tokens",
        "Tokens that the engine counts as transferred and whose load failed; recomputed above.",
    ),
    _gauge("connector_joined", "1 while a node has accepted this engine's namespace."),
    _gauge("connector_refused", "1 while a node is there and refuses it."),
    _count("connector_moves", "Moves to a private namespace, since weights may have changed."),
    _gauge("connector_breaker_open", "1 while nobody waits for answers: the last did not come."),
    _count("connector_breaker_openings", "Times that the breaker opened."),
    _count("connector_lookups", "Questions about prompts, by how they went.", "result"),
    _count("connector_lookup_wait_seconds", "Time from questions to their answers."),
    _count("connector_transfers", "Loads and stores that ended.", "direction"),
    _count("connector_transfer_blocks", "Blocks of them, by how they ended.", "direction", "ok"),
    _count("connector_transfer_bytes", "Bytes that are in.", "direction"),
    _count("connector_transfer_seconds", "Time of loads and stores.", "direction"),
    _count("connector_transfers_refused", "Loads and stores beyond the backlog.", "direction"),
    _gauge("connector_transfers_waiting", "Loads and stores under way or waiting.", "direction"),
    _gauge("connector_failed_keys", "Keys not tried again yet, since their load failed."),
    _count("connector_faults", "Faults of Keepwarm's own, each logged: please report them."),
    _count("planner_decisions", "Decisions for prompts with hits, by why.", "why"),
    _count("planner_prefill_seconds", "Time of the engine's prefill steps."),
    _count("planner_restore_seconds", "Time that requests were held for restores."),
    _count("planner_predicted_restore_seconds", "What was predicted for it."),
    _count("planner_predicted_recompute_seconds", "What computing the same was predicted to take."),
    _count("planner_regret_seconds", "Time lost against the best choice known at the time."),
    _count("planner_restored_blocks", "Blocks restored as planned."),
    _count("planner_lost_blocks", "Blocks planned and not restored."),
    _count("planner_probes", "Transfers of the prober, which hold no request."),
    _gauge("planner_prefill_token_seconds", "Fitted time of a token at position 0."),
    _gauge("planner_prefill_position_seconds", "Fitted time for each token before it."),
    _gauge("planner_prefill_step_seconds", "Fitted time of a step beside its tokens'."),
    _gauge("planner_overhead_seconds", "Fitted time of a restore beside its bytes'."),
    _gauge("planner_restore_bytes_per_second", "Fitted for 8 MiB.", "tier"),
)
KINDS = {figure.name: figure.kind for figure in CATALOGUE}


def collect(
    accounting: Accounting | None = None,
    lookups: Lookups | None = None,
    transfers: Transfers | None = None,
    planner: Planner | None = None,
    session: Session | None = None,
) -> Table:
    """All figures of these parts; a process that has only some of them gives only theirs."""
    table: Table = {}
    if accounting is not None:
        _tokens(table, accounting)
    if session is not None:
        _info(table, session)
        table["keepwarm_connector_joined", ()] = float(session.problem is None)
        table["keepwarm_connector_refused", ()] = float(session.refused)
        table["keepwarm_connector_moves_total", ()] = float(session.generation)
        table["keepwarm_connector_failed_keys", ()] = float(len(session.failed))
    if lookups is not None:
        _lookups(table, lookups)
    if transfers is not None:
        _transfers(table, transfers)
    faults = [part.counts["faults"] for part in (lookups, transfers) if part is not None]
    if faults:
        table["keepwarm_connector_faults_total", ()] = float(sum(faults))
    if planner is not None:
        _planner(table, planner)
    return table


def _info(table: Table, session: Session) -> None:
    """A label that changes is a new series: the old one is said to be over."""
    about = session.about
    told = (about["connector"], keepwarm.__version__, about.get("load_failure_policy", ""))
    for namespace in session.left:
        table[INFO.name, (namespace, *told)] = 0.0
    table[INFO.name, (session.namespace.fingerprint.hex(), *told)] = 1.0


def _tokens(table: Table, accounting: Accounting) -> None:
    totals = accounting.totals()
    tokens: dict[tuple[str, str], float] = {
        ("device", ""): totals.device,
        ("host", ""): totals.host,
    }
    for tier in TIERS:
        tokens[f"restored_{tier}", ""] = totals.restored.get(tier, 0)
    others = sum(count for tier, count in totals.restored.items() if tier not in TIERS)
    tokens[f"restored_{UNKNOWN_TIER}", ""] += others
    for reason in Recomputed:
        tokens["recomputed", reason.value] = totals.recomputed.get(reason, 0)
    table |= {(TOKENS.name, labels): float(count) for labels, count in tokens.items()}
    table["keepwarm_connector_requests_total", ("output",)] = float(totals.requests)
    table["keepwarm_connector_requests_total", ("aborted",)] = float(totals.aborted)
    failed = float(totals.load_failed_after_schedule)
    table["keepwarm_connector_load_failed_after_schedule_tokens_total", ()] = failed


def _lookups(table: Table, lookups: Lookups) -> None:
    table["keepwarm_connector_breaker_open", ()] = float(lookups.breaker.open)
    table["keepwarm_connector_breaker_openings_total", ()] = float(lookups.breaker.openings)
    for result in ("answered", "missed", "unasked"):
        count = float(lookups.counts[result])
        table["keepwarm_connector_lookups_total", (result,)] = count
    table["keepwarm_connector_lookup_wait_seconds_total", ()] = lookups.waited_s


def _transfers(table: Table, transfers: Transfers) -> None:
    counts = transfers.counts
    for kind, load in (("load", True), ("store", False)):
        table["keepwarm_connector_transfers_total", (kind,)] = float(counts[f"{kind}s"])
        good, bad = counts[f"{kind}s_blocks"], counts[f"{kind}s_failed_blocks"]
        table["keepwarm_connector_transfer_blocks_total", (kind, "true")] = float(good)
        table["keepwarm_connector_transfer_blocks_total", (kind, "false")] = float(bad)
        table["keepwarm_connector_transfer_bytes_total", (kind,)] = float(counts[f"{kind}s_bytes"])
        table["keepwarm_connector_transfer_seconds_total", (kind,)] = transfers.seconds[load]
        refused = float(counts[f"{kind}s_refused"])
        table["keepwarm_connector_transfers_refused_total", (kind,)] = refused
        waiting = float(transfers.backlog(load))
        table["keepwarm_connector_transfers_waiting", (kind,)] = waiting


def _planner(table: Table, planner: Planner) -> None:
    for figure, value in planner.figures().items():
        name, _, label = figure.partition("/")
        name = f"keepwarm_planner_{name}"
        name = name if name in KINDS else f"{name}_total"
        table[name, (label,) if label else ()] = value


def merge(one: Mapping[tuple[str, tuple[str, ...]], float], other: Table) -> Table:
    """Of two processes or engines: counters add up, of gauges the other's counts."""
    joined = dict(one)
    for key, value in other.items():
        adds = KINDS.get(key[0]) == "counter"
        joined[key] = joined.get(key, 0.0) + value if adds else value
    return joined


def grown(now: Table, before: Table) -> Table:
    """What was added since `before`: counters as differences, those alone that grew; gauges as
    they are."""
    return {
        key: value - before.get(key, 0.0) if KINDS.get(key[0]) == "counter" else value
        for key, value in now.items()
        if KINDS.get(key[0]) != "counter" or value != before.get(key, 0.0)
    }
