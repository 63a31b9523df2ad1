"""Tiny traces in memory, costs that can be added up by hand, and a simulation of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from keepwarm.workload.costs import TIERS, CostModel, Rate, cost_model
from keepwarm.workload.geometry import geometry
from keepwarm.workload.outcomes import SimulationResult
from keepwarm.workload.simulate import Level, Settings, simulate
from keepwarm.workload.trace import Batch, Progress, Skipped, TokensAre, TraceInfo

BLOCK_TOKENS = 4


class Listed:
    """Prompts of whole blocks, unless `tokens` says otherwise; a letter is a block's id."""

    def __init__(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        times_s: Sequence[float] | None = None,
        sessions: Sequence[int] | None = None,
        tokens: Sequence[int] | None = None,
        batch: int = 2,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.blocks = [[ord(b) if isinstance(b, str) else b for b in each] for each in prompts]
        count = len(prompts)
        self.times_s = list(times_s or [0.0] * count)
        self.sessions = list(sessions or [0] * count)
        self.tokens = list(tokens or [len(each) * block_tokens for each in prompts])
        self.batch = batch
        self.info = TraceInfo("listed", "list", "test", block_tokens, TokensAre.EXACT, True)

    def skipped(self) -> Skipped:
        return Skipped({}, {})

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        for first in range(0, len(self.blocks), self.batch):
            part = slice(first, first + self.batch)
            blocks = self.blocks[part]
            ends = np.cumsum([0, *map(len, blocks)])
            yield Batch(
                times_s=np.array(self.times_s[part], np.float64),
                input_tokens=np.array(self.tokens[part], np.uint32),
                output_tokens=np.ones(len(blocks), np.uint32),
                sessions=np.array(self.sessions[part], np.uint64),
                tenants=np.zeros(len(blocks), np.uint64),
                offsets=ends.astype(np.uint64),
                block_ids=np.array([b for each in blocks for b in each], np.uint64),
            )
        if progress is not None:
            progress(len(self.blocks), len(self.blocks))


def costs(token_s: float = 1.0, position_s: float = 0.0, **rates: tuple[float, float]) -> CostModel:
    """A byte a token; `rates` are latency and bytes a second by tier, else as fast as can be."""
    restore = {tier: Rate(0.0, 1e15, "test") for tier in TIERS}
    restore |= {tier: Rate(*rate, "test") for tier, rate in rates.items()}
    return replace(
        cost_model(geometry("llama-3.1-8b"), BLOCK_TOKENS),
        kv_bytes_per_token=1.0,
        prefill_token_s=token_s,
        prefill_position_s=position_s,
        restore=restore,
    )


def run(source: Listed, *levels: Level, **settings: Any) -> SimulationResult:
    """A simulation of these levels, nearest first."""
    return simulate(source, Settings(levels=levels, **settings))


def hits(result: SimulationResult, tier: str | None = None) -> list[int]:
    """Hit blocks of each request: in one tier, or in all."""
    rows = result.hit_blocks if tier is None else result.hit_blocks[[TIERS.index(tier)]]
    counts: list[int] = rows.sum(axis=0).tolist()
    return counts
