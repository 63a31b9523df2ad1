"""docs/workload.md names the fields that the verbs' JSON has, all of them and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keepwarm.cli import main

DOCS = (Path(__file__).parent.parent / "docs" / "workload.md").read_text("utf-8")
MODEL = ("--model", "Llama-3.1-8B", "--gpu", "l4")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chat.jsonl"
    code = main(["workload", "synth", str(path), "--kind", "chat", "--requests", "300"])
    assert code == 0
    return path


def section(title: str) -> str:
    """From its heading to the next of any level."""
    level, found = title.partition(" ")[0], DOCS.partition(f"\n{title}\n")[2]
    assert found, title
    return re.split(rf"\n#{{2,{len(level)}}} ", found)[0]


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["workload", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def words(text: str) -> set[str]:
    """What stands between backticks, taken apart: `{"low", "value"}`, `plan.nodes`, `curve[]`."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {word for each in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", each)}


def names(value: Any) -> Iterator[str]:
    """Every field's name at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from names(inner)
    elif isinstance(value, list):
        for each in value:
            yield from names(each)


def first_cells(text: str) -> set[str]:
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in words(row.split("|")[1])}


def test_describe(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "describe", chat, *MODEL)
    told = section("## Describe: what repeats").partition("\n### JSON\n")[2]
    assert first_cells(told) <= set(names(shown))
    assert {*shown, *shown["verdict"], *shown["verdict"]["figures"][0]} <= words(told)
    assert {*shown["kv"], *shown["kv"]["prompt_bytes"]} - {"working_set_error"} <= words(told)


def test_size(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "size", chat, *MODEL)
    told = section("## Size: from a target to a memory").partition("\n### JSON\n")[2]
    assert first_cells(told) <= set(names(shown))
    plan = next(line for line in told.splitlines() if line.startswith("| `plan`"))
    assert words(plan) - {"plan"} == set(shown["plan"])
    row = next(line for line in told.splitlines() if line.startswith("| `load`"))
    assert words(row) - {"load"} == set(shown["load"])
    parts = (shown, shown["capacity_range"], shown["break_even"], shown["sensitivity"][0])
    assert {key for part in parts for key in part} <= words(told)


def test_curve(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "curve", chat)
    told = words(section("## Curve: every size of a memory at once"))
    assert {*shown, *shown["points"][0]} <= told


def test_simulate(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "simulate", chat, *MODEL, "--capacity", "device=1GiB")
    told = words(section("## Simulate: what exactly a size finds"))
    assert {*shown, *shown["hit_rate"], *shown["gpu_s"], *shown["ttft_s"]} <= told


def test_report(chat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "report", chat, *MODEL, "--out", tmp_path / "page.html")
    told = words(section("## Report: one page to decide with"))
    assert {*shown, *shown["scorecard"][0], *shown["fleets"]} <= told
