"""What a planner does with little: tiers that no probe reaches, short prompts, a fresh engine."""

from __future__ import annotations

import math
import random

import pytest
from keepwarm.planner import REGRET_FREE_S, STALE_S, Planner
from keepwarm.prefill import Prefill
from keepwarm.testing import ManualClock
from planner_model import BLOCK_TOKENS, ROW_BYTES, Engine, World

BLOCKS = 200


def with_flash(seed: int, share: float) -> Engine:
    """An engine that knows its own speed; restoring from flash takes this share of computing."""
    world = World(seed)
    engine = Engine(world)
    engine.connect()
    for _ in range(20):
        engine.serve([], world.rng.randrange(500, 4000))
    compute_s = world.prefill_s(0, BLOCKS * BLOCK_TOKENS)
    world.bytes_per_s["flash"] = BLOCKS * ROW_BYTES / (share * compute_s)
    return engine


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("seed", range(4))
def test_a_tier_that_no_probe_reaches_is_known_in_the_end(seed: int, share: float) -> None:
    engine = with_flash(seed, share)
    outcomes = [engine.serve(["flash"] * BLOCKS, 100) for _ in range(200)]
    late = outcomes[50:]
    assert sum(each.blocks == BLOCKS for each in late) >= 0.95 * len(late), f"seed {seed}"


@pytest.mark.parametrize("share", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_tier_that_loses_is_hardly_tried(seed: int, share: float) -> None:
    engine = with_flash(seed, share)
    outcomes = [engine.serve(["flash"] * BLOCKS, 100) for _ in range(400)]
    assert sum(bool(each.blocks) for each in outcomes) <= 8, f"seed {seed}"
    prefill_s = sum(each.prefill_s for each in outcomes)
    # The first of all is restored because nothing at all is known of its tier.
    lost_s = sum(each.took_s - each.best_s for each in outcomes[1:])
    assert lost_s <= 0.02 * prefill_s, f"seed {seed}"


def test_a_tier_that_was_not_asked_for_long_is_taken_up_again() -> None:
    engine = with_flash(1, 0.6)
    for _ in range(100):
        engine.serve(["flash"] * BLOCKS, 100)
    engine.clock.advance(STALE_S + 1)
    again = [engine.serve(["flash"] * BLOCKS, 100).blocks for _ in range(40)]
    assert again.count(BLOCKS) >= 30


@pytest.mark.parametrize("step_s", [0.0, 0.01, 0.03])
def test_the_ends_of_prompts_do_not_pass_for_prompts(step_s: float) -> None:
    """Whole prompts are hits, so that an engine computes 33 to 63 tokens at a time for long."""
    world = World(1, token_s=3e-5, position_s=2e-9, step_s=step_s, bytes_per_s={"dram": 4e9})
    engine = Engine(world)
    engine.connect()
    for _ in range(40):
        engine.serve([], world.rng.randrange(500, 4000))
    for _ in range(300):
        engine.serve(["dram"] * world.rng.randrange(100, 400), world.rng.randrange(33, 64))
    fit = engine.planner.prefill
    assert fit.seconds(0, 4096) <= 1.25 * world.prefill_s(0, 4096)
    world.bytes_per_s["dram"] = 2e8  # restoring takes twice as long as computing now
    outcomes = [engine.serve(["dram"] * 300, 50) for _ in range(100)]
    assert sum(bool(each.blocks) for each in outcomes[10:]) <= 2


def test_a_fixed_cost_is_told_apart_from_that_of_tokens() -> None:
    fit = Prefill()
    for tokens in (16, 2048, 32, 1024, 64, 512) * 5:
        fit.add(0, tokens, 0.02 + 1e-4 * tokens)
    assert fit.c == pytest.approx(0.02, rel=0.01)
    assert fit.seconds(0, 1000) == pytest.approx(0.1, rel=0.01)
    same = Prefill()
    for _ in range(10):
        same.add(0, 1024, 0.1)
    assert same.c == 0.0
    assert same.seconds(0, 1024) == pytest.approx(0.1)


def test_an_engine_that_computed_nothing_yet_risks_one_deadline() -> None:
    """Whoever only restores would never learn that computing is faster."""
    planner = Planner(clock=ManualClock().now_s)
    for _ in range(3):
        planner.restored("dram", 8 << 20, 0.1)
    few = int(REGRET_FREE_S / 2 * 80)
    assert planner.plan("a", 0, ["dram"] * few, 16, 1 << 20).why == "unmeasured"
    dear = planner.plan("b", 0, ["dram"] * 8 * few, 16, 1 << 20)
    assert (dear.blocks, dear.why) == (0, "cold")


NONSENSE = (0.0, 5e-324, 1e-9, 1.0, 1e9, 1e300, math.inf, math.nan, -1.0)


@pytest.mark.parametrize("seed", range(60))
def test_nonsense_neither_raises_nor_spreads(seed: int) -> None:
    """Clocks that jump, sizes and times that cannot be: what is shown stays a number."""
    rng, now_s = random.Random(seed), [0.0]

    def clock() -> float:
        now_s[0] += rng.choice([0.0, 1e-9, 1.0, 1000.0, -5.0])
        return now_s[0]

    planner = Planner(mode=rng.choice(["measured", "always", "off"]), clock=clock)
    for _ in range(100):
        size, seconds = rng.choice([-3, 0, 1, 17, 2048, 10**9]), rng.choice(NONSENSE)
        planner.prefill_step(abs(size), size, seconds)
        planner.restored(rng.choice("ab"), size, rng.choice(NONSENSE))
        planner.probed("a", size, rng.choice(NONSENSE))
        tiers = [rng.choice("abc") for _ in range(rng.randrange(40))]
        tokens, row = max(1, size), rng.choice([1, 1 << 20])
        plan = planner.plan(rng.randrange(3), 0, tiers, tokens, row, rng.choice(NONSENSE))
        assert 0 <= plan.blocks <= len(tiers)
        planner.outcome(rng.randrange(3), size, rng.choice(NONSENSE))
        shown = [*planner.figures().values(), plan.predicted_restore_s, plan.predicted_recompute_s]
        assert not any(math.isnan(each) for each in shown), f"seed {seed}"
