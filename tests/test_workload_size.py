"""Sizing: hand-computed figures, monotonicity, break-even by brute force, and answers of none."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.workload.costs import GIB, TIERS, CostModel, NodeShape, Price, Prices, Rate
from keepwarm.workload.load import HitCurve, Load
from keepwarm.workload.measures import Estimate
from keepwarm.workload.plan import MONTH_S, Traffic
from keepwarm.workload.size import FACTORS, VARIED, break_even, size
from keepwarm.workload.targets import Target, Wanted, parse_target
from keepwarm.workload.trace import Batch

BLOCK_TOKENS = 100
TOKEN_BYTES = 10_000.0  # a block is 1 MB


def price(value: float) -> Price:
    return Price(value, "unit", "test")


def costs(
    *, gpu_hour: float = 3.6, dram: float = 10.0, node: float = 0.0, network: float = 0.0
) -> CostModel:
    """A token is computed in 1 ms; a GPU's second costs 0.001."""
    return CostModel(
        kv_bytes_per_token=TOKEN_BYTES,
        prefill_fixed_s=0.0,
        prefill_token_s=1e-3,
        prefill_position_s=0.0,
        prefill_source="test",
        restore={tier: Rate(0.0, 1e9, "test") for tier in TIERS},
        gpus=1,
        node=NodeShape(64 * GIB, 0, 1e9, 0.0, "test"),
        prices=Prices("EUR", price(gpu_hour), price(dram), price(1.0), price(node), price(network)),
    )


def load(requests: int = 1000, tokens: int = 2000, span_s: float = 7200.0) -> Load:
    each = np.full(requests, tokens)
    return loaded(np.linspace(0, span_s, requests), each)


def loaded(times: Sequence[float] | np.ndarray, tokens: Sequence[int] | np.ndarray) -> Load:
    found, count = Load(), len(times)
    found.add(
        Batch(
            times_s=np.asarray(times, dtype=np.float64),
            input_tokens=np.asarray(tokens, dtype=np.uint32),
            output_tokens=np.full(count, 7, dtype=np.uint32),
            sessions=np.zeros(count, dtype=np.uint64),
            tenants=np.zeros(count, dtype=np.uint64),
            offsets=np.zeros(count + 1, dtype=np.uint64),
            block_ids=np.zeros(0, dtype=np.uint64),
        )
    )
    return found


CURVE = HitCurve.of(
    [(1000, Estimate(0.2)), (4000, Estimate(0.5)), (10_000, Estimate(0.6))], Estimate(0.6)
)


def traffic(curve: HitCurve = CURVE, model: CostModel | None = None) -> Traffic:
    return Traffic(load(), curve, model or costs(), BLOCK_TOKENS)


def test_load_sums_and_finds_the_busiest_minute() -> None:
    found = loaded([0, 10, 59, 60, 61, 190], [5, 6, 7, 100, 200, 3])
    assert (found.requests, found.tokens, found.span_s) == (6, 321, 190)
    assert found.tokens_squared == 25 + 36 + 49 + 10_000 + 40_000 + 9
    assert found.peak_tokens_per_s == 300 / 60
    assert found.output_tokens == 42


def test_a_window_may_reach_over_batches() -> None:
    whole, parts = loaded([1, 2, 3, 70], [10, 20, 30, 5]), Load()
    for times, tokens in (([1, 2], [10, 20]), ([3, 70], [30, 5])):
        count = len(times)
        parts.add(
            Batch(
                np.array(times, dtype=np.float64),
                np.array(tokens, dtype=np.uint32),
                np.zeros(count, dtype=np.uint32),
                np.zeros(count, dtype=np.uint64),
                np.zeros(count, dtype=np.uint64),
                np.zeros(count + 1, dtype=np.uint64),
                np.zeros(0, dtype=np.uint64),
            )
        )
    assert parts.peak_tokens_per_s == whole.peak_tokens_per_s == 1.0
    assert parts.tokens == whole.tokens


