"""JSON that commands write says what it is, so that another command can take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from keepwarm.cli import main
from keepwarm.workload.report import documents

BENCH = Path(__file__).parent.parent / "bench" / "results.json"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "chat.jsonl"
    assert main(["workload", "synth", str(path), "--kind", "chat", "--requests", "200"]) == 0
    return str(path)


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("anonymise", []),
        ("curve", []),
        ("describe", []),
        ("report", []),
        ("simulate", ["--capacity-blocks", "100"]),
        ("size", ["--model", "Llama-3.1-8B", "--target", "hit-rate=0.1"]),
    ],
)
def test_every_verb_names_its_document(
    verb: str,
    options: list[str],
    trace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if verb == "anonymise":
        options = [str(tmp_path / "out.jsonl")]
    if verb == "report":
        options = ["--out", str(tmp_path / "out.html")]
    assert main(["workload", verb, trace, *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, f"keepwarm.workload.{verb}")


def test_the_recorded_bench_is_one_that_a_report_takes() -> None:
    assert list(documents.read([BENCH])) == ["bench"]
