"""`keepwarm workload replay` as a process: exits, output, interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from keepwarm.testing import eventually
from keepwarm.testing.fake_engine import EngineFaults, FakeEngine
from nodes import LocalNode
from served import clean, run

TOKENS = 512


@pytest.fixture
def trace(folder: Path) -> Path:
    """60 requests in 1.2 s: six prefixes that repeat."""
    return written(folder, [(at * 20, [at % 6, 100 + at]) for at in range(60)])


def written(folder: Path, rows: Sequence[tuple[int, list[int]]]) -> Path:
    """A trace of (milliseconds, block ids); each prompt is one token longer than its blocks."""
    path = folder / "trace.jsonl"
    lines = [
        {
            "timestamp": at,
            "input_length": len(ids) * TOKENS + 1,
            "output_length": 2,
            "hash_ids": ids,
        }
        for at, ids in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def replay(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("workload", "replay", *map(str, arguments), **environment)


def told(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_two_targets_as_json(trace: Path, folder: Path) -> None:
    first, second = FakeEngine(block_tokens=64), FakeEngine(block_tokens=64, start_s=0.05)
    with first.serving() as one, second.serving(str(folder / "b.sock")) as other:
        answer = replay(
            *(trace, "--against", f"a={one}", "--against", f"b={other}", "--json"),
            *("--speed", "2", "--lag-max", "10s", "--header", "X-Secret=hunter2"),
            *("--api-key-env", "KEY", "--out", folder / "out.json"),
            KEY="hunter3",
        )
    assert answer.returncode == 0, answer.stderr
    result = told(answer)
    assert (folder / "out.json").read_text() == answer.stdout
    assert "hunter" not in answer.stdout + answer.stderr
    assert (result["schema"], result["kind"]) == (1, "keepwarm.workload.replay.endpoints")
    assert [each["completed"] for each in result["targets"]] == [60, 60]
    assert result["comparisons"][0]["ttft_ratio"]["median"] > 1.0
    assert result["trace"]["block_tokens"] == TOKENS
    assert result["schedule"]["speed"] == 2.0
    assert result["command"][:4] == ["keepwarm", "workload", "replay", str(trace)]
    assert "X-Secret=…" in result["command"]
    # 60 requests, of which 54 begin as an earlier one did.
    assert result["targets"][0]["tokens"]["cached"] == 54 * TOKENS == first.cached_tokens


def test_a_table_for_people(trace: Path) -> None:
    with FakeEngine().serving() as url:
        answer = replay(trace, "--against", url, "--speed", "4", "--lag-max", "10s")
    assert answer.returncode == 0, answer.stderr
    for words in ("TTFT p50/p90/p99/max", "send lag", "of which cached", "open loop"):
        assert words in answer.stdout
    assert answer.stderr == ""


def test_a_node_with_real_bytes(trace: Path, node: LocalNode) -> None:
    address = f"unix:{node.path}"
    answer = replay(
        *(trace, "--node", address, "--block-bytes", "64KiB", "--json"),
        *("--as-fast-as-possible", "--clients", "2"),
    )
    assert answer.returncode == 0, answer.stderr
    result = told(answer)
    assert result["kind"] == "keepwarm.workload.replay.node"
    assert (result["loop"], result["requests"]) == ("closed", 60)
    assert result["wrong_bytes"] == 0
    assert result["agrees"] is True
    shown = replay(trace, "--node", address, "--speed", "4", "--lag-max", "10s")
    assert "node and clients agree" in shown.stdout, shown.stderr


def test_nothing_answered_fails(trace: Path) -> None:
    with FakeEngine(faults=EngineFaults(status=503)).serving() as url:
        answer = replay(trace, "--against", url, "--json", "--limit", "5", "--lag-max", "10s")
    assert answer.returncode == 1
    assert "no request was answered" in answer.stderr
    assert told(answer)["targets"][0]["failures"] == {"http 503": 5}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "who is asked"),
        (["--against", "http://127.0.0.1:9", "--node", "unix:/x"], 2, "who is asked"),
        (["--against", "http://127.0.0.1:9"], 3, "does not answer"),
        (["--node", "unix:/nowhere/at/all.sock"], 3, "no node at"),
        (["--against", "ftp://x"], 2, "no endpoint"),
        (["--against", "http://x", "--speed", "0"], 2, "speed is 0"),
        (["--against", "http://x", "--api-key-env", "NOT_THERE"], 2, "NOT_THERE"),
        (["--against", "http://x", "--vocabulary", "3"], 2, "vocab_size"),
        (["--node", "unix:/x", "--clients", "0"], 2, "0 clients"),
    ],
)
def test_what_cannot_be_is_said(trace: Path, arguments: list[str], code: int, words: str) -> None:
    answer = replay(trace, *arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_ctrl_c_gives_what_there_is(folder: Path) -> None:
    trace = written(folder, [(at * 10, [at]) for at in range(100_000)])
    engine = FakeEngine()
    with engine.serving() as url:
        command = [
            *(sys.executable, "-m", "keepwarm.cli", "workload", "replay", str(trace)),
            *("--against", url, "--json", "--lag-max", "10s"),
        ]
        child = subprocess.Popen(
            command, env=clean({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        eventually(lambda: engine.answered >= 20, "some requests are answered", 30.0)
        child.send_signal(signal.SIGINT)
        said, errors = child.communicate(timeout=30)
    assert child.returncode == 130, errors
    result = json.loads(said)
    assert result["interrupted"] is True
    assert 20 <= result["targets"][0]["completed"] <= engine.requests
    assert "Traceback" not in errors


def test_a_text_log_as_it_was(folder: Path) -> None:
    said = [{"role": "user", "content": "hello from the past, " * 20}]
    lines = [
        {"created": 1_700_000_000 + at * 0.05, "model": "m", "messages": said, "max_tokens": 3}
        for at in range(8)
    ]
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = FakeEngine(model="m")
    with engine.serving() as url:
        answer = replay(
            *(log, "--against", url, "--send", "text", "--json", "--lag-max", "10s"),
            *("--output-max", "2"),
        )
    assert answer.returncode == 0, answer.stderr
    result = told(answer)
    target = result["targets"][0]
    assert (target["completed"], target["tokens"]["output"]) == (8, 16)
    assert target["tokens"]["cached"] > 0
    assert result["prompts"]["from"] == "logged text"
    assert "hello" not in answer.stdout
    refused = replay(written(folder, [(0, [1])]), "--against", "http://x", "--send", "text")
    assert refused.returncode == 2
    assert "without text" in refused.stderr
