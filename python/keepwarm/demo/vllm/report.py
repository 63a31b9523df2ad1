"""The report: a few tables for people, the same as plain values for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from keepwarm.demo.vllm.run import TOLD, Asked, Kind, Record
from keepwarm.demo.vllm.summary import Summary

TITLES = {
    Kind.COLD: "cold: a conversation that nobody has seen",
    Kind.SAME_REPLICA: "warm on the same replica (its own prefix cache)",
    Kind.OTHER_REPLICA: "restored on the other replica",
    Kind.AFTER_RESTART: "restored after that replica's restart",
    Kind.NODE_DOWN: "node killed: unseen conversations again",
}


def show(console: Console, record: Record, summary: Summary) -> None:
    """Prints it, the verdict last."""
    console.print(_times(summary))
    console.print()
    console.print(_turns(record))
    console.print()
    console.print(_tokens(summary))
    console.print()
    answers = "identical" if summary.identical else "NOT identical"
    console.print(
        f"answers: {summary.compared} compared token by token with the same engine's own prefix "
        f"cache: {answers}",
        highlight=False,
    )
    for problem in summary.problems:
        console.print(f"[bold red]does not hold:[/bold red] {problem}", highlight=False)
    if not summary.problems:
        console.print(
            f"[bold green]restoring won: {summary.ratio(Kind.OTHER_REPLICA):.2f} of the cold time "
            f"on the other replica, {summary.ratio(Kind.AFTER_RESTART):.2f} after the restart"
            "[/bold green]",
            highlight=False,
        )


def _table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(columns):
        made.add_column(column, justify="right" if at else "left", no_wrap=True)
    return made


def _times(summary: Summary) -> Table:
    table = _table("Time to first token", "", "requests", "P50 ms", "P99 ms", "of cold")
    for kind in TOLD:
        found = summary.ttft_ms[kind]
        table.add_row(
            TITLES[kind],
            f"{len(summary.of_cold[kind])}",
            f"{found['p50']:,.0f}",
            f"{found['p99']:,.0f}",
            f"{summary.ratio(kind):.2f}",
        )
    return table


def _turns(record: Record) -> Table:
    title = "One conversation that grows and bounces between the replicas"
    table = _table(title, "turn", "replica", "tokens", "restored", "device", "computed", "TTFT ms")
    for at, each in enumerate(record.of(Kind.TURN), 1):
        table.add_row(
            f"{at}",
            each.replica,
            f"{each.prompt_tokens:,}",
            f"{each.accounts.restored.total():,}",
            f"{each.accounts.device:,}",
            f"{each.accounts.recomputed.total():,}",
            f"{each.completion.first_token_s * 1e3:,.0f}",
        )
    return table


def _tokens(summary: Summary) -> Table:
    accounts = summary.accounts
    table = _table("Where every prompt token came from", "", "tokens", "share")
    rows = [("the engine's own cache", accounts.device), ("the engine's host pool", accounts.host)]
    rows += [(f"restored from {tier}", count) for tier, count in accounts.restored.items()]
    rows += [(f"computed: {why}", count) for why, count in accounts.recomputed.most_common()]
    for name, count in [*rows, ("in all", accounts.prompt)]:
        share = count / accounts.prompt if accounts.prompt else 0.0
        table.add_row(name, f"{count:,}", f"{share:.1%}")
    return table


def plain(record: Record, summary: Summary, connector: str) -> dict[str, Any]:
    """Everything, as values that JSON can hold."""
    return {
        "demo": "vllm",
        "connector": connector,
        "ttft_ms": {kind.value: summary.ttft_ms[kind] for kind in TOLD},
        "ratio_to_cold": {kind.value: summary.ratio(kind) for kind in TOLD},
        "identical": summary.identical,
        "compared": summary.compared,
        "won": summary.won,
        "tokens": summary.accounts.plain(),
        "problems": summary.problems,
        "turns": [_plain(each) for each in record.of(Kind.TURN)],
        "requests": [_plain(each) for each in record.asked],
        "seconds": record.seconds,
        "restart_s": record.restart_s,
        "machine": record.machine,
        **record.about,
    }


def _plain(each: Asked) -> dict[str, Any]:
    return {
        "kind": each.kind.value,
        "conversation": each.name,
        "replica": each.replica,
        "prompt_tokens": each.prompt_tokens,
        "ttft_ms": each.completion.first_token_s * 1e3,
        "seconds": each.completion.seconds,
        "answer": each.completion.tokens,
        "tokens": each.accounts.plain(),
    }