def test_a_plan_by_hand() -> None:
    # 2,000,000 tokens in two hours; 365 times in a month of 730 hours.
    plan = traffic(model=costs(node=50.0, network=0.01)).plan(4000)
    saved_s = 2_000_000 * 0.5 * 1e-3 * 365
    assert plan.gpu_seconds_saved.value == pytest.approx(saved_s)
    assert plan.saved.value == pytest.approx(saved_s * 3.6 / 3600)
    assert plan.bytes() == 4000 * 1_000_000
    assert plan.spent.dram == pytest.approx(4e9 / GIB * 10)
    assert plan.spent.nodes == 50
    assert plan.spent.network == pytest.approx(2_000_000 * 365 * TOKEN_BYTES / GIB * 0.01)
    assert plan.net.value == pytest.approx(plan.saved.value - plan.spent.total())
    assert plan.hit_rate.value == 0.5
    # Half is restored at 1 GB/s (1,000 tokens are 10 MB), half computed.
    assert plan.ttft_mean_s == pytest.approx(1.0 + 0.01)
    assert plan.network_bytes_per_s == pytest.approx(2_000_000 * 0.5 * TOKEN_BYTES / 7200)


def test_positions_make_long_prompts_dearer() -> None:
    model = replace(costs(), prefill_position_s=1e-6)
    one = Traffic(loaded([0], [1000]), CURVE, model, BLOCK_TOKENS)
    assert one.prefill_s() == pytest.approx(sum(1e-3 + 1e-6 * at for at in range(1000)))
    assert one.prefill_s(0.5) == pytest.approx(sum(1e-3 + 1e-6 * at for at in range(500)))
    assert model.prefill_s(200, 3) == pytest.approx(3e-3 + 1e-6 * (200 + 201 + 202))


def test_time_to_first_token_takes_the_faster_way_for_each_tier() -> None:
    model = costs()
    slow = replace(model, restore={**model.restore, "flash": Rate(0.0, 1e6, "test")})
    # 100 tokens of DRAM: 1 ms. 100 of flash would take 1 s: computed in 0.1 s. 50 more computed.
    found = slow.ttft_s(250, {"dram": 100, "flash": 100})
    assert found == pytest.approx(0.001 + 0.1 + 0.05)
    assert slow.pays_to_restore("dram", 100)
    assert not slow.pays_to_restore("flash", 100)


@pytest.mark.parametrize("seed", range(20))
def test_from_which_length_on_restoring_is_faster(seed: int) -> None:
    draw = random.Random(seed)
    model = replace(
        costs(),
        prefill_token_s=draw.uniform(1e-6, 2e-5),
        prefill_position_s=draw.choice([0.0, draw.uniform(1e-11, 1e-9)]),
        restore={
            tier: Rate(draw.uniform(0, 0.01), draw.uniform(5e8, 5e9), "test") for tier in TIERS
        },
    )
    for tier in TIERS:
        edge = model.restored_from(tier)
        if edge < 1e9:
            assert model.pays_to_restore(tier, math.floor(edge) + 1)
        assert not model.pays_to_restore(tier, math.floor(min(edge, 1e9)))


def test_each_prompt_is_restored_or_computed_by_itself() -> None:
    """The mean prefix, 5,500 tokens, would be restored; 100-token ones are not."""
    latency = 1.0  # as computing 1,000 tokens takes
    slow = costs()
    slow = replace(slow, restore={**slow.restore, "dram": Rate(latency, 1e15, "test")})
    tokens = [200] * 500 + [21_800] * 500
    found = Traffic(loaded(np.linspace(0, 7200, 1000), tokens), CURVE, slow, BLOCK_TOKENS)
    plan = found.plan(4000)  # finds half
    assert plan.gpu_seconds_saved.value == pytest.approx(500 * 10_900 * 1e-3 * 365)
    assert plan.ttft_mean_s == pytest.approx((500 * 0.2 + 500 * (10.9 + latency)) / 1000)
    answer = size(found, Target(Wanted.MONEY))
    assert any("for 50 % of the requests" in note for note in answer.notes)
    # Few long prompts among many short ones pay too, though a mean one does not.
    few = Traffic(loaded(np.linspace(0, 7200, 1000), [200] * 990 + [21_800] * 10), CURVE, slow, 100)
    assert few.plan(4000).gpu_seconds_saved.value == pytest.approx(10 * 10_900 * 1e-3 * 365)


