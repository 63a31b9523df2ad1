"""How `keepwarm lint` shows what it found: a list, and what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keepwarm.cli.output import wide_console

if TYPE_CHECKING:
    from rich.console import Console

    from keepwarm.layout.findings import Finding
    from keepwarm.layout.report import FixOutcome, LintResult

FINDINGS_SHOWN = 40
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim", "expected": "dim"}


def show(result: LintResult, outcome: FixOutcome | None, failure: str | None) -> None:
    """Everything, for people, on standard output."""
    console = wide_console()
    if result.report.requests:
        _summary(console, result)
    if result.findings:
        for each in result.findings[:FINDINGS_SHOWN]:
            _finding(console, each, result)
        console.print()
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


def _finding(console: Console, finding: Finding, result: LintResult) -> None:
    """What it is and costs, where it was first seen, why it costs that, and what to do."""
    from rich.padding import Padding
    from rich.text import Text

    severity = "expected" if finding.is_expected else finding.severity.value
    head = Text(finding.breaker.value, style="bold")
    head.append(f"  {severity}", style=_COLOURS[severity])
    head.append(f"  {', '.join(_cost(finding, result))}", style="not bold")
    mended = " (--fix does it)" if finding.is_fixable else ""
    console.print()
    console.print(head)
    for line in (_first(finding), finding.explanation, f"→ {finding.repair}{mended}"):
        console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False))


def _cost(finding: Finding, result: LintResult) -> list[str]:
    tokens = result.report.tokens
    if not tokens:
        return []
    share = finding.lost_tokens / tokens
    cost = [f"{finding.lost_tokens:,} tokens lost ({share:.1%})"]
    if finding.lost_money is not None:
        cost.append(f"{finding.lost_money:,.2f} {result.currency}")
    return [*cost, f"{finding.requests:,} requests"]


def _first(finding: Finding) -> str:
    place = finding.place
    parts = [f"first at {place.where}"]
    if finding.requests:
        parts.append(f"token {place.token:,}")
    offset = f" +{place.offset}" if place.offset else ""
    parts.append(f"{place.pointer or '(chat template)'}{offset}")
    against = f"; against {finding.compared_with}" if finding.compared_with else ""
    return f"{', '.join(parts)}{against}"


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
