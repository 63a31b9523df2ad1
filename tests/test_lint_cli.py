"""`keepwarm lint` from end to end: outputs, exit codes, repairs, and that no text comes out."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from keepwarm.cli import main
from keepwarm.layout.findings import Breaker
from keepwarm.testing import conversations

pytest.importorskip("jinja2")

Record = dict[str, Any]
Plant = Callable[[int, Record], None]


def records(seed: int = 3, count: int = 8) -> list[Record]:
    asked = conversations.interleaved(conversations.generated(count, seed, turns=4))
    return [json.loads(conversations.json_line(each)) for each in asked]


def log_of(path: Path, given: list[Record], plant: Plant | None = None) -> Path:
    for number, record in enumerate(given):
        if plant is not None:
            plant(number, record["request"])
    path.write_text("".join(json.dumps(each) + "\n" for each in given), encoding="utf-8")
    return path


def turned(number: int, body: Record) -> None:
    if number % 2:
        body["tools"].reverse()


def spaced(number: int, body: Record) -> None:
    if number % 2:
        body["messages"][0]["content"] = body["messages"][0]["content"].replace("\n", " \r\n")


def timed(number: int, body: Record) -> None:
    said = f"It is 2026-03-01 14:{number // 60:02}:{number % 60:02}.\n"
    body["messages"][0]["content"] = said + body["messages"][0]["content"]


def linted(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["lint", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code, out, err = linted(capsys, "--json", *arguments)
    assert not err
    return code, json.loads(out)


def test_a_clean_log_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(tmp_path / "log.jsonl", records())
    code, out, err = linted(capsys, log)
    assert (code, err) == (0, "")
    assert "nothing breaks prefixes here" in out


@pytest.mark.parametrize(
    ("plant", "breaker", "pointer"),
    [
        (turned, Breaker.TOOL_ORDER, "/tools/0"),
        (spaced, Breaker.WHITESPACE, "/messages/0/content"),
        (timed, Breaker.DATE_AT_FRONT, "/messages/0/content"),
    ],
)
def test_what_was_planted_is_named_and_fails(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    plant: Plant,
    breaker: Breaker,
    pointer: str,
) -> None:
    log = log_of(tmp_path / "log.jsonl", records(), plant)
    code, document = as_json(capsys, log)
    first = document["findings"][0]
    assert code == 1
    assert first["breaker"] == breaker.value
    assert first["pointer"] == pointer
    assert re.fullmatch(r"log\.jsonl:\d+", first["where"])
    assert first["lost_tokens"] > 0
    assert document["failed"] is True
    assert document["tokens"]["lost"] >= first["lost_tokens"]
    assert document["tokens"]["exact"] is False
    code, out, _ = linted(capsys, log)
    assert code == 1
    assert breaker.value in out
    assert "→ " in out


def test_repairs_bring_the_prefix_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = log_of(tmp_path / "clean.jsonl", records())
    _, wanted = as_json(capsys, clean)

    def both(number: int, body: Record) -> None:
        turned(number, body)
        spaced(number // 2, body)

    log, out = log_of(tmp_path / "log.jsonl", records(), both), tmp_path / "out.jsonl"
    code, document = as_json(capsys, log, "--fix", out)
    assert code == 1  # judged is the log as it was
    fixed = document["fix"]
    assert fixed["file"] == str(out)
    assert fixed["records"] == document["log"]["requests"]
    assert fixed["changes"].keys() == {"tool-order", "whitespace"}
    ideal = wanted["tokens"]["repeated"] / wanted["tokens"]["prompt"]
    assert fixed["repeated_before"] < ideal - 0.02
    assert fixed["repeated_after"] == pytest.approx(ideal, abs=1e-3)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert as_json(capsys, out)[0] == 0
    before = out.read_bytes()
    _, again = as_json(capsys, out, "--fix", tmp_path / "again.jsonl")
    assert again["fix"]["changes"] == {}
    assert (tmp_path / "again.jsonl").read_bytes() == before


def test_the_page_names_each_key_of_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path / "log.jsonl", records(), turned)
    _, document = as_json(capsys, log, "--fix", tmp_path / "out.jsonl")
    page = (Path(__file__).parent.parent / "docs/lint.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*) \|$", page, re.M))
    told = {key: rows[row] for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert document.keys() <= told.keys()
    for key, value in document.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict):
            assert inner.keys() <= set(re.findall(r"`(\w+)`", told[key])), key


def test_thresholds_decide_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path / "log.jsonl", records(), turned)
    code, document = as_json(capsys, log)
    share = document["tokens"]["lost"] / document["tokens"]["prompt"]
    severity = document["findings"][0]["severity"]
    assert (code, severity) == (1, "warning")
    assert linted(capsys, log, "--fail-on", "error")[0] == 0
    assert linted(capsys, log, "--fail-on", "note")[0] == 1
    assert linted(capsys, log, "--fail-on", "none")[0] == 0
    assert linted(capsys, log, "--max-lost-tokens", share * 1.01)[0] == 0
    code, out, _ = linted(capsys, log, "--max-lost-tokens", share * 0.99)
    assert code == 1
    assert "% of prompt tokens lost, more than" in out
    assert linted(capsys, log, "--max-lost-tokens", 1, "--fail-on", "warning")[0] == 1


def test_money_is_what_was_given_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path / "log.jsonl", records(), turned)
    _, document = as_json(capsys, log)
    assert document["money"]["lost"] is None
    assert document["money"]["models_without_price"] == ["example-model"]
    _, document = as_json(capsys, log, "--price", "example-model=3,0.5,3")
    assert document["money"]["lost"] == pytest.approx(document["tokens"]["lost"] * 2.5 / 1e6)
    assert document["money"]["sources"] == ["given by --price"]
    file = tmp_path / "prices.json"
    file.write_text('{"currency": "EUR", "models": {"*": {"input": 3, "cached": 0.5}}}')
    _, document = as_json(capsys, log, "--prices", file)
    assert document["money"]["currency"] == "EUR"
    assert document["money"]["sources"] == [str(file)]


def test_sarif_names_the_file_the_line_and_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    log_of(Path("logs/log.jsonl"), records(), turned)
    code, out, _ = linted(capsys, "logs/log.jsonl", "--sarif", "-")
    log = json.loads(out)
    assert code == 1
    result = log["runs"][0]["results"][0]
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "logs/log.jsonl"
    assert physical["region"]["startLine"] == 2
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "/tools/0"
    code, out, _ = linted(capsys, "logs/log.jsonl", "--sarif", "out.sarif")
    assert "tool-order" in out
    assert json.loads(Path("out.sarif").read_text()) == log


def secret_words(given: list[Record]) -> set[str]:
    """Words of the conversations that are in no vocabulary of ours."""
    text = json.dumps([record["request"]["messages"] for record in given])
    return set(re.findall(r"[a-z]{8,}", text)) - {
        "function",
        "tool_calls",
        "arguments",
        "assistant",
    }


def test_no_text_of_a_prompt_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = records()
    words = secret_words(given) - set(Path(__file__).read_text().split())
    assert len(words) > 100

    def plant(number: int, body: Record) -> None:
        turned(number, body)
        timed(number, body)
        body["messages"][-1]["content"] = f"{next(iter(words))} {number}"

    log = log_of(tmp_path / "log.jsonl", given, plant)
    with log.open("a", encoding="utf-8") as file:
        file.write('{"messages": "' + " ".join(sorted(words)[:5]) + '\n{"x": ' + min(words))
    shown = ""
    for arguments in ((), ("--json",), ("--sarif", "-"), ("--fix", tmp_path / "out.jsonl")):
        code, out, err = linted(capsys, log, *arguments)
        assert code == 1
        shown += out + err
    assert "14:0" not in shown
    own = set(re.findall(r"[a-z]{8,}", shown))
    assert not own & words
    assert {each.name for each in tmp_path.iterdir()} == {"log.jsonl", "out.jsonl"}


def test_what_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(tmp_path / "log.jsonl", records(count=2))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n')
    for arguments, said in (
        ((), "name a log of requests"),
        ((tmp_path / "none.jsonl",), "none.jsonl"),
        ((empty,), "empty.jsonl"),
        ((trace,), "without text"),
        ((log, "--json", "--sarif", "-"), "both take standard output"),
        ((log, "--template", tmp_path), "name the folder by --tokenizer"),
        ((log, "--tokenizer", tmp_path), "no tokenizer at"),
        ((log, "--price", "nonsense"), "model=input,cached,write"),
        ((log, "--max-lost-tokens", "2"), "from 0 to 1"),
        ((log, "--fail-on", "never"), "Invalid value"),
        ((log, "--fix", log), "would write over the log"),
        (("-", "--fix", tmp_path / "out.jsonl"), "has to be a file"),
        ((log, "--fix", tmp_path / "none" / "out.jsonl"), "there is no folder"),
        ((log, "--sarif", tmp_path), "cannot be written"),
    ):
        code, out, err = linted(capsys, *arguments)
        assert code == 2, arguments
        assert said in err, arguments
        assert err.startswith("keepwarm: ")
        assert not out


def test_several_logs_and_a_pipe_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = log_of(tmp_path / "one.jsonl", records(3, 3))
    other = log_of(tmp_path / "other.jsonl", records(4, 3))
    _, document = as_json(capsys, one, other)
    assert document["log"]["requests"] == len(one.read_text().splitlines()) * 2
    command = [sys.executable, "-m", "keepwarm.cli", "lint", "-", "--json"]
    said = subprocess.run(command, input=one.read_bytes(), capture_output=True, timeout=60)
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    assert document["log"]["requests"] == len(one.read_text().splitlines())


@pytest.mark.parametrize(
    ("source", "breakers", "code"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", [], 0),
        (
            "a\nb {{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}",
            ["template-date"],
            1,
        ),
        (
            "{% if date_string is not defined %}{% set date_string = '26 Jul 2024' %}{% endif %}"
            "{{ date_string }}{% for m in messages %}{{ m.content }}{% endfor %}",
            ["template-date"],
            0,
        ),
        (
            "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
            "{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }}{% endif %}"
            "{{ m.content }}{% endfor %}",
            ["reasoning-stripped", "tool-set"],
            0,
        ),
        ("caf{0}{% for m in messages %}{{ m.content }}{% endfor %}", ["whitespace"], 0),
    ],
)
def test_a_template_is_looked_at_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    breakers: list[str],
    code: int,
) -> None:
    text = source.replace("{0}", "e\u0301")
    (tmp_path / "chat_template.jinja").write_text(text, encoding="utf-8")
    got, document = as_json(capsys, "--template", tmp_path)
    assert [each["breaker"] for each in document["findings"]] == breakers
    assert got == code
    config = tmp_path / "config"
    config.mkdir()
    (config / "tokenizer_config.json").write_text(json.dumps({"chat_template": text}))
    again, same = as_json(capsys, "--template", config)
    assert [each["breaker"] for each in same["findings"]] == breakers
    assert again == got
    if breakers == ["template-date"] and code:
        assert document["findings"][0]["where"].endswith("chat_template.jinja:2")
        assert same["findings"][0]["where"].endswith("tokenizer_config.json")
        shown = "".join(linted(capsys, "--template", tmp_path)[1].split())
        assert "chat_template.jinja:2,(chattemplate)" in shown


def test_token_ids_are_counted_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = [*range(1000, 1300), 128_000, 151_643]
    rows = [{"model": "m", "prompt": [*shared, 90_000 + at]} for at in range(5)]
    log = log_of(tmp_path / "log.jsonl", rows)
    _, document = as_json(capsys, log)
    assert document["tokens"]["prompt"] == 5 * 303
    assert document["tokens"]["repeated"] == 4 * 302


def test_a_tokenizer_file_is_taken_with_the_template_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": model, **empty}
    whole["pre_tokenizer"] = {"type": "Whitespace"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(whole))
    template = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    log = log_of(tmp_path / "log.jsonl", records(), timed)
    _, by_folder = as_json(capsys, log, "--tokenizer", tmp_path)
    _, by_file = as_json(capsys, log, "--tokenizer", file)
    assert by_file == by_folder
    assert by_file["tokens"]["exact"]


def test_findings_are_read_at_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path / "log.jsonl", records(), timed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keepwarm.cli.output.WIDTH", 80)
    code, out, _ = linted(capsys, log.name)
    assert code == 1
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    head = next(k for k, line in enumerate(lines) if line.startswith("date-at-front  error"))
    assert "tokens lost" in lines[head]
    assert lines[head + 1].startswith("  first at log.jsonl:2, token ")
    assert "/messages/0/content" in lines[head + 1]
    assert any(line.startswith("  → state the day only") for line in lines[head:])
