"""Endpoints that fail in every way there is: counted by kind, never a hang, never in silence."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from keepwarm.errors import ArgumentError
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.testing import virtual_time
from keepwarm.testing.fake_engine import EngineFaults, FakeEngine
from keepwarm.workload.replay import (
    Limits,
    Pace,
    Plan,
    Sending,
    TextBodies,
    of_log,
    parse_targets,
    replay,
    sending,
)
from keepwarm.workload.replay.tally import Kept, Sample
from replays import ListSource, Row, plan, replayed, steady

SENDING = Sending(timeout_s=30.0, in_flight_max=8)
CASES = {
    "http 500": EngineFaults(status=500),
    "http 429": EngineFaults(status=429),
    "http 302": EngineFaults(status=302),
    "timeout": EngineFaults(silent=True),
    "cut": EngineFaults(cut_after=2),
    "malformed": EngineFaults(garbage=True),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_failure_is_counted_by_its_kind(folder: Path, kind: str) -> None:
    engine = FakeEngine(token_s=0.01, faults=CASES[kind])
    engine.faults.every = 2
    rows = [Row(at * 20.0, [at + 1], output=4) for at in range(10)]
    result = replayed(folder, ListSource(lambda: iter(rows)), {"a": engine}, sending=SENDING)
    told = result["targets"][0]
    assert told["failures"] == {kind: 5}
    assert told["first_failures"] == {kind: 1}
    assert (told["completed"], told["requests"]) == (5, 10)
    assert told["total_s"]["count"] == 5
    # A first token that came before the end was cut off did come.
    assert told["ttft_s"]["count"] == (10 if kind == "cut" else 5)
    assert (told["ttft_of_all_s"]["p90"] is None) == (kind != "cut")
    assert any("5 of 10 requests failed" in note for note in result["notes"])
    assert result["problems"] == []


def test_nobody_listens(folder: Path) -> None:
    async def main() -> dict[str, Any]:
        targets = [f"gone=unix:{folder}/none.sock"]
        return await replay(plan(steady(3, 1.0), targets, sending=SENDING))

    result = virtual_time.run(main())
    assert result["targets"][0]["failures"] == {"connect": 3}
    assert result["problems"] == ["gone: no request was answered"]


def test_a_connection_that_is_taken_and_closed_is_cut(folder: Path) -> None:
    async def main() -> dict[str, Any]:
        def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        path = f"{folder}/rude.sock"
        async with await asyncio.start_unix_server(close, path):
            return await replay(plan(steady(3, 1.0), [f"rude=unix:{path}"], sending=SENDING))

    assert virtual_time.run(main())["targets"][0]["failures"] == {"cut": 3}


def test_a_port_without_anybody_is_no_hang_in_real_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening: refused
        port = taken.getsockname()[1]
        made = plan(steady(3, 0.01), [f"http://127.0.0.1:{port}"], sending=SENDING)
        result = asyncio.run(replay(made))
    assert result["targets"][0]["failures"] == {"connect": 3}


def test_too_many_under_way_are_not_sent_and_nobody_waits(folder: Path) -> None:
    engine = FakeEngine(start_s=1e6, prefills_at_once=10**6)
    result = replayed(folder, steady(20, 1.0), {"a": engine}, sending=SENDING)
    told = result["targets"][0]
    # Eight are under way until each has timed out after 30 s: none of the later ones is sent.
    assert told["failures"] == {"not sent": 12, "timeout": 8}
    assert (told["sent"], told["requests"], told["in_flight_max"]) == (8, 20, 8)
    assert told["seconds"] == pytest.approx(7 + 30)
    assert engine.requests == 8
    assert engine.under_way == 0


def test_an_interruption_gives_what_there_is_and_says_so(folder: Path) -> None:
    engine = FakeEngine(start_s=10.0, prefills_at_once=10**6)

    def during(stop: asyncio.Event) -> None:
        asyncio.get_running_loop().call_later(35.2, stop.set)

    result = replayed(folder, steady(100, 1.0), {"a": engine, "b": FakeEngine()}, during=during)
    assert result["interrupted"] is True
    assert "interrupted: only the requests up to then are counted" in result["notes"]
    slow, quick = result["targets"]
    assert (slow["requests"], slow["completed"]) == (36, 26)
    assert slow["failures"] == {"cancelled": 10}
    assert quick["completed"] == 36
    assert engine.under_way == 0


def test_memory_does_not_grow_with_the_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(*asked: Any) -> None:
        answer = asked[3]
        answer.first_s = answer.ended_s = asyncio.get_running_loop().time()

    monkeypatch.setattr(sending, "ask", answered)

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            trace = steady(count, 0.001, blocks=16)
            told = replayed(folder, trace, {"a": FakeEngine()})["targets"][0]
            assert told["completed"] == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    short, long = peak(300), peak(1200)
    # Each request more may leave its 300 bytes in the sample, whose own bound is below; its body
    # alone would be 1,500.
    assert long - short < 900 * 500


def test_the_sample_is_bounded() -> None:
    sample = Sample(most=100)
    for number in range(100_000):
        sample.add(number, Kept(0, 1.0, 1.0, None))
        assert len(sample.kept) <= 100


def logged(number: int, family: Family, time_s: float | None, **body: Any) -> LoggedRequest:
    return LoggedRequest(f"log:{number}", family, body, time_s, session="s")


def test_a_text_log_is_sent_as_it_was(folder: Path) -> None:
    said = {"role": "user", "content": "the same words each time " * 20}
    chat: dict[str, Any] = {"messages": [said], "model": "other", "max_tokens": 3, "top_k": 5}
    log = [
        logged(1, Family.OPENAI_CHAT, 1000.0, **chat, temperature=0),
        logged(2, Family.OPENAI_CHAT, 1007.0, **chat),
        logged(3, Family.OPENAI_COMPLETIONS, 1005.0, prompt="words", model="other", max_tokens=9),
        logged(4, Family.ANTHROPIC, 1008.0, messages=[said]),
    ]
    engines = [FakeEngine(token_s=0.5), FakeEngine(answers="differently")]

    async def main() -> dict[str, Any]:
        paths = [f"{folder}/{at}.sock" for at in range(2)]
        async with engines[0].listening(paths[0]) as one, engines[1].listening(paths[1]) as other:
            return await replay(
                Plan(
                    arrivals=lambda: of_log(iter(log), Pace()),
                    bodies=TextBodies("fake", Limits(output_tokens=4)),
                    targets=parse_targets([f"a={one}", f"b={other}"]),
                )
            )

    result = virtual_time.run(main())
    told = result["targets"][0]
    assert told["completed"] == 3
    assert told["tokens"]["output"] == 3 + 3 + 4
    assert told["tokens"]["cached"] > 0
    assert result["requests_unsuited"] == 1
    arrived = [at - engines[0].arrivals[0] for at in engines[0].arrivals]
    assert arrived == pytest.approx([0.0, 7.0, 7.0])  # a clock that ran back stands still
    # Only what was asked for at temperature 0 is compared.
    assert result["comparisons"][0]["answers"]["compared"] == 1
    assert result["comparisons"][0]["answers"]["different"] == 1
    assert "words" not in json.dumps(result)


def test_a_log_without_times_is_refused() -> None:
    log = [logged(1, Family.OPENAI_CHAT, None, messages=[])]
    with pytest.raises(ArgumentError, match="log:1 has no time"):
        list(of_log(log, Pace()))