def test_lengths_are_told_apart_to_a_sixteenth_of_an_octave() -> None:
    found = loaded(range(5), [1, 2, 1000, 1045, 4_000_000_000])
    assert found.longer(0) == found.all()
    assert found.longer(1000).requests == 2
    assert found.longer(1.5).tokens == found.tokens - 1
    assert found.longer(math.inf).requests == 0


def test_needed_capacity_is_between_points_by_straight_lines() -> None:
    assert CURVE.needed(0.35) == pytest.approx(2500)
    assert CURVE.needed(0.1) == pytest.approx(500)
    assert CURVE.at(2500) == pytest.approx(0.35)
    assert CURVE.needed(0.61) is None
    assert CURVE.needed(0.0) == 0.0


def test_a_dip_of_the_sample_is_made_level() -> None:
    dipped = HitCurve.of(
        [(1, Estimate(0.3)), (2, Estimate(0.29)), (3, Estimate(0.4))], Estimate(0.4)
    )
    assert [each.value for each in dipped.rates] == [0.3, 0.3, 0.4]


@pytest.mark.parametrize("seed", range(8))
def test_more_for_more(seed: int) -> None:
    """A higher target never needs less, more blocks never hit less, spending grows with size."""
    curve = random_curve(random.Random(seed))
    found = traffic(curve)
    needed = [curve.needed(rate / 100, -1) for rate in range(1, 100)]
    reached = [each for each in needed if each is not None]
    assert reached == sorted(reached)
    assert all(each is None for each in needed[len(reached) :])
    plans = [found.plan(blocks) for blocks in curve.grid(3)]
    for small, large in pairwise(plans):
        assert small.hit_rate.value <= large.hit_rate.value
        assert small.spent.total() <= large.spent.total() + 1e-9
        assert small.saved.low <= small.saved.value <= small.saved.high
        assert small.saved.value <= large.saved.value + 1e-9


def random_curve(draw: random.Random, error: float = 0.01) -> HitCurve:
    blocks = sorted(draw.sample(range(100, 50_000), 9))
    rates = sorted(draw.uniform(0.02, 0.9) for _ in blocks)
    points = [(b, Estimate(r, error)) for b, r in zip(blocks, rates, strict=True)]
    return HitCurve.of(points, Estimate(rates[-1], error))


@pytest.mark.parametrize("seed", range(8))
def test_break_even_equals_brute_force(seed: int) -> None:
    draw = random.Random(seed)
    curve = random_curve(draw)
    found = traffic(curve, costs(gpu_hour=draw.uniform(1, 8), node=draw.choice([0.0, 60.0])))
    step = 50
    pays = [blocks for blocks in range(step, 160_000, step) if found.plan(blocks).net.value >= 0]
    reported = break_even(found)
    if not pays:
        assert reported.smallest_blocks is None
        return
    assert reported.smallest_blocks == pytest.approx(pays[0], abs=step)
    assert reported.largest_blocks == pytest.approx(pays[-1], abs=step)


@pytest.mark.parametrize("seed", range(5))
def test_most_money_is_within_a_step_of_brute_force(seed: int) -> None:
    draw = random.Random(seed)
    found = traffic(random_curve(draw), costs(gpu_hour=draw.uniform(1, 8)))
    answer = size(found, Target(Wanted.MONEY))
    brute = max(found.plan(blocks).net.value for blocks in range(0, 60_000, 50))
    got = 0.0 if answer.plan is None else answer.plan.net.value
    assert got >= brute - max(0.01, 0.005 * abs(brute))


