"""Several targets: pairing, intervals, order, routers, answers that differ."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.testing.fake_engine import FakeEngine
from keepwarm.workload.replay import Order, Pace, Router, parse_headers, parse_targets
from keepwarm.workload.replay.compare import Ratios
from keepwarm.workload.replay.schedule import Arrival
from keepwarm.workload.replay.tally import Kept, Sample
from keepwarm.workload.simulate import Level, Settings, simulate
from replays import BLOCK, Row, replayed, source, steady

SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))


@pytest.mark.parametrize("order", list(Order))
def test_a_planted_doubling_is_found(folder: Path, order: Order) -> None:
    random = np.random.default_rng(SEED)
    rows = [
        Row(at * 1.0, range(at * 100 + 1, at * 100 + int(random.integers(5, 60))), session=at + 1)
        for at in range(200)
    ]
    slow = FakeEngine(prefill_tokens_per_s=1000.0)
    fast = FakeEngine(prefill_tokens_per_s=2000.0)
    result = replayed(folder, source(rows), {"slow": slow, "fast": fast}, order=order)
    (found,) = result["comparisons"]
    assert (found["first"], found["second"], found["requests_paired"]) == ("slow", "fast", 200)
    ratio = found["ttft_ratio"]
    low, high = ratio["mean_interval"]
    assert low <= 0.5 <= high or ratio["mean"] == pytest.approx(0.5, rel=1e-3)
    assert ratio["median"] == pytest.approx(0.5, rel=1e-3)
    assert ratio["second_longer"] == 0.0
    assert found["answers"] == {"compared": 200, "different": 0, "first_different": []}
    assert found["differences"]["ttft_p50_s"] < 0
    # Both got the same requests at the same times.
    starts = [[at - engine.arrivals[0] for at in engine.arrivals] for engine in (slow, fast)]
    assert starts[0] == pytest.approx(starts[1], abs=1e-6)
    assert slow.prompt_tokens == fast.prompt_tokens
    apart = fast.arrivals[0] - slow.arrivals[0]
    assert apart == pytest.approx(0.0) if order is Order.INTERLEAVED else apart > 199.0


def test_noise_without_a_difference_is_told_as_none() -> None:
    random = np.random.default_rng(SEED)
    covered = 0
    for _ in range(20):
        # Ten requests a session, alike within it: each session's noise is one draw.
        pairs = []
        for session in range(1, 61):
            shared = random.normal(0.0, 0.3)
            for _ in range(10):
                own = random.normal(0.0, 0.05)
                pairs.append((session, 1.0, float(np.exp(shared + own))))
        told = Ratios.of(pairs).plain(seed=SEED)
        assert (told["drawn_by"], told["draws_of"]) == ("session", 60)
        low, high = told["mean_interval"]
        covered += low <= 1.0 <= high
    assert covered >= 16  # 95 % is meant; drawing single requests covers 10 of 20


def test_answers_that_differ_are_counted_and_named_by_number(folder: Path) -> None:
    engines = {"a": FakeEngine(), "b": FakeEngine(answers="another model")}
    result = replayed(folder, steady(20, 1.0), engines)
    answers = result["comparisons"][0]["answers"]
    assert answers == {"compared": 20, "different": 20, "first_different": list(range(10))}


def test_warm_up_is_paired_nowhere(folder: Path) -> None:
    engines = {"a": FakeEngine(), "b": FakeEngine()}
    result = replayed(folder, steady(20, 1.0), engines, pace=Pace(count_from_s=15.0))
    assert result["comparisons"][0]["requests_paired"] == 5


def test_a_failed_request_is_no_pair_of_durations(folder: Path) -> None:
    failing = FakeEngine()
    failing.faults.status, failing.faults.every = 500, 4
    result = replayed(folder, steady(20, 1.0), {"a": FakeEngine(), "b": failing})
    (found,) = result["comparisons"]
    assert (found["ttft_ratio"]["pairs"], found["differences"]["failures"]) == (15, 5)


@pytest.mark.parametrize(
    ("router", "cached"),
    [(Router.STICKY, True), (Router.PREFIX_HASH, True), (Router.ROUND_ROBIN, False)],
)
def test_routers_keep_what_they_should_together(folder: Path, router: Router, cached: bool) -> None:
    # 31 sessions of 4 requests, each with its own prefix, never at the same replica by turns.
    rows = [
        Row(turn * 100.0 + session, range(session * 100, session * 100 + 5), session=session)
        for turn in range(4)
        for session in range(1, 32)
    ]
    engines = {"a": FakeEngine(), "a#1": FakeEngine(), "a#2": FakeEngine()}
    result = replayed(folder, source(rows), engines, router=router)
    (told,) = result["targets"]
    assert told["router"] == str(router)
    assert [each["sent"] for each in told["replicas"]] == [e.requests for e in engines.values()]
    assert all(each["sent"] >= 16 for each in told["replicas"])
    whole = 3 * 31 * 4 * 16
    assert (told["tokens"]["cached"] == whole) is cached


@pytest.mark.parametrize("router", list(Router))
def test_replicas_hit_what_the_simulation_says(folder: Path, router: Router) -> None:
    """Requests routed to engines with caches of their own, against the simulator's fleet."""
    random = np.random.default_rng(SEED)
    rows = []
    for at in range(300):
        session = int(random.integers(0, 25))  # 0: not known, and goes round
        blocks = int(random.integers(16, 40))
        ids = [session % 5 + 1, *range(session * 100 + 10, session * 100 + 10 + blocks)]
        # A token more than its blocks: an engine computes the last one in any case.
        rows.append(Row(at * 10.0, ids, len(ids) * BLOCK + 1, session=session))
    trace = source(rows)
    level = Level(tier="device", capacity_blocks=300, policy="lru")
    said = simulate(trace, Settings(levels=(level,), replicas=3, router=router.value))
    engines = {
        f"a#{at}": FakeEngine(block_tokens=BLOCK, capacity_blocks=300, prefill_tokens_per_s=1e9)
        for at in range(3)
    }
    told = replayed(folder, trace, engines, router=router)["targets"][0]
    assert told["completed"] == 300
    assert [each["sent"] for each in told["replicas"]] == np.bincount(said.replica).tolist()
    hits = said.hit_tokens.sum(axis=0)
    for at, each in enumerate(told["replicas"]):
        assert each["cached_tokens"] == hits[said.replica == at].sum() > 0


