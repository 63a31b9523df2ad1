"""How `keepwarm lint` shows what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keepwarm.cli.output import wide_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from keepwarm.layout.findings import Finding
    from keepwarm.layout.report import FixOutcome, LintResult

FINDINGS_SHOWN = 40
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


def show(result: LintResult, outcome: FixOutcome | None, failure: str | None) -> None:
    """Everything, for people, on standard output."""
    console = wide_console()
    if result.report.requests:
        _summary(console, result)
    if result.findings:
        console.print(_table(result))
        left = len(result.findings) - FINDINGS_SHOWN
        if left > 0:
            console.print(f"and {left} more, of lower cost: --json has them all")
    else:
        console.print("nothing breaks prefixes here")
    if outcome is not None:
        _fix(console, outcome)
    for reason, count in result.skipped.items():
        console.print(f"left out: {count} records: {reason}", markup=False)
    if result.report.requests_refused:
        first = result.report.refused[0] if result.report.refused else ""
        console.print(
            f"the chat template refused {result.report.requests_refused} requests: {first}",
            markup=False,
        )
    console.print(f"fails: {failure}" if failure else "no finding reaches the threshold")


def _summary(console: Console, result: LintResult) -> None:
    report = result.report
    tokens = report.tokens
    lost = result.lost_tokens()
    console.print(
        f"{report.requests:,} requests, {tokens:,} prompt tokens ({report.tokens_are})",
        markup=False,
    )
    money = result.lost_money()
    paid = "" if money is None else f", {money:,.2f} {result.currency}"
    console.print(
        f"{report.actual_reuse:.1%} of them repeat the beginning of an earlier prompt; "
        f"{lost / tokens if tokens else 0:.1%} more would, but for what is listed here{paid}",
        markup=False,
    )
    if result.price_sources:
        console.print(f"prices: {', '.join(result.price_sources)}", markup=False)
    if result.models_without_price and result.findings:
        names = ", ".join(name or "(no name)" for name in result.models_without_price[:5])
        console.print(f"no price known for: {names}", markup=False)


def _table(result: LintResult) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    has_money = any(each.lost_money is not None for each in result.findings)
    table = Table(box=box.HORIZONTALS, pad_edge=False, header_style="bold", expand=False)
    table.add_column("breaker", no_wrap=True)
    table.add_column("tokens lost", justify="right", no_wrap=True)
    if has_money:
        table.add_column(result.currency, justify="right", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("first at", overflow="fold", max_width=44)
    table.add_column("what to do", overflow="fold", ratio=1)
    for each in result.findings[:FINDINGS_SHOWN]:
        colour = "dim" if each.is_expected else _COLOURS[each.severity.value]
        name = Text(each.breaker.value, style=colour)
        name.append(f"\n{'expected' if each.is_expected else each.severity.value}")
        cells: list[Text | str] = [name, _cost(each, result.report.tokens)]
        if has_money:
            cells.append("-" if each.lost_money is None else f"{each.lost_money:,.2f}")
        cells += [f"{each.requests:,}", Text(_first(each)), Text(_advice(each))]
        table.add_row(*cells)
        table.add_section()
    return table


def _cost(finding: Finding, tokens: int) -> str:
    share = f"\n{finding.lost_tokens / tokens:.1%}" if tokens else ""
    return f"{finding.lost_tokens:,}{share}"


def _first(finding: Finding) -> str:
    place = finding.place
    field = place.pointer or "(chat template)"
    offset = f" +{place.offset}" if place.offset else ""
    token = f", token {place.token:,}" if finding.requests else ""
    against = f"\nagainst {finding.compared_with}" if finding.compared_with else ""
    return f"{place.where}{token}\n{field}{offset}{against}"


def _advice(finding: Finding) -> str:
    mended = " (--fix does it)" if finding.is_fixable else ""
    return f"{finding.explanation}\n→ {finding.repair}{mended}"


def _fix(console: Console, outcome: FixOutcome) -> None:
    changes = ", ".join(f"{name} {count}" for name, count in sorted(outcome.changes.items()))
    console.print(
        f"{outcome.file}: {outcome.records:,} records, {outcome.changed:,} of them repaired"
        f" ({changes or 'nothing to do'})",
        markup=False,
    )
    for reason, count in outcome.left.items():
        console.print(f"  {count} records: {reason}", markup=False)
    console.print(
        f"  repeated before the repairs {outcome.repeated_before:.1%}, "
        f"after them {outcome.repeated_after:.1%} of prompt tokens"
    )
