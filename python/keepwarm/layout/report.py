"""What a lint concludes: figures, findings, whether it fails, as a stable JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keepwarm.errors import ArgumentError
from keepwarm.layout.findings import Finding, Severity
from keepwarm.layout.lint import Cause, LintReport
from keepwarm.layout.money import Price, Prices
from keepwarm.layout.profile import severity_of
from keepwarm.layout.providers import rule_for

__all__ = ["FixOutcome", "LintResult", "Threshold", "conclude"]

SCHEMA = 1
_WEIGHT = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}


@dataclass(frozen=True, slots=True)
class Threshold:
    """From where on a lint fails: a severity, or a share of lost tokens, or both; None: never."""

    severity: Severity | None = Severity.WARNING
    lost_share: float | None = None

    def __post_init__(self) -> None:
        if self.lost_share is not None and not 0 <= self.lost_share <= 1:
            raise ArgumentError(
                f"a share of {self.lost_share} lost tokens: give one from 0 to 1, as 0.02 for 2 %"
            )

    def reason(self, result: LintResult) -> str | None:
        """Why a result fails; None: it does not. What is expected never counts."""
        if self.severity is not None:
            least = _WEIGHT[self.severity]
            count = sum(
                _WEIGHT[each.severity] >= least for each in result.findings if not each.is_expected
            )
            if count:
                finding = "finding" if count == 1 else "findings"
                return f"{count} {finding} of severity {self.severity.value} or more"
        if self.lost_share is not None and result.prompt_tokens:
            share = result.lost_tokens() / result.prompt_tokens
            if share > self.lost_share:
                return f"{share:.2%} of prompt tokens lost, more than {self.lost_share:.2%}"
        return None


@dataclass(frozen=True, slots=True)
class FixOutcome:
    """What `--fix` did to a log."""

    file: str
    records: int  # written
    changed: int  # of them
    changes: Mapping[str, int]  # by breaker
    left: Mapping[str, int]  # records copied as they are, by reason
    repeated_before: float  # share of prompt tokens in front of an earlier prompt, too
    repeated_after: float

    def as_json(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        return {
            "file": self.file,
            "records": self.records,
            "changed": self.changed,
            "changes": dict(self.changes),
            "left": dict(self.left),
            "repeated_before": self.repeated_before,
            "repeated_after": self.repeated_after,
        }


@dataclass(frozen=True, slots=True)
class LintResult:
    """One log, linted: what was found, what it cost, and where it was read."""

    files: Sequence[str]
    skipped: Mapping[str, int]  # records, by reason
    report: LintReport
    findings: Sequence[Finding]  # the most expensive first, with money where a price is known
    currency: str
    price_sources: Sequence[str]
    models_without_price: Sequence[str]
    is_exact: bool
    unread_tokens: int = 0  # that providers' breakpoints leave unread, apart from what is lost

    @property
    def prompt_tokens(self) -> int:
        """All tokens of all prompts."""
        return self.report.tokens

    def lost_tokens(self, is_expected: bool = False) -> int:
        """Tokens lost by causes that can be mended, or by those that are expected."""
        return sum(
            each.lost_tokens for each in self.report.findings if each.is_expected is is_expected
        )

    def lost_money(self) -> float | None:
        """What all that can be mended cost; None where no price is known."""
        known = [
            each.lost_money
            for each in self.findings
            if each.lost_money is not None and not each.is_expected
        ]
        return sum(known) if known else None

    def as_json(self, threshold: Threshold, fix: FixOutcome | None = None) -> dict[str, Any]:
        """The documented object: docs/lint.md."""
        reason = threshold.reason(self)
        report = self.report
        made: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "keepwarm.lint",
            "log": {
                "files": list(self.files),
                "requests": report.requests,
                "skipped": dict(self.skipped),
                "refused_by_template": report.requests_refused,
            },
            "tokens": {
                "prompt": report.tokens,
                "repeated": report.reused_tokens,
                "lost": self.lost_tokens(),
                "expected": self.lost_tokens(is_expected=True),
                "unread": self.unread_tokens,
                "are": report.tokens_are,
                "exact": self.is_exact,
            },
            "money": {
                "currency": self.currency,
                "lost": self.lost_money(),
                "sources": list(self.price_sources),
                "models_without_price": list(self.models_without_price),
            },
            "findings": [_finding(each) for each in self.findings],
            "findings_left_out": report.causes_left_out,
            "failed": reason is not None,
            "threshold": reason,
        }
        if fix is not None:
            made["fix"] = fix.as_json()
        return made


def conclude(
    report: LintReport,
    audit: Sequence[Finding],
    prices: Prices,
    *,
    files: Sequence[str],
    skipped: Mapping[str, int],
    is_exact: bool,
    are_providers: bool | None = None,
) -> LintResult:
    """Puts prices and severities to what a lint and a `BreakpointAudit` have found.

    `are_providers` False: engines of one's own answered, which no price list knows; None: models
    with a provider's rule are that provider's.
    """
    found: dict[str, Price | None] = {}

    def price(model: str) -> Price | None:
        if model not in found:
            listed = rule_for(model) is not None if are_providers is None else are_providers
            found[model] = prices.of(model, is_provider=listed)
        return found[model]

    made = [_priced(cause, price, prices.currency) for cause in report.causes]
    made += [
        replace(each, severity=severity_of(each.lost_tokens, report.tokens, each.is_expected))
        for each in audit
    ]
    made.sort(key=lambda each: (each.is_expected, -each.lost_tokens))
    return LintResult(
        files=files,
        skipped=skipped,
        report=report,
        findings=made,
        currency=prices.currency,
        price_sources=sorted({each.source for each in found.values() if each is not None}),
        models_without_price=sorted(model for model, each in found.items() if each is None),
        is_exact=is_exact,
        unread_tokens=sum(each.lost_tokens for each in audit),
    )


def _priced(cause: Cause, price: Callable[[str], Price | None], currency: str) -> Finding:
    paid = [
        known.lost(loss.lost_tokens)
        for model, loss in cause.by_model.items()
        if (known := price(model)) is not None
    ]
    return replace(cause.finding, lost_money=sum(paid) if paid else None, currency=currency)


def _finding(finding: Finding) -> dict[str, Any]:
    place = finding.place
    return {
        "breaker": finding.breaker.value,
        "severity": finding.severity.value,
        "where": place.where,
        "pointer": place.pointer,
        "offset": place.offset,
        "token": place.token,
        "compared_with": finding.compared_with,
        "requests": finding.requests,
        "lost_tokens": finding.lost_tokens,
        "lost_money": finding.lost_money,
        "explanation": finding.explanation,
        "repair": finding.repair,
        "fixable": finding.is_fixable,
        "expected": finding.is_expected,
    }
