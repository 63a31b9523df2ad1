"""Restore or recompute: against worlds whose speeds are known, on a virtual clock."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from keepwarm.planner import (
    COLD_SAMPLES,
    PLANS_MAX,
    RUNS_MAX,
    STALE_S,
    Planner,
    _runs,
)
from keepwarm.prefill import Prefill
from keepwarm.testing import ManualClock
from planner_model import BLOCK_TOKENS, ROW_BYTES, Engine, Outcome, World

MIB = 1 << 20


def measured(rate: float, token_s: float = 1e-3, clock: ManualClock | None = None) -> Planner:
    """A planner that knows dram at this rate, and a constant time a token."""
    planner = Planner(clock=(clock or ManualClock()).now_s)
    for _ in range(COLD_SAMPLES):
        planner.prefill_step(0, 1024, 1024 * token_s)
        planner.restored("dram", 8 * MIB, 8 * MIB / rate)
    return planner


def phase(engine: Engine, requests: int, tiers: str = "dram") -> list[Outcome]:
    rng = engine.world.rng
    return [
        engine.serve([tiers] * rng.randrange(16, 400), rng.randrange(64, 1024))
        for _ in range(requests)
    ]


def regret(outcomes: list[Outcome]) -> float:
    return sum(each.took_s - each.best_s for each in outcomes)


@pytest.mark.parametrize("seed", range(12))
def test_it_stops_when_restoring_loses_and_resumes_when_it_wins(seed: int) -> None:
    world = World(seed)
    engine = Engine(world)
    engine.connect()
    fast = phase(engine, 150)
    assert sum(each.blocks == each.hits for each in fast) >= 149
    assert regret(fast) <= 0.001 * sum(each.prefill_s for each in fast)

    world.bytes_per_s["dram"] /= 100
    slow = phase(engine, 300)
    tried = [number for number, each in enumerate(slow) if each.blocks]
    assert len(tried) <= 10, f"seed {seed}: restored {tried}"
    took, line = sum(each.took_s for each in slow), sum(each.recompute_s for each in slow)
    assert took <= 1.01 * line, f"seed {seed}: {took / line:.3f} of the recompute line"
    stopped_s = engine.clock.now_s()
    assert engine.probes_s <= 0.01 * stopped_s + 0.1

    world.bytes_per_s["dram"] *= 100
    again = phase(engine, 150)
    first = next(number for number, each in enumerate(again) if each.blocks)
    assert first <= 6, f"seed {seed}: resumed at request {first}"
    assert sum(each.blocks == each.hits for each in again[first:]) >= 0.97 * len(again[first:])

    everything = fast + slow + again
    prefill_s = sum(each.prefill_s for each in everything)
    assert regret(everything) <= 0.02 * prefill_s, f"seed {seed}"
    assert engine.planner.regret_s <= 0.02 * engine.planner.prefill_s
    assert math.isclose(engine.planner.prefill_s, prefill_s, rel_tol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_is_somewhat_faster_is_used(seed: int) -> None:
    """Restoring takes two thirds of recomputing: near the line, and on the right side of it."""
    world = World(seed, bytes_per_s={"dram": 8e7})
    engine = Engine(world)
    engine.connect()
    phase(engine, 40)
    outcomes = phase(engine, 200)
    assert sum(each.blocks == each.hits for each in outcomes) >= 190, f"seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_changes_its_speed_for_ever(seed: int) -> None:
    """Every 65 requests or so another speed, up to 4,000 times another one.

    What restores cost is bounded by what the planner decides. Hits that it does not take before a
    probe has told it that the store is fast again are more the more often the world changes: no
    rule with probes of 1 % of the time knows sooner.
    """
    world = World(seed)
    engine = Engine(world)
    engine.connect()
    outcomes: list[Outcome] = []
    for _ in range(20):
        world.bytes_per_s["dram"] = world.rng.choice([4e9, 4e8, 8e7, 4e7, 1e7, 1e6])
        outcomes += phase(engine, world.rng.randrange(10, 120))
    prefill_s = sum(each.prefill_s for each in outcomes)
    lost_s = sum(max(0.0, each.took_s - each.recompute_s) for each in outcomes)
    assert lost_s <= 0.015 * prefill_s, f"seed {seed}: slower than computing by {lost_s:.1f} s"
    assert regret(outcomes) <= 0.03 * prefill_s, f"seed {seed}"
    assert engine.probes_s <= 0.011 * engine.clock.now_s() + 0.1


@pytest.mark.parametrize("seed", range(6))
def test_only_the_tier_that_pays_is_restored(seed: int) -> None:
    """The prefix's head is in memory, its tail on a flash that is slower than computing."""
    world = World(seed, bytes_per_s={"dram": 4e9, "flash": 3e7})
    engine = Engine(world)
    engine.connect()
    phase(engine, 20)
    phase(engine, 20, "flash")
    outcomes = [engine.serve(["dram"] * 50 + ["flash"] * 50, 100) for _ in range(30)]
    assert {each.blocks for each in outcomes} == {50}
    # Flash was slow because the way to the node was: probes by the other tier tell.
    assert engine.serve(["flash"] * 100, 100).blocks == 0