def test_the_price_of_an_hour_decides_as_reported() -> None:
    dear = traffic(model=costs(gpu_hour=0.05))
    reported = break_even(dear)
    assert reported.smallest_blocks is None
    for factor, expected in ((0.99, False), (1.01, True)):
        model = costs(gpu_hour=reported.gpu_hour * factor)
        again = traffic(model=model)
        assert (break_even(again).smallest_blocks is not None) is expected
    answer = size(dear, Target(Wanted.MONEY))
    assert answer.plan is None
    assert f"{reported.gpu_hour:,.2f}" in answer.reason


def test_above_the_ideal_there_is_none() -> None:
    answer = size(traffic(), Target(Wanted.HIT_RATE, 0.7))
    assert answer.plan is None
    assert answer.reason.startswith("none: an unbounded memory would find 60.0 %")
    unsure = HitCurve.of([(100, Estimate(0.6, 0.03))], Estimate(0.6, 0.03))
    answer = size(traffic(unsure), Target(Wanted.HIT_RATE, 0.61))
    assert answer.plan is None
    assert "within the error" in answer.reason


def test_errors_widen_the_answer() -> None:
    curve = HitCurve.of([(1000, Estimate(0.5, 0.05)), (9000, Estimate(0.9))], Estimate(0.9))
    answer = size(traffic(curve), Target(Wanted.HIT_RATE, 0.45))
    assert answer.plan is not None
    assert answer.blocks_low is not None
    assert answer.blocks_high == answer.plan.blocks == pytest.approx(1000)
    assert answer.blocks_low == pytest.approx(1000 * 0.45 / 0.55)
    assert answer.plan.saved.low < answer.plan.saved.value < answer.plan.saved.high


def test_nothing_that_repeats_never_pays() -> None:
    nothing = HitCurve.of([(1000, Estimate(0.0))], Estimate(0.0))
    answer = size(traffic(nothing), Target(Wanted.MONEY))
    assert answer.plan is None
    assert answer.reason.startswith("none: no memory saves anything")
    assert math.isinf(answer.break_even.gpu_hour)


def test_where_restoring_is_slower_than_computing_nothing_is_saved() -> None:
    slow = costs()
    slow = replace(slow, restore={**slow.restore, "dram": Rate(0.0, 1e6, "test")})
    answer = size(traffic(model=slow), Target(Wanted.MONEY))
    assert answer.plan is None
    assert any("longer than computing" in note for note in answer.notes)


def test_engines_own_memory_is_taken_off() -> None:
    alone = traffic().plan(4000)
    beside = replace(traffic(), engine_blocks=1000).plan(4000)
    assert beside.saved.value == pytest.approx(alone.saved.value * (0.5 - 0.2) / 0.5)
    assert beside.hit_rate == alone.hit_rate
    assert replace(traffic(), engine_blocks=4000).plan(1000).saved.value == 0.0
    answer = size(replace(traffic(), engine_blocks=4000), Target(Wanted.HIT_RATE, 0.4))
    assert answer.plan is not None
    assert answer.plan.blocks == 0
    assert answer.plan.nodes == 0


def test_errors_of_both_memories_count_against_each_other() -> None:
    rates = [(1000, Estimate(0.5, 0.05)), (4000, Estimate(0.6, 0.01))]
    curve = HitCurve.of(rates, Estimate(0.6, 0.01))
    plan = replace(traffic(curve), engine_blocks=1000).plan(4000)
    unit = plan.saved.value / 0.1
    assert plan.saved.low == pytest.approx(unit * (0.59 - 0.55))
    assert plan.saved.high == pytest.approx(unit * (0.61 - 0.45))
    near = replace(traffic(curve), engine_blocks=3999).plan(4000)
    assert 0 == near.saved.low <= near.saved.value <= near.saved.high


def test_flash_is_taken_where_it_is_cheaper_and_nodes_bear_its_reads() -> None:
    model = costs(dram=10.0)
    node = NodeShape(64 * GIB, 1000 * GIB, 1e9, 1e9, "test")
    plan = traffic(model=replace(model, node=node)).plan(10_000)
    assert plan.dram_share < 1
    assert plan.dram_bytes() + plan.flash_bytes() == plan.bytes() == 10_000_000_000
    assert plan.dram_hit_rate + plan.flash_hit_rate == pytest.approx(0.6)
    slow = replace(node, flash_bytes_per_s=1.0)
    many = traffic(model=replace(costs(node=1e6), node=slow)).plan(10_000)
    assert many.flash_bytes() == 0  # so many nodes would cost more than DRAM


