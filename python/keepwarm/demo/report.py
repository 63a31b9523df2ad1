"""The report: a table for people, the same as plain values for machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from keepwarm.demo.run import Record
from keepwarm.demo.summary import Summary

GIB = 1 << 30
MIB = 1 << 20

Rows = Iterator[tuple[str, str]]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:6.1%}" if whole else "     -"


def tokens(summary: Summary) -> Rows:
    """Every token once."""
    ledger = summary.ledger

    def row(name: str, count: int) -> tuple[str, str]:
        return name, f"{count:>13,}  {_percent(count, ledger.asked)}"

    yield row("device hit (none: every prompt asks the memory)", ledger.device_hit)
    for tier, count in sorted(ledger.restored.items()):
        yield row(f"restored from {tier}", count)
    for reason, count in sorted(ledger.missed.items(), key=lambda item: -item[1]):
        yield row(f"recomputed: {reason}", count)
        if reason == "after_gap":
            for before, behind in sorted(ledger.behind.items(), key=lambda item: -item[1]):
                yield row(f"    … behind a block that was {before}", behind)
    total = ledger.device_hit + ledger.restored_tokens() + ledger.missed_tokens()
    sign = "=" if total == ledger.asked else "≠"
    yield row("sum", total)
    yield "tokens asked", f"{sign} {ledger.asked:>11,}  {_percent(ledger.asked, ledger.asked)}"


def capacity(record: Record, summary: Summary) -> Rows:
    """What the size of the memory and the kill cost."""
    ledger, plan = summary.ledger, record.plan
    missing = summary.ideal_tokens - ledger.restored_tokens()
    yield "memory without limits, no kill", f"{summary.ideal_rate():6.1%}  of tokens restored"
    yield "an LRU of this size, no kill (simulated)", f"{summary.replayed_rate:6.1%}"
    yield "this run, with the kill", f"{summary.hit_rate():6.1%}"
    yield (
        "this run below the first",
        f"{_percent(missing, ledger.asked)}  {missing:,} tokens, at most "
        f"{summary.lost_by_kill_tokens:,} of them lost with the node",
    )
    yield (
        "arena, working set",
        f"{plan.arena_bytes / MIB:,.0f} MiB for {plan.working_set_bytes / MIB:,.0f} MiB "
        f"({plan.arena_bytes / plan.working_set_bytes:.0%}), policy {plan.config.policy}, "
        f"evicted {_evicted(record):,} blocks",
    )


def _evicted(record: Record) -> int:
    stats = (record.stat_before_kill, record.stat_at_end)
    return sum(int(stat["evicted"]) for stat in stats)


def integrity(record: Record, summary: Summary) -> Rows:
    """Bytes, deadlines, recovery."""
    config = record.plan.config
    yield "bytes verified", f"{summary.bytes_verified / GIB:.2f} GiB, every byte of every block"
    yield "wrong bytes", f"{summary.wrong_bytes}"
    longest = summary.longest_call
    yield (
        "longest call",
        f"{longest['took_s'] * 1e3:,.0f} ms ({longest['kind']}), deadline "
        f"{config.deadline_s * 1e3:,.0f} ms; {summary.late_calls} calls more than 50 ms late",
    )
    if summary.first_hit_s is not None and summary.first_hit_after_ready_s is not None:
        yield (
            "kill -9 to first hit again",
            f"{summary.first_hit_s:.2f} s (down on purpose for "
            f"{record.restarted - record.killed:.2f} s, node up after "
            f"{record.ready - record.restarted:.2f} s, first answer to a replica "
            f"{summary.first_answer_after_ready_s:+.2f} s, first hit "
            f"{summary.first_hit_after_ready_s:+.2f} s from there)",
        )
    for what, stat in (("kill -9", record.stat_at_end), ("SIGTERM", record.stat_after_stop)):
        kept = stat.get("flash_recovered", 0) * record.plan.config.block_bytes
        yield (
            f"kept on flash over the {what}",
            f"{stat.get('flash_recovered', 0):,} blocks, {kept / MIB:,.0f} MiB, claimed in "
            f"{stat.get('flash_recovery_seconds', 0) * 1e3:,.0f} ms while serving",
        )
    yield "the node at SIGTERM", record.said_at_stop.removeprefix("keepwarm: ")
    for name, found in record.resident.items():
        yield (
            f"resident memory, {name}",
            f"{found['RssShmem'] / MIB:,.0f} MiB arena + {found['RssAnon'] / MIB:,.1f} MiB own",
        )


def speed(record: Record, summary: Summary) -> Rows:
    """Times while both replicas work, then rates alone against memcpy."""
    for kind, found in summary.latency_ms.items():
        rate = summary.bytes_per_s.get(kind)
        moved = f", {rate / GIB:.2f} GiB/s" if rate else ""
        times = f"p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms, max {found['max']:.2f} ms"
        yield f"{kind} ({found['calls']:,.0f} calls, both replicas busy)", times + moved
    copied = sorted(record.probe["memcpy"])
    yield "memcpy of the same bytes, one core", f"{copied[len(copied) // 2] / GIB:.2f} GiB/s"
    for kind in ("get", "put"):
        ratio = summary.ratio[kind]
        rates = sorted(record.probe[kind])
        yield (
            f"{kind} alone, against memcpy",
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}, "
            f"{len(rates)} pairs), {rates[len(rates) // 2] / GIB:.2f} GiB/s, checksum on",
        )
    load = record.machine
    yield "machine", f"{load['cores']} cores, load {load['load_1m']} over the last minute"


def reconciliation(summary: Summary) -> Rows:
    """Node and clients, side by side."""
    for row in summary.reconciled:
        equal = row["clients"] == row["node"]
        agree = "=" if equal else "≠"
        allowed = "" if equal else f"  (up to {row['tolerance']:,} cut off on their way)"
        yield (
            f"{row['what'].replace('_', ' ')}, {row['life']}",
            f"clients {row['clients']:>15,} {agree} node {row['node']:>15,}{allowed}",
        )


def sections(record: Record, summary: Summary) -> Iterator[tuple[str, Rows]]:
    """The report's parts in order."""
    yield "Where every token went", tokens(summary)
    yield "Capacity", capacity(record, summary)
    yield "Integrity and recovery", integrity(record, summary)
    yield "The node's own counters against its clients'", reconciliation(summary)
    yield "Speed on this machine, in this run", speed(record, summary)