def test_what_was_slow_by_the_way_is_tried_again_when_the_way_is_well() -> None:
    world = World(5)
    engine = Engine(world)
    engine.connect()
    phase(engine, 100)
    phase(engine, 100, "flash")
    world.bytes_per_s = {tier: rate / 200 for tier, rate in world.bytes_per_s.items()}
    phase(engine, 60, "flash")
    world.bytes_per_s = {tier: rate * 200 for tier, rate in world.bytes_per_s.items()}
    outcomes = phase(engine, 150, "flash")
    assert sum(each.blocks == each.hits for each in outcomes[-50:]) >= 45


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_the_best_of_all_numbers_of_blocks(seed: int) -> None:
    rng = random.Random(seed)
    planner = Planner(clock=ManualClock().now_s)
    for _ in range(30):
        first, tokens = rng.randrange(0, 8192), rng.randrange(1, 2048)
        seconds = 1e-3 * tokens + 5e-7 * tokens * (first + tokens / 2)
        planner.prefill_step(first, tokens, seconds)
    for tier, rate in (("dram", 2e8), ("flash", 3e7)):
        for _ in range(10):
            planner.restored(tier, 8 * MIB, 8 * MIB / (rate * rng.uniform(0.5, 2)))
    tiers = [rng.choice(["dram", "flash"])] * rng.randrange(1, 40)
    tiers += [rng.choice(["dram", "flash"])] * rng.randrange(0, 40)
    first = rng.randrange(0, 4096)
    plan = planner.plan("r", first, tiers, BLOCK_TOKENS, ROW_BYTES)

    def cost_s(blocks: int) -> float:
        whole, kept = len(tiers) * BLOCK_TOKENS, blocks * BLOCK_TOKENS
        rest_s = planner.prefill.seconds(first, whole) - planner.prefill.seconds(first, kept)
        bytes_s = sum(
            planner._paces[tier].seconds(count * ROW_BYTES)
            for tier in ("dram", "flash")
            if (count := tiers[:blocks].count(tier))
        )
        return bytes_s + rest_s

    best_s = min(map(cost_s, range(len(tiers) + 1)))
    # A tier's seconds a byte differ a little with the size of the whole: hence not exactly.
    assert cost_s(plan.blocks) <= 1.02 * best_s


def test_nothing_known_restores_and_modes_decide_alone() -> None:
    tiers = ["dram"] * 4
    for mode, blocks, why in (
        ("measured", 4, "unmeasured"),
        ("always", 4, "always"),
        ("off", 0, "off"),
    ):
        planner = Planner(mode=mode)  # type: ignore[arg-type]
        plan = planner.plan("a", 0, tiers, 16, MIB)
        assert (plan.blocks, plan.why) == (blocks, why)
        assert planner.regret_s == 0
    assert Planner().plan("a", 0, [], 16, MIB).why == "nothing"


def test_cold_it_restores_only_what_clearly_pays() -> None:
    planner = Planner(clock=ManualClock().now_s)
    planner.prefill_step(0, 1024, 1.0)
    for _ in range(3):
        planner.restored("dram", 8 * MIB, 0.008)
    tiers = ["dram"] * 64
    # 64 MiB in 64 ms, doubt included 0.11 s: twice that is still far less than a second.
    assert planner.plan("a", 0, tiers, 16, MIB).blocks == 64
    # The same bytes for 192 tokens, 0.19 s: faster by the mean, and not surely.
    slow = planner.plan("b", 0, tiers, 3, MIB)
    assert (slow.blocks, slow.why) == (0, "cold")
    assert planner.stopped
    for _ in range(COLD_SAMPLES):
        planner.prefill_step(0, 1024, 1.0)
        planner.restored("dram", 8 * MIB, 0.008)
    assert planner.plan("c", 0, tiers, 3, MIB).blocks == 64
    assert not planner.stopped


