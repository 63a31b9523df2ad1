"""One fleet, simulated three times over the same arrivals: engines alone, each with a memory of its
own, and all with a shared one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keepwarm.workload.costs import CostModel
from keepwarm.workload.outcomes import SimulationResult
from keepwarm.workload.simulate import Level, Router, Settings, simulate
from keepwarm.workload.trace import Progress, TraceSource

#: Share of their time that the replicas of a fleet compute prompts, where no number is given.
BUSY = 0.6

#: Of all tiers: engines have it, and sizing counts with it.
POLICY = "lru"
#: What is compared, in the order of the report.
KINDS: Mapping[str, str] = {
    "alone": "engines alone",
    "local": "a memory for each replica",
    "shared": "one shared memory",
}


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The fleet that the report simulates."""

    replicas: int | None  # None: as many as the traffic needs
    router: Router
    engine_bytes: int  # each replica's own KV memory
    memory_bytes: int | None  # None: what sizing says leaves most


@dataclass(frozen=True, slots=True)
class Fleets:
    """The three simulations, and each request's session."""

    shape: FleetShape
    replicas: int
    memory_bytes: int
    results: Mapping[str, SimulationResult]
    unbounded: SimulationResult  # engines alone, if they never forgot
    sessions: NDArray[np.uint64]

    def flags(self, kind: str) -> str:
        """What `keepwarm workload simulate` has to be told, besides trace and costs."""
        memory = "" if kind == "alone" else f" --capacity dram={self.memory_bytes}"
        local = " --local" if kind == "local" else ""
        return (
            f"--policy {POLICY} --replicas {self.replicas} --router {self.shape.router} --planner "
            f"--capacity device={self.shape.engine_bytes}{memory}{local}"
        )

    def ttft(self, kind: str, name: str) -> float | None:
        """Seconds to the first token at `p50`, `p90` or `p99`."""
        spread = self.results[kind].to_json()["ttft_s"]
        return None if spread is None else float(spread[name])

    def cross_replica_rate(self) -> float | None:
        """Served by another replica than the session's request before. None: no sessions."""
        order = np.argsort(self.sessions, kind="stable")
        sessions, replicas = self.sessions[order], self.results["alone"].replica[order]
        follows = (sessions[1:] == sessions[:-1]) & (sessions[1:] != 0)
        if not follows.any():
            return None
        return float(np.mean((replicas[1:] != replicas[:-1])[follows]))

    def device_eviction_rate(self) -> float | None:
        """Of tokens that a replica had computed before, those its memory had let go of."""
        had = int(self.unbounded.hit_tokens.sum(dtype=np.uint64))
        has = int(self.results["alone"].hit_tokens.sum(dtype=np.uint64))
        return (had - has) / had if had else None

    def restore_over_recompute(self) -> float | None:
        """Mean over tokens restored from the shared memory; None: nothing was."""
        result = self.results["shared"]
        costs = result.costs
        assert costs is not None
        restored = result.hit_tokens[2:].sum(axis=0).astype(np.float64)
        device = result.hit_tokens[:2].sum(axis=0).astype(np.float64)
        positions = restored * device + restored * (restored - 1) / 2
        computed = costs.prefill_token_s * restored + costs.prefill_position_s * positions
        total = float(computed.sum())
        return float(result.restore_s[restored > 0].sum()) / total if total > 0 else None


def replicas_for(prefill_s: float, span_s: float) -> int:
    """So few replicas that their GPUs have `BUSY` of the time to compute without any memory."""
    return max(2, math.ceil(prefill_s / max(span_s, 1.0) / BUSY))


def simulate_alone(
    source: TraceSource,
    shape: FleetShape,
    replicas: int,
    costs: CostModel,
    progress: Progress | None = None,
) -> SimulationResult:
    """Engines without any memory beside their own: what a memory is to be held against."""
    return simulate(source, _settings(source, shape, replicas, costs), progress)


def simulate_fleets(
    source: TraceSource,
    shape: FleetShape,
    replicas: int,
    memory_bytes: int,
    alone: SimulationResult,
    progress: Progress | None = None,
) -> Fleets:
    """Reads the trace four times; `alone` is what `simulate_alone` says of the same fleet."""
    costs = alone.costs
    assert costs is not None
    base = _settings(source, shape, replicas, costs)
    blocks = max(replicas, int(memory_bytes / _block_bytes(source, costs)))
    dram = Level(tier="dram", capacity_blocks=blocks, policy=POLICY)
    both = replace(base, levels=(*base.levels, dram))
    results = {
        "alone": alone,
        "local": simulate(source, both, progress),
        "shared": simulate(source, replace(both, shared=True), progress),
    }
    endless = replace(base, levels=(Level(tier="device", policy=POLICY),))
    unbounded = simulate(source, endless, progress)
    sessions = [batch.sessions for batch in source.batches()]
    known = np.concatenate(sessions) if sessions else np.zeros(0, np.uint64)
    return Fleets(shape, replicas, memory_bytes, results, unbounded, known)


def _settings(source: TraceSource, shape: FleetShape, replicas: int, costs: CostModel) -> Settings:
    """Of engines alone."""
    engine = max(1, int(shape.engine_bytes / _block_bytes(source, costs)))
    return Settings(
        levels=(Level(tier="device", capacity_blocks=engine, policy=POLICY),),
        replicas=replicas,
        router=shape.router,
        shared=False,
        costs=costs,
        planned=True,
    )


def _block_bytes(source: TraceSource, costs: CostModel) -> float:
    return source.info.block_tokens * costs.kv_bytes_per_token
