"""`keepwarm workload replay`: exits, output, interruption."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from keepwarm import cli
from keepwarm.cli.workload.replay import stopping
from keepwarm.testing import eventually
from keepwarm.testing.fake_engine import EngineFaults, FakeEngine
from nodes import LocalNode
from served import clean

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


class Answer(NamedTuple):
    """What the command gave."""

    code: int
    out: str
    err: str


Replay = Callable[..., Answer]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Replay:
    """The command, in this process."""

    def run(*arguments: str | Path) -> Answer:
        code = cli.main(["workload", "replay", *map(str, arguments)])
        return Answer(code, *capsys.readouterr())

    return run


def told(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_two_targets_as_json(
    trace: Path, folder: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter3")
    first, second = FakeEngine(block_tokens=64), FakeEngine(block_tokens=64, start_s=0.05)
    with first.serving() as one, second.serving(str(folder / "b.sock")) as other:
        answer = replay(
            *(trace, "--against", f"a={one}", "--against", f"b={other}", "--json"),
            *("--speed", "2", "--lag-max", "10s", "--header", "X-Secret=hunter2"),
            *("--api-key-env", "KEY", "--out", folder / "out.json"),
        )
    assert answer.code == 0, answer.err
    result = told(answer)
    assert (folder / "out.json").read_text() == answer.out
    assert "hunter" not in answer.out + answer.err
    assert (result["schema"], result["kind"]) == (1, "keepwarm.workload.replay.endpoints")
    assert [each["completed"] for each in result["targets"]] == [60, 60]
    assert result["comparisons"][0]["ttft_ratio"]["median"] > 1.0
    assert result["trace"]["block_tokens"] == TOKENS
    assert result["schedule"]["speed"] == 2.0
    assert result["command"][:4] == ["keepwarm", "workload", "replay", str(trace)]
    assert "X-Secret=…" in result["command"]
    # 60 requests, of which 54 begin as an earlier one did.
    assert result["targets"][0]["tokens"]["cached"] == 54 * TOKENS == first.cached_tokens


def test_a_table_for_people(trace: Path, replay: Replay) -> None:
    with FakeEngine().serving() as url:
        answer = replay(trace, "--against", url, "--speed", "4", "--lag-max", "10s")
    assert answer.code == 0, answer.err
    for words in ("TTFT p50/p90/p99/max", "send lag", "of which cached", "open loop"):
        assert words in answer.out
    assert answer.err == ""


def test_a_node_with_real_bytes(trace: Path, node: LocalNode, replay: Replay) -> None:
    address = f"unix:{node.path}"
    answer = replay(
        *(trace, "--node", address, "--block-bytes", "64KiB", "--json"),
        *("--as-fast-as-possible", "--clients", "2"),
    )
    assert answer.code == 0, answer.err
    result = told(answer)
    assert result["kind"] == "keepwarm.workload.replay.node"
    assert (result["loop"], result["requests"]) == ("closed", 60)
    assert result["wrong_bytes"] == 0
    assert result["agrees"] is True
    shown = replay(trace, "--node", address, "--speed", "4", "--lag-max", "10s")
    assert "node and clients agree" in shown.out, shown.err


def test_nothing_answered_fails(trace: Path, replay: Replay) -> None:
    with FakeEngine(faults=EngineFaults(status=503)).serving() as url:
        answer = replay(trace, "--against", url, "--json", "--limit", "5", "--lag-max", "10s")
    assert answer.code == 1
    assert "no request was answered" in answer.err
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
def test_what_cannot_be_is_said(
    trace: Path, replay: Replay, arguments: list[str], code: int, words: str
) -> None:
    answer = replay(trace, *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_a_result_that_cannot_be_written_is_not_lost(trace: Path, replay: Replay) -> None:
    engine = FakeEngine()
    with engine.serving() as url:
        flags = (trace, "--against", url, "--json", "--limit", "5", "--lag-max", "10s", "--out")
        refused = replay(*flags, "/nowhere/at/all.json")
        assert (refused.code, refused.out, engine.requests) == (2, "", 0)
        full = replay(*flags, "/dev/full")
    assert full.code == 1
    assert "No space left" in full.err
    assert told(full)["targets"][0]["completed"] == 5


def test_prompts_that_cannot_be_are_left_out(folder: Path, replay: Replay) -> None:
    trace = written(folder, [(0, [1]), (10, [2])])
    trace.write_text(
        trace.read_text().replace('"input_length": 513', '"input_length": 4000000000', 1)
    )
    with FakeEngine().serving() as url:
        result = told(replay(trace, "--against", url, "--json", "--lag-max", "10s"))
    assert (result["requests_unsuited"], result["targets"][0]["completed"]) == (1, 1)


def test_a_second_ctrl_c_is_the_systems() -> None:
    """The first stops the replay at its next step, which may wait for a log's next line."""
    before = signal.getsignal(signal.SIGINT)

    async def main() -> None:
        stop = asyncio.Event()
        with stopping(stop):
            signal.raise_signal(signal.SIGINT)
            await asyncio.wait_for(stop.wait(), 10.0)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL

    asyncio.run(main())
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_gives_what_there_is(folder: Path) -> None:
    trace = written(folder, [(at * 10, [at]) for at in range(10_000)])
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


def test_a_text_log_as_it_was(folder: Path, replay: Replay) -> None:
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
    assert answer.code == 0, answer.err
    result = told(answer)
    target = result["targets"][0]
    assert (target["completed"], target["tokens"]["output"]) == (8, 16)
    assert target["tokens"]["cached"] > 0
    assert result["prompts"]["from"] == "logged text"
    assert "hello" not in answer.out
    refused = replay(written(folder, [(0, [1])]), "--against", "http://x", "--send", "text")
    assert refused.code == 2
    assert "without text" in refused.err