def test_nodes_are_as_many_as_the_fullest_part_needs() -> None:
    model = replace(costs(), node=NodeShape(GIB, 0, 1e9, 0.0, "test"))
    assert traffic(model=model).plan(4000).nodes == 4  # 3.7 GiB of DRAM
    burst = loaded([0, 1, 7200], [60_000_000, 60_000_000, 5])
    found = Traffic(burst, CURVE, costs(), BLOCK_TOKENS).plan(4000)
    # 2,000,000 tokens a second in the busiest minute, half of them restored, 10 kB each.
    assert found.network_bytes_per_s_peak == pytest.approx(2_000_000 * 0.5 * TOKEN_BYTES)
    assert found.nodes == 10


def test_a_p99_target_is_searched_among_the_capacities() -> None:
    asked: list[float] = []

    def p99(blocks: float) -> float:
        asked.append(blocks)
        return 5.0 - CURVE.at(blocks) * 5

    answer = size(traffic(), Target(Wanted.P99_TTFT, 2.5), p99)
    assert answer.plan is not None
    assert answer.plan.blocks == 4000
    assert (answer.p99_ttft_s, answer.p99_ttft_without_s) == (2.5, 5.0)
    assert len(asked) <= 4
    never = size(traffic(), Target(Wanted.P99_TTFT, 1.0), p99)
    assert never.plan is None
    assert never.reason.startswith("none: with room for everything the P99 is still 2.00 s")
    assert never.reason.endswith("for more replicas or faster links")
    slow = size(traffic(), Target(Wanted.P99_TTFT, 1.0), lambda blocks: 5.0 - blocks / 1e6)
    assert slow.reason.endswith("what repeats is not what makes it slow, or engines are overloaded")
    already = size(traffic(), Target(Wanted.P99_TTFT, 6.0), p99)
    assert already.plan is not None
    assert already.plan.blocks == 0


def test_sensitivity_is_what_a_new_sizing_says() -> None:
    found = traffic(model=costs(node=5.0))
    answer = size(found, Target(Wanted.MONEY))
    assert {(each.what, each.factor) for each in answer.sensitivity} == {
        (what, factor) for what in VARIED for factor in FACTORS
    }
    for each in answer.sensitivity:
        if each.what == "gpu_hour":
            again = size(traffic(model=costs(node=5.0, gpu_hour=3.6 * each.factor)), answer.target)
            assert each.plan == again.plan or (
                each.plan is not None
                and again.plan is not None
                and each.plan.net.value == pytest.approx(again.plan.net.value)
            )
    grown = next(e for e in answer.sensitivity if e.what == "growth" and e.factor == 1.5)
    assert grown.plan is not None
    assert answer.plan is not None
    assert grown.plan.blocks == pytest.approx(1.5 * answer.plan.blocks)
    assert grown.plan.saved.value == pytest.approx(1.5 * answer.plan.saved.value)


def test_a_month_is_the_trace_over_and_over() -> None:
    assert load(span_s=7200).per_month(MONTH_S) == pytest.approx(365)
    assert load(span_s=0).per_month(MONTH_S) == pytest.approx(MONTH_S / 60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hit-rate=0.6", Target(Wanted.HIT_RATE, 0.6)),
        ("hit-rate=60%", Target(Wanted.HIT_RATE, 0.6)),
        ("p99-ttft=2s", Target(Wanted.P99_TTFT, 2.0)),
        ("p99-ttft=800ms", Target(Wanted.P99_TTFT, 0.8)),
        ("money", Target(Wanted.MONEY)),
    ],
)
def test_targets(text: str, expected: Target) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "hit-rate", "hit-rate=0", "hit-rate=1.2", "hit-rate=x", "p99-ttft=0", "money=3", "x"],
)
def test_targets_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"hit-rate=0\.6"):
        parse_target(text)