def test_a_sample_is_the_same_whoever_draws_it() -> None:
    one, other = Sample(most=64), Sample(most=64)
    for number in range(10_000):
        kept = Kept(number, 1.0, 1.0, None)
        one.add(number, kept)
        if number % 3:  # of the other a third has failed to come at all
            other.add(number, kept)
    assert 16 <= len(one.kept) <= 64
    common = one.common(other)
    assert [at for at, _, _ in common] == sorted(
        at for at in one.kept if at % 3 and at in other.kept
    )
    assert len(common) >= 8


def test_targets_and_headers_are_read() -> None:
    two = parse_targets(["a=http://x:1,http://y:2/v1/", "b=unix:/run/v.sock", "a=https://z"])
    assert [(t.name, [r.shown for r in t.replicas]) for t in two] == [
        ("a", ["http://x:1", "http://y:2", "https://z"]),
        ("b", ["unix:/run/v.sock"]),
    ]
    assert parse_targets(["http://x:1/?a=b"])[0].name == "target"
    assert parse_headers(["X-A=b=c"], "key") == {"X-A": "b=c", "Authorization": "Bearer key"}
    for wrong in ("a=ftp://x", "a=http://", "a=unix:run", "a b=http://x", "a=http://x:99999999"):
        with pytest.raises(ArgumentError):
            parse_targets([wrong])
    with pytest.raises(ArgumentError) as secret:
        parse_targets(["a=http://me:hunter2@x"])
    assert "hunter2" not in str(secret.value)
    with pytest.raises(ArgumentError) as secret:
        parse_headers(["X-Key: hunter2"])
    with pytest.raises(ArgumentError) as secret:
        parse_headers(["X-Key=hun\nter2"])
    assert "ter2" not in str(secret.value)


def test_every_replica_gets_its_share() -> None:
    (target,) = parse_targets([f"a={','.join(f'http://h{at}' for at in range(8))}"], Router.STICKY)
    counts = [0] * 8
    for session in range(1, 8001):
        chosen = target.choose(Arrival(0, 0.0, True, session, 0))
        assert chosen is not None
        counts[chosen] += 1
    assert min(counts) > 850
    assert max(counts) < 1150