def show(console: Console, record: Record, summary: Summary) -> None:
    """Prints the report, and the verdict last."""
    took = record.ended - record.started
    served = len(record.served)
    console.print(f"\n[bold]{served:,} requests in {took:.1f} s, two replicas, one node[/bold]")
    for title, rows in sections(record, summary):
        table = Table(
            title=title, title_justify="left", show_header=False, box=None, pad_edge=False
        )
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        console.print()
        console.print(table)
    console.print()
    for problem in summary.problems:
        console.print(f"[bold red]does not add up:[/bold red] {problem}", highlight=False)
    if not summary.problems:
        console.print("[bold green]everything adds up[/bold green]")


def plain(record: Record, summary: Summary) -> dict[str, Any]:
    """Everything, as values that JSON can hold."""
    config = {k: str(v) if k == "out" else v for k, v in vars_of(record.plan.config).items()}
    return {
        "trace": record.plan.trace.describe(),
        "synthetic": record.plan.trace.synthetic,
        "config": config,
        "node_command": record.command,
        "arena_bytes": record.plan.arena_bytes,
        "working_set_bytes": record.plan.working_set_bytes,
        "seconds": record.ended - record.started,
        "requests": len(record.served),
        "tokens": summary.ledger.to_json(),
        "hit_rate": summary.hit_rate(),
        "ideal_tokens": summary.ideal_tokens,
        "ideal_rate": summary.ideal_rate(),
        "lru_rate_simulated": summary.replayed_rate,
        "bytes_verified": summary.bytes_verified,
        "wrong_bytes": summary.wrong_bytes,
        "latency_ms": summary.latency_ms,
        "bytes_per_s": summary.bytes_per_s,
        "memcpy_bytes_per_s": sorted(record.probe["memcpy"])[len(record.probe["memcpy"]) // 2],
        "probe": record.probe,
        "ratio_to_memcpy": summary.ratio,
        "longest_call": summary.longest_call,
        "calls_late_50_ms": summary.late_calls,
        "killed_at_s": record.killed - record.started,
        "down_s": record.ready - record.killed,
        "first_hit_after_kill_s": summary.first_hit_s,
        "first_hit_after_ready_s": summary.first_hit_after_ready_s,
        "first_answer_after_ready_s": summary.first_answer_after_ready_s,
        "reconciled": summary.reconciled,
        "put_outcomes": summary.put_outcomes,
        "node_before_kill": record.stat_before_kill,
        "node_at_end": record.stat_at_end,
        "node_after_stop": record.stat_after_stop,
        "resident_bytes": record.resident,
        "machine": record.machine,
        "problems": summary.problems,
        "turns": [_turn(record, served) for served in record.served],
    }


def vars_of(config: Any) -> dict[str, Any]:
    """A dataclass's fields, one level deep."""
    return {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}


def _turn(record: Record, served: Any) -> dict[str, Any]:
    return {
        "turn": served.turn.number,
        "session": served.turn.request.session,
        "replica": served.turn.replica,
        "start_s": served.answer["started"] - record.started,
        "end_s": served.answer["ended"] - record.started,
        "ideal_tokens": served.ideal_tokens,
        "calls": [
            call | {at: call[at] - record.started for at in ("start", "end")}
            for call in served.answer["calls"]
        ],
        **served.ledger.to_json(),
    }
