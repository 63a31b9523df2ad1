"""The open loop under a virtual clock: real HTTP over Unix sockets, latencies known in advance."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from keepwarm.testing.fake_engine import FakeEngine
from keepwarm.testing.virtual_time import VirtualTimeLoop
from keepwarm.workload.replay import Pace
from keepwarm.workload.replay.histograms import Latencies
from replays import Row, replayed, source, steady

EVERY_S = 0.01
STALL_FROM_S, STALL_S = 2.0, 1.0


def rank(values: list[float], share: float) -> float:
    return sorted(values)[max(math.ceil(share * len(values) - 1e-9), 1) - 1]


def test_a_stall_shows_in_every_request_that_arrived_during_it(folder: Path) -> None:
    """1,000 requests, 10 ms apart, 1 ms each, and one second in which nothing is answered."""
    engine = FakeEngine(start_s=0.001, prefill_tokens_per_s=1e12, prefills_at_once=10**6)

    def stall(_: asyncio.Event) -> None:
        # The first request is due 50 ms after the replay begins.
        loop = asyncio.get_running_loop()
        loop.call_at(0.05 + STALL_FROM_S - 0.0001, engine.stall, STALL_S)

    result = replayed(folder, steady(1000, EVERY_S), {"a": engine}, during=stall)
    end_s = STALL_FROM_S - 0.0001 + STALL_S
    expected = []
    for at in range(1000):
        due_s = at * EVERY_S
        held_s = end_s - due_s if STALL_FROM_S <= due_s < end_s else 0.0
        expected.append(held_s + 0.001)
    ttft = result["targets"][0]["ttft_s"]
    assert ttft["count"] == 1000
    for name, share in {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}.items():
        assert ttft[name] == pytest.approx(rank(expected, share), rel=0.002, abs=2e-6)
    assert ttft["p99"] > 0.9
    assert ttft["mean"] == pytest.approx(sum(expected) / 1000, rel=1e-6)
    assert ttft["max"] == pytest.approx(max(expected), rel=1e-6)
    # A client that waits for each answer would have told of one slow request in a thousand.
    assert result["targets"][0]["in_flight_max"] == 101
    assert result["targets"][0]["send_lag_s"]["max"] < 1e-6
    assert result["problems"] == []


def test_arrivals_are_the_traces(folder: Path) -> None:
    times = [0.0, 0.0, 0.25, 1.5, 1.5, 1.5, 4.0, 60.0, 3600.0]
    engine = FakeEngine(token_s=5.0)  # answers take longer than most pauses
    rows = [Row(at, [number + 1], output=3) for number, at in enumerate(times)]
    result = replayed(folder, source(rows), {"a": engine}, pace=Pace(speed=2.0))
    arrived = [at - engine.arrivals[0] for at in engine.arrivals]
    assert arrived == pytest.approx([at / 2 for at in times], abs=1e-9)
    told = result["targets"][0]
    assert (told["requests"], told["completed"]) == (9, 9)
    assert told["gap_s"]["count"] == 18
    assert told["gap_s"]["p50"] == pytest.approx(5.0, rel=0.001)
    assert told["send_lag_s"]["max"] == 0.0


def test_how_much_is_replayed(folder: Path) -> None:
    def arrivals(pace: Pace) -> tuple[int, dict[str, int]]:
        engine = FakeEngine()
        told = replayed(folder, steady(100, 1.0), {"a": engine}, pace=pace)["targets"][0]
        return engine.requests, {k: told[k] for k in ("requests", "warm_up_requests")}

    assert arrivals(Pace(limit=7)) == (7, {"requests": 7, "warm_up_requests": 0})
    assert arrivals(Pace(duration_s=7.0)) == (7, {"requests": 7, "warm_up_requests": 0})
    assert arrivals(Pace(speed=10, duration_s=7.0))[0] == 70
    assert arrivals(Pace(limit=20, count_from_s=5.0)) == (
        20,
        {"requests": 15, "warm_up_requests": 5},
    )


def test_equal_ids_hit_and_what_is_cached_is_summed(folder: Path) -> None:
    engine = FakeEngine()
    rows = [
        Row(0.0, [1, 2, 3]),
        Row(1.0, [1, 2, 3, 4], session=5),
        Row(2.0, [1, 2, 9]),
        Row(3.0, [1, 2], tokens=4 * 16),  # nothing is known of its last two blocks
        Row(4.0, [1, 2], tokens=4 * 16),  # nor that they are the same
        Row(5.0, [1, 2, 3], tokens=40),  # its last block is partial
    ]
    result = replayed(folder, source(rows), {"a": engine})
    told = result["targets"][0]["tokens"]
    assert told["prompt"] == 48 + 64 + 48 + 64 + 64 + 40 == engine.prompt_tokens
    assert told["cached"] == 0 + 48 + 32 + 32 + 32 + 32 == engine.cached_tokens
    assert told["cached_share"] == told["cached"] / told["prompt"]


def test_a_replica_that_tells_no_cached_tokens_is_named(folder: Path) -> None:
    result = replayed(folder, steady(3, 1.0), {"a": FakeEngine(tells_cached=False)})
    assert result["targets"][0]["tokens"]["cached_share"] is None
    assert any("did not tell cached tokens" in note for note in result["notes"])


def test_a_sender_that_falls_behind_fails(folder: Path) -> None:
    def during(_: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        # The whole process stands still for a second, the third and fourth request's time in it.
        loop.call_later(0.2, loop.advance, 1.0)

    result = replayed(folder, steady(5, 0.1), {"a": FakeEngine()}, during=during)
    assert any("fell behind" in problem for problem in result["problems"])
    told = result["targets"][0]
    assert told["send_lag_s"]["max"] == pytest.approx(0.95)
    # What was late counts from when it should have been sent.
    assert told["ttft_s"]["max"] == pytest.approx(0.95, abs=0.01)


def test_histograms_merge_and_count_what_never_came() -> None:
    one, other, both = Latencies(), Latencies(), Latencies()
    for at in range(1, 1001):
        (one if at % 3 else other).record(at / 1000)
        both.record(at / 1000)
    merged = Latencies()
    merged.add(one.plain())
    merged.add(other.plain())
    assert merged.plain() == both.plain() | {"mean": pytest.approx(0.5005)}
    assert both.at(0.5, missing=1000) == both.at(1.0)
    assert both.at(0.51, missing=1000) is None
    assert Latencies().at(0.5) is None
    for share in (0.1, 0.5, 0.9, 0.99, 1.0):
        assert both.at(share) == pytest.approx(share, rel=0.002)
