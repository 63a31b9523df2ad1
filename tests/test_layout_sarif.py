"""SARIF output, held to what the published schema of 2.1.0 asks of the objects that it uses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from keepwarm.layout.catalogue import BREAKERS, Fixing
from keepwarm.layout.findings import Breaker, Finding, Place, Severity
from keepwarm.layout.sarif import RESULTS_MAX, sarif, split_where

# From the schema: for each object the properties that it may have, those that it must have behind
# an exclamation mark, and what each is. Objects of the schema are closed, save for `properties`.
SCHEMA: dict[str, dict[str, Any]] = {
    "log": {"$schema": "uri", "version!": {"2.1.0"}, "runs!": ["run"]},
    "run": {
        "tool!": "tool",
        "invocations": ["invocation"],
        "columnKind": {"utf16CodeUnits", "unicodeCodePoints"},
        "results": ["result"],
        "properties": "bag",
    },
    "tool": {"driver!": "toolComponent"},
    "toolComponent": {"name!": str, "version": str, "rules": ["reportingDescriptor"]},
    "reportingDescriptor": {
        "id!": str,
        "name": str,
        "shortDescription": "multiformatMessageString",
        "fullDescription": "multiformatMessageString",
        "help": "multiformatMessageString",
        "defaultConfiguration": "reportingConfiguration",
        "properties": "bag",
    },
    "multiformatMessageString": {"text!": str, "markdown": str},
    "reportingConfiguration": {"level": {"none", "note", "warning", "error"}},
    "invocation": {
        "executionSuccessful!": bool,
        "toolExecutionNotifications": ["notification"],
    },
    "notification": {"level": {"none", "note", "warning", "error"}, "message!": "message"},
    "message": {"text": str},
    "result": {
        "ruleId": str,
        "ruleIndex": int,
        "level": {"none", "note", "warning", "error"},
        "message!": "message",
        "locations": ["location"],
        "relatedLocations": ["location"],
        "partialFingerprints": "strings",
        "properties": "bag",
    },
    "location": {
        "id": int,
        "physicalLocation": "physicalLocation",
        "logicalLocations": ["logicalLocation"],
        "message": "message",
    },
    "physicalLocation": {"artifactLocation": "artifactLocation", "region": "region"},
    "artifactLocation": {"uri": "uri"},
    "region": {"startLine": int},
    "logicalLocation": {"fullyQualifiedName": str, "kind": str},
}


def check(value: Any, kind: Any, path: str) -> None:
    """Fails with the path of what the schema does not allow."""
    if isinstance(kind, list):
        assert isinstance(value, list), path
        for at, each in enumerate(value):
            check(each, kind[0], f"{path}/{at}")
    elif isinstance(kind, set):
        assert value in kind, path
    elif kind == "uri":
        assert value == urlsplit(value).geturl(), path
        assert not set(value) & set(' "<>\\^`{|}'), path
    elif kind == "bag":
        assert isinstance(value, dict), path
        json.dumps(value, allow_nan=False)
    elif kind == "strings":
        assert all(isinstance(each, str) for each in value.values()), path
    elif isinstance(kind, str):
        assert isinstance(value, dict), path
        allowed = {name.rstrip("!"): below for name, below in SCHEMA[kind].items()}
        assert value.keys() <= allowed.keys(), f"{path}: {value.keys() - allowed.keys()}"
        needed = {name[:-1] for name in SCHEMA[kind] if name.endswith("!")}
        assert needed <= value.keys(), f"{path}: {needed - value.keys()}"
        for name, each in value.items():
            check(each, allowed[name], f"{path}/{name}")
    else:
        assert type(value) is kind, path


def finding(breaker: Breaker = Breaker.TOOL_ORDER, **given: Any) -> Finding:
    place = Place("logs/my log.jsonl:17", "/tools/3/function", 4, 812)
    made: dict[str, Any] = {
        "breaker": breaker,
        "severity": Severity.ERROR,
        "place": place,
        "compared_with": "logs/my log.jsonl:12",
        "requests": 31,
        "lost_tokens": 12_345,
        "lost_money": 1.25,
        "explanation": "the same tools came in another order",
        "repair": "sort tools by name",
        "is_fixable": True,
    }
    return Finding(**{**made, **given})


def test_each_breaker_is_explained() -> None:
    assert list(BREAKERS) == list(Breaker)
    assert len(BREAKERS) == 19
    for text in BREAKERS.values():
        assert text.what.endswith(".")
        assert text.repair.endswith(".")
        assert (text.fixing is Fixing.PARTLY) == bool(text.when_fixed)


def test_the_page_explains_each_breaker_in_order() -> None:
    page = (Path(__file__).parent.parent / "docs/lint.md").read_text(encoding="utf-8")
    sections = page.partition("## The nineteen breakers")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.*)$", sections, re.M) == [breaker.value for breaker in Breaker]
    for breaker, text in zip(Breaker, sections.split("\n### ")[1:], strict=True):
        assert "Fix:" in text, breaker
        assert "cost" in text.lower(), breaker
        says_no = "Fix: no" in text
        assert (
            says_no == (BREAKERS[breaker].fixing is Fixing.NO) or breaker.value == "cache-markers"
        )


def test_all_that_is_written_is_allowed_by_the_schema() -> None:
    findings = [
        *(finding(breaker) for breaker in Breaker),
        finding(lost_money=None, severity=Severity.NOTE, compared_with=""),
        finding(place=Place("stdin", "", 0, 0), severity=Severity.WARNING, is_expected=True),
    ]
    log = sarif(findings, "0.1.0", figures={"requests": 7})
    check(log, "log", "")
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [breaker.value for breaker in Breaker]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert run["properties"] == {"requests": 7}


def test_the_checks_find_what_is_wrong() -> None:
    for broken, path in (
        ({"version": "2.1.0"}, "runs"),
        ({"version": "2.1", "runs": []}, "version"),
        ({"version": "2.1.0", "runs": [], "extra": 1}, "extra"),
        ({"version": "2.1.0", "runs": [{"tool": {"driver": {"name": 3}}}]}, "/runs/0/tool"),
    ):
        with pytest.raises(AssertionError, match=path):
            check(broken, "log", "")


def test_a_result_says_where_how_much_and_what_to_do() -> None:
    (result,) = sarif([finding()], "0.1.0", {"logs/my log.jsonl": "/var/log/my log.jsonl"})["runs"][
        0
    ]["results"]
    physical = result["locations"][0]["physicalLocation"]
    assert unquote(urlsplit(physical["artifactLocation"]["uri"]).path) == "/var/log/my log.jsonl"
    assert physical["region"] == {"startLine": 17}
    assert result["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 12}
    logical = result["locations"][0]["logicalLocations"]
    assert logical == [{"fullyQualifiedName": "/tools/3/function", "kind": "property"}]
    assert result["level"] == "error"
    assert result["properties"] == {
        "requests": 31,
        "lostTokens": 12_345,
        "firstDivergingToken": 812,
        "fieldOffset": 4,
        "fixable": True,
        "expected": False,
        "lostMoney": 1.25,
        "currency": "USD",
    }
    assert result["message"]["text"] == (
        "the same tools came in another order. 12,345 tokens computed again in 31 requests, "
        "1.25 USD. sort tools by name."
    )


def test_a_cause_keeps_its_fingerprint_from_log_to_log() -> None:
    def prints(*findings: Finding) -> list[str]:
        results = sarif(findings, "0.1.0")["runs"][0]["results"]
        return [result["partialFingerprints"]["breakerAndField/v1"] for result in results]

    moved = Place("other.jsonl:2", "/tools/9/function", 0, 7)
    assert prints(finding()) == prints(finding(place=moved, requests=1, lost_tokens=2))
    assert prints(finding()) != prints(finding(Breaker.KEY_ORDER))
    assert prints(finding()) != prints(finding(place=Place("a:1", "/system", 0, 7)))
    assert len(set(prints(finding(), finding(), finding()))) == 3


def test_results_are_bounded_and_it_says_so() -> None:
    log = sarif([finding()] * (RESULTS_MAX + 5), "0.1.0")
    check(log, "log", "")
    (run,) = log["runs"]
    assert len(run["results"]) == RESULTS_MAX
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    assert told["message"]["text"].startswith("5 more findings")


@pytest.mark.parametrize(
    ("where", "split"),
    [
        ("a.jsonl:17", ("a.jsonl", 17)),
        ("C:/logs/a.jsonl:3", ("C:/logs/a.jsonl", 3)),
        ("a.jsonl", ("a.jsonl", None)),
        ("a.json[3]", ("a.json[3]", None)),
        ("a:b", ("a:b", None)),
        ("a:\u0663", ("a:\u0663", None)),
        (":", (":", None)),
    ],
)
def test_places_are_split(where: str, split: tuple[str, int | None]) -> None:
    assert split_where(where) == split