def test_a_hint_stands_in_for_a_tier_that_was_never_measured() -> None:
    planner = measured(1e9)
    tiers = ["flash"] * 8
    assert planner.plan("a", 0, tiers, 128, MIB).why == "unmeasured"
    assert planner.plan("b", 0, tiers, 128, MIB, hint_s=0.01).blocks == 8
    assert planner.plan("c", 0, tiers, 128, MIB, hint_s=10.0).blocks == 0


def test_old_measurements_are_little_ones() -> None:
    clock = ManualClock()
    planner = measured(1e8, clock=clock)
    tiers = ["dram"] * 8  # 84 ms, for 128 tokens that take 128 ms
    assert planner.plan("a", 0, tiers, 16, MIB).blocks == 8
    clock.advance(STALE_S + 1)
    assert planner.plan("b", 0, tiers, 16, MIB).why == "cold"


def test_a_restore_that_brings_nothing_is_a_lesson() -> None:
    planner = measured(1e9)
    tiers, lost = ["dram"] * 64, 0
    for number in range(20):
        plan = planner.plan(number, 0, tiers, 16, MIB)
        if not plan.blocks:
            break
        lost += 1
        planner.outcome(number, 0, 0.5)
    assert lost <= 3
    assert planner.figures()["lost_blocks"] == 64 * lost
    # It lost half a second each time, and nothing that it had not decided.
    assert math.isclose(planner.regret_s, 0.5 * lost, rel_tol=0.01)


def test_outcomes_are_written_down_once() -> None:
    planner = measured(1e9)
    plan = planner.plan("a", 0, ["dram"] * 8, 128, MIB)
    planner.outcome("a", 8, 0.02)
    planner.outcome("a", 8, 0.02)
    planner.outcome("unknown", 8, 0.02)
    figures = planner.figures()
    assert figures["restore_seconds"] == 0.02
    assert figures["restored_blocks"] == 8
    assert figures["predicted_restore_seconds"] == plan.predicted_restore_s
    assert figures["predicted_recompute_seconds"] == plan.predicted_recompute_s
    assert figures["decisions/faster"] == 1
    assert figures["regret_seconds"] == 0
    rate = planner.rate("dram", 8 * MIB)
    assert rate is not None
    assert math.isclose(rate, 1e9, rel_tol=0.01)
    assert planner.rate("flash", MIB) is None


def test_what_never_comes_back_is_bounded_and_nonsense_is_ignored() -> None:
    planner = measured(1e9)
    for number in range(PLANS_MAX + 100):
        planner.plan(number, 0, ["dram"], 16, 4096)
    assert len(planner._pending) == PLANS_MAX
    planner.forget(PLANS_MAX)
    assert len(planner._pending) == PLANS_MAX - 1
    before = planner.figures()
    for seconds in (float("nan"), float("inf"), -1.0):
        planner.prefill_step(0, 16, seconds)
        planner.restored("dram", 16, seconds)
        planner.outcome(200, 1, seconds)
    planner.prefill_step(0, 0, 1.0)
    planner.restored("dram", 0, 1.0)
    assert planner.figures() == before


@pytest.mark.parametrize("seed", range(10))
def test_prefill_is_fitted_as_a_function_of_position(seed: int) -> None:
    rng, fit = random.Random(seed), Prefill()
    token_s, position_s = rng.uniform(1e-5, 1e-3), rng.uniform(1e-9, 1e-7)

    def true_s(first: int, tokens: int) -> float:
        return token_s * tokens + position_s * tokens * (first + tokens / 2)

    for _ in range(60):
        first, tokens = rng.randrange(0, 16_384), rng.randrange(16, 2049)
        fit.add(first, tokens, true_s(first, tokens) * rng.uniform(0.9, 1.1))
    for first, tokens in ((0, 2048), (8192, 2048), (0, 16_384)):
        assert math.isclose(fit.seconds(first, tokens), true_s(first, tokens), rel_tol=0.15)
    assert fit.a >= 0
    assert fit.b >= 0


def test_one_stalled_step_is_no_new_speed() -> None:
    fit = Prefill()
    for _ in range(20):
        fit.add(0, 1024, 0.1)
    fit.add(0, 1024, 5.0)
    assert fit.seconds(0, 1024) < 0.2


def test_runs_of_tiers_are_bounded() -> None:
    rng = random.Random(7)
    for _ in range(50):
        tiers = [rng.choice("abc") for _ in range(rng.randrange(1, 200))]
        runs = _runs(tiers)
        assert len(runs) <= RUNS_MAX
        assert sum(run.blocks for run in runs) == runs[-1].end == len(tiers)
        for before, run in pairwise(runs):
            assert run.end == before.end + run.blocks
    assert [run.end for run in _runs(["a"] * 5 + ["b"] * 3)] == [5, 8]
