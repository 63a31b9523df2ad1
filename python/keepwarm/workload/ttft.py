"""P99 time to the first token of a fleet with a memory of some size: by exact simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from keepwarm.errors import ArgumentError
from keepwarm.workload.costs import CostModel, Rate
from keepwarm.workload.plan import Traffic
from keepwarm.workload.simulate import Level, Settings, simulate
from keepwarm.workload.size import Sizing, size
from keepwarm.workload.targets import Target
from keepwarm.workload.trace import TraceSource

#: How busy replicas are on average without a memory, where nobody says how many there are.
BUSY = 0.7


def replicas_for(traffic: Traffic) -> int:
    """As many as bear the trace without a memory, each busy for `BUSY` of the time."""
    span_s = max(traffic.load.span_s, 1.0)
    return max(1, math.ceil(traffic.prefill_s() / span_s / BUSY))


def for_p99(
    source: TraceSource, traffic: Traffic, target: Target, replicas: int | None = None
) -> Sizing:
    """Replays the trace for each size that is looked at; says what fleet that was."""
    count = replicas_for(traffic) if replicas is None else replicas
    if count < 1:
        raise ArgumentError(f"replicas is {count}: give 1 or more")

    def p99(blocks: float) -> float:
        result = simulate(source, settings(traffic, blocks, count))
        return float(np.quantile(result.ttft_s, 0.99, method="inverted_cdf"))

    answer = size(traffic, target, p99)
    busy = traffic.prefill_s() / max(traffic.load.span_s, 1.0) / count
    how = "as given" if replicas is not None else f"as many as are {100 * BUSY:.0f} % busy or less"
    note = (
        f"P99 of {count} replicas of {traffic.costs.gpus} GPUs ({how}), that requests go round, "
        f"with one shared memory: prefill keeps them {100 * busy:.0f} % busy without it; answers "
        "are not counted"
    )
    return replace(answer, notes=(note, *answer.notes))


def settings(traffic: Traffic, blocks: float, replicas: int) -> Settings:
    """Engines' own memory, then the plan's DRAM and flash, shared by all; a planner chooses."""
    plan = traffic.plan(blocks)
    own = int(traffic.engine_blocks / replicas)
    dram = math.ceil(blocks * plan.dram_share)
    flash = math.ceil(blocks) - dram
    sizes = (("device", own, "requests"), ("dram", dram, "requests"), ("flash", flash, "demotion"))
    return Settings(
        levels=tuple(
            Level(
                tier=tier,
                capacity_blocks=size,
                policy="lru",
                source="demotion" if source == "demotion" else "requests",
            )
            for tier, size, source in sizes
            if size > 0
        ),
        replicas=replicas,
        costs=_of_nodes(traffic.costs, plan.nodes),
        planned=True,
    )


def _of_nodes(costs: CostModel, nodes: int) -> CostModel:
    """Links of all nodes together: a prompt's runs come from many of them at once."""
    node, restore = costs.node, dict(costs.restore)
    for tier, each in (("dram", node.network_bytes_per_s), ("flash", node.flash_bytes_per_s)):
        if nodes and each:
            rate = restore[tier]
            restore[tier] = Rate(rate.latency_s, nodes * each, node.source)
    return replace(costs, restore=restore)
