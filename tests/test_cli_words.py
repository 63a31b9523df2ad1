"""The commands about logs, as somebody meets them who mistypes, pipes, or has a narrow terminal."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from keepwarm.cli import main
from keepwarm.cli.workload import app

VERBS = ("describe", "curve", "simulate", "size", "report", "replay", "anonymise")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Forty requests that share a prefix."""
    path = tmp_path / "log.jsonl"
    row = {"input_length": 1536, "output_length": 9}
    rows = ({"timestamp": 1000 * at, **row, "hash_ids": [1, 2, 9 + at]} for at in range(40))
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_a_misspelt_option_is_no_file(
    verb: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {
        "size": ["--model", "Llama-3-8B"],
        "anonymise": ["out.jsonl"],
        "replay": ["--node", "unix:/none"],
    }
    assert main(["workload", verb, str(log), "--fromat", *needed.get(verb, [])]) == 2
    said = capsys.readouterr().err
    assert "unknown option --fromat" in said
    assert f"keepwarm workload {verb} --help" in said


def test_lint_tells_a_misspelt_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "log.jsonl", "--jsn"]) == 2
    assert "unknown option --jsn: keepwarm lint --help" in capsys.readouterr().err


def test_what_is_missing_is_told_with_the_help_of_its_own_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["workload", "size", "log.jsonl"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.endswith("--model requires an argument: keepwarm workload size --help explains")


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "{log}", "--out", "{out}.html"),
        ("synth", "{out}.parquet"),
        ("synth", "{out}.jsonl"),
        ("anonymise", "{log}", "{out}.jsonl"),
        ("replay", "{log}", "--against", "http://127.0.0.1:1", "--out", "{out}.json"),
    ],
)
def test_a_folder_that_is_not_there_is_told_before_any_work(
    arguments: tuple[str, ...], log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none" / "out"
    given = [each.format(log=log, out=out) for each in arguments]
    assert main(["workload", *given]) == 2
    assert f"there is no folder {out.parent}" in capsys.readouterr().err
    assert not out.parent.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "{log}"),
        ("curve", "{log}"),
        ("simulate", "{log}", "--capacity-blocks", "9"),
        ("size", "{log}", "--model", "Llama-3-8B"),
    ],
)
def test_a_reader_who_goes_away_is_no_failure(arguments: tuple[str, ...], log: Path) -> None:
    given = [each.format(log=log) for each in arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", "keepwarm.cli", "workload", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_help_begins_with_what_to_ask_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "--help"]) == 0
    said = capsys.readouterr().out
    assert "keepwarm workload describe requests.jsonl" in said
    places = [said.index(f"│ {verb} ") for verb in ("describe", "size", "report", "synth")]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", [*VERBS, "synth"])
def test_help_fits_eighty_columns(verb: str) -> None:
    text = inspect.cleandoc(app[verb].help)
    body = text.split("Parameters\n")[0].splitlines()[1:]
    assert body
    assert all(len(line) <= 80 for line in body), max(body, key=len)
    assert "keepwarm workload " in text, "an example"


@pytest.mark.parametrize("verb", ["curve", "anonymise", "describe"])
def test_json_names_itself(
    verb: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [str(tmp_path / "out.jsonl")] if verb == "anonymise" else []
    assert main(["workload", verb, str(log), *more, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, f"keepwarm.workload.{verb}")


def test_a_session_field_that_no_record_has_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    message = {"role": "user", "content": "hello"}
    log.write_text(json.dumps({"model": "m", "messages": [message]}) + "\n")
    given = ["workload", "describe", str(log), "--session-field", "meta.chat", "--json"]
    assert main(given) == 0
    notes = json.loads(capsys.readouterr().out)["measures"]["info"]["notes"]
    assert any("no sessions, not by meta.chat either" in each for each in notes)


def test_curve_and_simulate_call_the_stores_policy_alike(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = []
    for arguments in (
        ("curve", "--policy", "default", "--points", "40"),
        ("curve", "--policy", "adaptive", "--points", "40"),
        ("simulate", "--policy", "default", "--capacity-blocks", "40"),
        ("simulate", "--policy", "adaptive", "--capacity-blocks", "40"),
    ):
        verb, *more = arguments
        assert main(["workload", verb, str(log), *more, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        rates.append(found.get("points", [found])[0]["hit_rate"]["block"])
    rates = [each["value"] if isinstance(each, dict) else each for each in rates]
    assert rates == pytest.approx([rates[2]] * 4)
    assert rates[0] > 0.5


@pytest.mark.parametrize(
    "verb",
    [("describe",), ("curve",), ("simulate", "--unbounded"), ("size", "--model", "Llama-3.1-8B")],
)
def test_a_result_that_found_no_room_is_a_failure(log: Path, verb: tuple[str, ...]) -> None:
    name, *more = verb
    command = [sys.executable, "-m", "keepwarm.cli", "workload", name, str(log), *more, "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("keepwarm: ")
    assert "Traceback" not in done.stderr
