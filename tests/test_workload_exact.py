"""What sizing says from a curve, held against exact simulations of the same trace."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from keepwarm.testing import synthetic
from keepwarm.testing.traces import MOONCAKE_FILE, Trace, find
from keepwarm.workload.costs import cost_model
from keepwarm.workload.geometry import geometry
from keepwarm.workload.plan import MONTH_S, Traffic
from keepwarm.workload.readers import open_trace
from keepwarm.workload.simulate import Level, Settings, simulate
from keepwarm.workload.survey import survey
from keepwarm.workload.trace import TraceSource
from keepwarm.workload.ttft import BUSY, replicas_for, settings
from trace_models import written


def opened(trace: Trace, folder: Path) -> TraceSource:
    return open_trace(written(trace, folder / "trace.jsonl"))


def traffic_of(source: TraceSource, model: str = "Llama-3.1-8B", engine: float = 0.0) -> Traffic:
    found = survey(source)
    costs = cost_model(geometry(model), source.info.block_tokens)
    return Traffic(found.load, found.curve, costs, source.info.block_tokens, engine)


def exact(source: TraceSource, traffic: Traffic, blocks: float) -> tuple[float, float]:
    """Token hit rate and GPU-seconds saved over the trace by one LRU memory."""
    level = Level(tier="dram", capacity_blocks=math.floor(blocks), policy="lru")
    result = simulate(source, Settings(levels=(level,), costs=traffic.costs))
    seconds = result.gpu_seconds()
    assert seconds is not None
    return result.hit_rate().token, seconds["saved"]


@pytest.mark.parametrize("kind", ["agents", "chat", "rag"])
def test_plans_hit_as_simulated_and_save_no_more(kind: str, tmp_path: Path) -> None:
    made = {
        "agents": lambda: synthetic.coding_agents(10, 15, seed=6),
        "chat": lambda: synthetic.chat(150, seed=6),
        "rag": lambda: synthetic.rag(400, seed=6),
    }[kind]()
    source = opened(made, tmp_path)
    traffic = traffic_of(source)
    for share in (0.05, 0.3, 1.0):
        blocks = math.ceil(share * traffic.curve.blocks[-1])
        plan = traffic.split(blocks, 1.0)
        rate, saved = exact(source, traffic, blocks)
        # The last token of a prompt is always computed there, and points lie 2^(1/2) apart.
        assert plan.hit_rate.value == pytest.approx(rate, abs=plan.hit_rate.error + 0.03)
        counted = plan.gpu_seconds_saved.value / traffic.load.per_month(MONTH_S)
        assert counted <= 1.05 * saved + 0.05 * traffic.prefill_s()
        assert counted >= 0.5 * saved - 0.05 * traffic.prefill_s()


def test_at_a_point_of_the_curve_it_is_the_same_number(tmp_path: Path) -> None:
    source = opened(synthetic.coding_agents(8, 12, seed=2), tmp_path)
    traffic = traffic_of(source)
    last_tokens = traffic.load.requests / traffic.load.tokens
    for blocks in traffic.curve.blocks[8::4]:
        plan = traffic.split(blocks, 1.0)
        rate, _ = exact(source, traffic, blocks)
        assert rate <= plan.hit_rate.value + 1e-9
        assert rate == pytest.approx(plan.hit_rate.value, abs=last_tokens + 1e-9)


def test_a_fleet_that_bears_the_load(tmp_path: Path) -> None:
    source = opened(synthetic.coding_agents(8, 12, seed=3, stagger_s=5.0), tmp_path)
    traffic = traffic_of(source, "Llama-3.1-70B")
    count = replicas_for(traffic)
    busy = traffic.prefill_s() / traffic.load.span_s
    assert (count - 1) * BUSY < busy <= count * BUSY


def test_levels_are_the_engines_own_and_the_plans(tmp_path: Path) -> None:
    source = opened(synthetic.coding_agents(4, 6, seed=3), tmp_path)
    traffic = traffic_of(source, "Llama-3.1-70B", engine=100.0)
    blocks = traffic.curve.blocks[-1]
    found = settings(traffic, blocks, replicas=3)
    plan = traffic.plan(blocks)
    sizes = {level.tier: level.capacity_blocks for level in found.levels}
    assert sizes.pop("device") == 33
    assert sum(size or 0 for size in sizes.values()) == math.ceil(blocks)
    assert sizes["dram"] == math.ceil(blocks * plan.dram_share)
    assert found.costs is not None
    node = traffic.costs.node
    assert found.costs.restore["dram"].bytes_per_s == plan.nodes * node.network_bytes_per_s
    assert [level.tier for level in settings(traffic, 0.0, 3).levels] == ["device"]


def test_mooncakes_conversations_are_counted_low_by_as_much_as_said() -> None:
    path = find(MOONCAKE_FILE)
    if path is None:
        pytest.skip("no public traces here: set KEEPWARM_TRACES")
    source = open_trace(path)
    traffic = traffic_of(source)
    rate, saved = exact(source, traffic, 1 << 30)
    assert rate == pytest.approx(traffic.curve.ideal.value, abs=traffic.curve.ideal.error + 2e-4)
    counted = traffic.prefill_s(traffic.curve.ideal.value)
    assert saved / traffic.prefill_s() == pytest.approx(0.354, abs=0.003)
    assert counted / traffic.prefill_s() == pytest.approx(0.284, abs=0.004)
