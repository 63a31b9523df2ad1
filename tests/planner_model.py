"""An engine and a store whose true speeds are known, on a virtual clock, to hold a planner to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from keepwarm.adapter.prober import (
    BLOCK_BYTES,
    BLOCKS,
    DEADLINE_S,
    LATER_S,
    LOOK_S,
    SHARE,
    blocks_for,
)
from keepwarm.planner import Planner
from keepwarm.testing import ManualClock

BLOCK_TOKENS, ROW_BYTES, CHUNK_TOKENS = 16, 1 << 18, 2048
LOAD_DEADLINE_S = 0.5


@dataclass
class World:
    """True speeds; noise is a factor around 1 that both have."""

    seed: int
    token_s: float = 3e-4
    position_s: float = 2e-8
    overhead_s: float = 0.003
    step_s: float = 0.0
    """of each of the engine's steps, whatever it computes: nobody's decision"""
    bytes_per_s: dict[str, float] = field(default_factory=lambda: {"dram": 4e9, "flash": 1e9})
    noise: float = 0.15

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def about(self, seconds: float) -> float:
        """The time as it happens to be."""
        return seconds * self.rng.uniform(1 - self.noise, 1 + self.noise)

    def prefill_s(self, first: int, tokens: int) -> float:
        return self.token_s * tokens + self.position_s * tokens * (first + tokens / 2)

    def restore_s(self, tiers: list[str]) -> float:
        moved = sum(ROW_BYTES / self.bytes_per_s[tier] for tier in tiers)
        return self.overhead_s + moved if tiers else 0.0


@dataclass
class Outcome:
    """One request: what it took, what each choice would have taken, what was chosen."""

    took_s: float
    recompute_s: float
    best_s: float
    blocks: int
    hits: int
    prefill_s: float


class Engine:
    """Requests one after the other, and probes beside them as the prober makes them."""

    def __init__(self, world: World, mode: str = "measured") -> None:
        self.world, self.clock = world, ManualClock()
        self.planner = Planner(mode=mode, clock=self.clock.now_s)  # type: ignore[arg-type]
        self.probes_s, self.probes = 0.0, 0
        self._next_probe_s = 0.0
        self._requests = 0

    def connect(self) -> None:
        """The three gets at connect."""
        for _ in range(3):
            self._probe(DEADLINE_S)

    def _probe(self, limit_s: float = LATER_S) -> None:
        rate = self.planner.rate("dram", BLOCKS * BLOCK_BYTES)
        blocks = BLOCKS if rate is None else blocks_for(rate)
        took_s = self.world.about(blocks * BLOCK_BYTES / self.world.bytes_per_s["dram"])
        if took_s > limit_s:
            blocks, took_s = int(blocks * limit_s / took_s), limit_s
        if blocks:
            self.planner.probed("dram", blocks * BLOCK_BYTES, took_s)
        self.probes, self.probes_s = self.probes + 1, self.probes_s + took_s
        self._next_probe_s = self.clock.now_s() + max(LOOK_S, took_s / SHARE)

    def _pass(self, seconds: float) -> None:
        """Time passes, and the prober looks whether it is wanted."""
        self.clock.advance(seconds)
        if self.planner.stopped and self.clock.now_s() >= self._next_probe_s:
            self._probe()

    def serve(self, tiers: list[str], tail_tokens: int) -> Outcome:
        """A prompt whose first blocks are hits, and the rest new."""
        world, planner, name = self.world, self.planner, self._requests
        self._requests += 1
        plan = planner.plan(name, 0, tiers, BLOCK_TOKENS, ROW_BYTES)
        chosen = tiers[: plan.blocks]
        restore_s, landed = 0.0, plan.blocks
        if chosen:
            restore_s = world.about(world.restore_s(chosen))
            limit_s = LOAD_DEADLINE_S + 2 * plan.predicted_restore_s
            if restore_s > limit_s:
                landed, restore_s = int(landed * limit_s / restore_s), limit_s
            elif len(set(chosen)) == 1:
                moved_s = max(1e-6, restore_s - world.overhead_s)
                planner.restored(chosen[0], len(chosen) * ROW_BYTES, moved_s)
            planner.outcome(name, landed, restore_s)
            self._pass(restore_s)
        first, end = landed * BLOCK_TOKENS, len(tiers) * BLOCK_TOKENS + tail_tokens
        prefill_s = 0.0
        for start in range(first, end, CHUNK_TOKENS):
            tokens = min(CHUNK_TOKENS, end - start)
            took_s = world.about(world.step_s + world.prefill_s(start, tokens))
            planner.prefill_step(start, tokens, took_s)
            prefill_s += took_s
            self._pass(took_s)
        whole_s = world.prefill_s(0, end)
        choices = [
            world.restore_s(tiers[:n]) + whole_s - world.prefill_s(0, n * BLOCK_TOKENS)
            for n in {0, len(tiers), plan.blocks, *_ends(tiers)}
        ]
        # Against means: noise is nobody's decision.
        steady_s = world.restore_s(chosen) if landed == plan.blocks else restore_s
        mine_s = steady_s + whole_s - world.prefill_s(0, landed * BLOCK_TOKENS)
        return Outcome(mine_s, whole_s, min(choices), plan.blocks, len(tiers), prefill_s)


def _ends(tiers: list[str]) -> list[int]:
    return [at for at in range(1, len(tiers)) if tiers[at] != tiers[at - 1]]
