"""Findings as SARIF 2.1.0, for code scanning: where in which log, which field, what it costs.

The format is OASIS's (docs.oasis-open.org/sarif/sarif/v2.1.0). A result's place is the log's line;
the field in the request is its logical location, as a JSON pointer. No text of a prompt is in it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from keepwarm.layout.catalogue import BREAKERS, BreakerText, Fixing
from keepwarm.layout.findings import Breaker, Finding, Severity

__all__ = ["SCHEMA", "sarif", "split_where"]

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# Code scanning at GitHub shows no more of one run.
RESULTS_MAX = 5_000
_PRINT = "breakerAndField/v1"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def sarif(
    findings: Sequence[Finding],
    version: str,
    paths: Mapping[str, str] | None = None,
    figures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A SARIF log of one run with all breakers as its rules.

    `version` is the tool's. `paths` gives files for the names by which findings call logs, and
    `figures` become the run's properties. The first 5,000 findings are results, and a notification
    says how many were left out.
    """
    paths = paths or {}
    left_out = max(0, len(findings) - RESULTS_MAX)
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if left_out:
        text = f"{left_out} more findings, of lower cost, are left out"
        invocation["toolExecutionNotifications"] = [{"level": "note", "message": {"text": text}}]
    driver = {
        "name": "keepwarm lint",
        "version": version,
        "rules": [_rule(breaker) for breaker in Breaker],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": _results(findings[:RESULTS_MAX], paths),
    }
    if figures:
        run["properties"] = dict(figures)
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(breaker: Breaker) -> dict[str, Any]:
    text = BREAKERS[breaker]
    name = "".join(part.capitalize() for part in breaker.value.split("-"))
    return {
        "id": breaker.value,
        "name": name,
        "shortDescription": {"text": text.title},
        "fullDescription": {"text": text.what},
        "help": {
            "text": f"{text.what}\n\nWhat to do: {text.repair}\n\n{_fixed(text)}",
            "markdown": f"{text.what}\n\n**What to do:** {text.repair}\n\n{_fixed(text)}",
        },
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["prompt-cache"], "precision": "high", "fixable": text.fixing.value},
    }


def _fixed(text: BreakerText) -> str:
    if text.fixing is Fixing.NO:
        return "--fix does not touch it: only its author knows what is meant."
    return "--fix mends it" + (f": {text.when_fixed}." if text.when_fixed else ".")


def split_where(where: str) -> tuple[str, int | None]:
    """A log's name and line: "logs/a.jsonl:17" is ("logs/a.jsonl", 17)."""
    name, colon, line = where.rpartition(":")
    # isdecimal alone would take digits of other scripts, too.
    return (name, int(line)) if colon and line.isascii() and line.isdecimal() else (where, None)


def _results(findings: Sequence[Finding], paths: Mapping[str, str]) -> list[dict[str, Any]]:
    """A fingerprint that comes again gets a number, so that no two results are taken for one."""
    made, seen = [], Counter[str]()
    for finding in findings:
        result = _result(finding, paths)
        prints = result["partialFingerprints"]
        mark = prints[_PRINT]
        seen[mark] += 1
        prints[_PRINT] = f"{mark}:{seen[mark]}"
        made.append(result)
    return made


def _physical(where: str, paths: Mapping[str, str]) -> dict[str, Any]:
    name, line = split_where(where)
    path = PurePath(paths.get(name, name))
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    place: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if line:  # lines count from 1
        place["region"] = {"startLine": line}
    return place


def _result(finding: Finding, paths: Mapping[str, str]) -> dict[str, Any]:
    place = finding.place
    pointer = place.pointer or "(chat template)"
    location = {
        "physicalLocation": _physical(place.where, paths),
        "logicalLocations": [{"fullyQualifiedName": pointer, "kind": "property"}],
    }
    properties: dict[str, Any] = {
        "requests": finding.requests,
        "lostTokens": finding.lost_tokens,
        "firstDivergingToken": place.token,
        "fieldOffset": place.offset,
        "fixable": finding.is_fixable,
        "expected": finding.is_expected,
    }
    if finding.lost_money is not None:
        properties |= {"lostMoney": finding.lost_money, "currency": finding.currency}
    result: dict[str, Any] = {
        "ruleId": finding.breaker.value,
        "ruleIndex": list(Breaker).index(finding.breaker),
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [location],
        "partialFingerprints": {_PRINT: _fingerprint(finding)},
        "properties": properties,
    }
    if finding.compared_with:
        result["relatedLocations"] = [
            {
                "id": 1,
                "physicalLocation": _physical(finding.compared_with, paths),
                "message": {"text": "the request whose prefix it broke with"},
            }
        ]
    return result


def _message(finding: Finding) -> str:
    said = [finding.explanation]
    if finding.requests:
        cost = f"{finding.lost_tokens:,} tokens computed again in {finding.requests:,} requests"
        if finding.lost_money is not None:
            cost += f", {finding.lost_money:,.2f} {finding.currency}"
        said.append(cost)
    return " ".join(f"{each.rstrip('.')}." for each in (*said, finding.repair))


def _fingerprint(finding: Finding) -> str:
    """The same for one cause in tomorrow's log: breaker and field, without lines and positions."""
    field = "/".join("*" if step.isdecimal() else step for step in finding.place.pointer.split("/"))
    return hashlib.sha256(f"{finding.breaker.value}\0{field}".encode()).hexdigest()[:32]
