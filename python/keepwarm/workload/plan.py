"""What one size of memory would do for a trace: hits by tier, seconds, nodes, money.

Tiers are exclusive: DRAM holds the most recent blocks, flash those before them, so that both
together hit like one memory of their sizes together (LRU). Each request is taken to find the same
share of its prompt; since long prompts cost more a token, that counts savings rather too low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.workload.costs import GIB, HOURS_A_MONTH, CostModel
from keepwarm.workload.load import HitCurve, Load, Sums
from keepwarm.workload.measures import Estimate

MONTH_S = HOURS_A_MONTH * 3600
#: Shares of a memory that may be DRAM, the rest flash; the one that leaves most money is taken.
DRAM_SHARES = (1.0, 0.75, 0.5, 0.35, 0.2, 0.1, 0.05)
#: Engines' memories added up.
POOLED = (
    "taken as one memory that all of them share: apart from each other they find less, and a "
    "memory saves more"
)


@dataclass(frozen=True, slots=True)
class Range:
    """A figure and its ends, from the curve's error."""

    low: float
    value: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Its three numbers."""
        return {"low": self.low, "value": self.value, "high": self.high}


@dataclass(frozen=True, slots=True)
class Spent:
    """Money a month."""

    dram: float
    flash: float
    nodes: float
    network: float

    def total(self) -> float:
        """All of it."""
        return self.dram + self.flash + self.nodes + self.network

    def as_json(self) -> dict[str, float]:
        """By what it is spent on, and in all."""
        return {
            "dram": self.dram,
            "flash": self.flash,
            "nodes": self.nodes,
            "network": self.network,
            "total": self.total(),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """A memory and what it does. Money is in the cost model's currency, a month."""

    blocks: float
    block_bytes: float
    dram_share: float
    nodes: int
    hit_rate: Estimate
    dram_hit_rate: float
    flash_hit_rate: float
    network_bytes_per_s: float  # the larger direction, on average
    network_bytes_per_s_peak: float  # in the busiest minute
    gpu_seconds_saved: Range
    ttft_mean_s: float  # without a queue
    saved: Range
    spent: Spent

    @property
    def net(self) -> Range:
        """What is left a month."""
        total = self.spent.total()
        return Range(self.saved.low - total, self.saved.value - total, self.saved.high - total)

    def bytes(self) -> int:
        """Of all tiers."""
        return math.ceil(self.blocks * self.block_bytes)

    def dram_bytes(self) -> int:
        """Of all nodes together."""
        return math.ceil(self.blocks * self.block_bytes * self.dram_share)

    def flash_bytes(self) -> int:
        """Of all nodes together."""
        return self.bytes() - self.dram_bytes()

    def as_json(self) -> dict[str, Any]:
        """Documented in docs/workload.md."""
        return {
            "capacity_blocks": math.ceil(self.blocks),
            "capacity_bytes": self.bytes(),
            "dram_bytes": self.dram_bytes(),
            "flash_bytes": self.flash_bytes(),
            "nodes": self.nodes,
            "hit_rate": {"value": self.hit_rate.value, "error": self.hit_rate.error},
            "hit_rate_by_tier": {"dram": self.dram_hit_rate, "flash": self.flash_hit_rate},
            "network_bytes_per_s": self.network_bytes_per_s,
            "network_bytes_per_s_peak": self.network_bytes_per_s_peak,
            "gpu_seconds_saved_month": self.gpu_seconds_saved.as_json(),
            "ttft_mean_s": self.ttft_mean_s,
            "saved_month": self.saved.as_json(),
            "spent_month": self.spent.as_json(),
            "net_month": self.net.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Traffic:
    """What plans are made for."""

    load: Load
    curve: HitCurve
    costs: CostModel
    block_tokens: int
    #: What engines' own memory has room for; savings count only beyond it.
    engine_blocks: float = 0.0
    #: How that was found, for readers.
    engines_are: str = POOLED

    def block_bytes(self) -> float:
        """A block in a memory."""
        return self.block_tokens * self.costs.kv_bytes_per_token

    def prefill_s(self, share: float = 1.0) -> float:
        """Seconds to compute the first `share` of every prompt, all requests together."""
        return self._prefill_s(self.load.all(), share)

    def _prefill_s(self, asked: Sums, share: float) -> float:
        costs, tokens = self.costs, share * asked.tokens
        positions = (share * share * asked.tokens_squared - tokens) / 2
        seconds = costs.prefill_token_s * tokens + costs.prefill_position_s * max(positions, 0.0)
        return seconds + costs.prefill_fixed_s * asked.requests * (share >= 1.0)

    def restorable(self, tier: str, share: float) -> Sums:
        """Of the requests whose prefix, such a share of the prompt, comes faster than computed."""
        return self.load.longer(self.costs.restored_from(tier) / share if share else math.inf)

    def plan(self, blocks: float) -> Plan:
        """The best split of so many blocks between DRAM and flash."""
        if blocks <= 0:
            return self.split(0.0, 1.0)
        plans = [self.split(blocks, share) for share in self._shares()]
        return max(plans, key=lambda plan: (plan.net.value, plan.dram_share))

    def _shares(self) -> Sequence[float]:
        """Flash is of use only where it is faster than computing."""
        mean = round(self.load.mean_tokens() * self.curve.ideal.value)
        has_flash = self.costs.node.flash_bytes > 0 and self.costs.node.flash_bytes_per_s > 0
        return DRAM_SHARES if has_flash and self.costs.pays_to_restore("flash", mean) else (1.0,)

    def split(self, blocks: float, dram_share: float) -> Plan:
        """What `blocks` do, of which `dram_share` is DRAM."""
        rate = self.curve.estimate(max(blocks, self.engine_blocks))
        engine = self.curve.at(self.engine_blocks)
        dram = max(self.curve.at(blocks * dram_share) - engine, 0.0)
        flash = max(self.curve.at(blocks) - engine - dram, 0.0)
        monthly = self.load.per_month(MONTH_S)
        saved_s = [self._saved_s(blocks, shift) for shift in (-1, 0, 1)]
        gpu_s = Range(*(each * self.costs.gpus * monthly for each in saved_s))
        money = [each * self.costs.gpu_second() for each in (gpu_s.low, gpu_s.value, gpu_s.high)]
        moved = max(dram + flash, 1 - rate.value) * self.costs.kv_bytes_per_token
        is_used = blocks > 0
        peak = moved * self.load.peak_tokens_per_s if is_used else 0.0
        nodes = self._nodes(blocks, dram_share, flash, peak) if is_used else 0
        return Plan(
            blocks=blocks,
            block_bytes=self.block_bytes(),
            dram_share=dram_share,
            nodes=nodes,
            hit_rate=rate,
            dram_hit_rate=dram,
            flash_hit_rate=flash,
            network_bytes_per_s=moved * self.load.tokens_per_s() if is_used else 0.0,
            network_bytes_per_s_peak=peak,
            gpu_seconds_saved=gpu_s,
            ttft_mean_s=self._ttft_s(
                rate.value, engine, {"dram": dram, "flash": flash}, saved_s[1]
            ),
            saved=Range(*money),
            spent=self._spent(blocks, dram_share, nodes, monthly),
        )

    def _saved_s(self, blocks: float, shift: int) -> float:
        """Prefill seconds less over the trace, of the prompts that come faster from DRAM.

        At the low end of the errors a memory finds less and engines alone find more.
        """
        engine = self.curve.at(self.engine_blocks, -shift)
        share = self.curve.at(blocks, shift)
        if blocks <= self.engine_blocks or share <= engine:
            return 0.0
        asked = self.restorable("dram", share)
        return self._prefill_s(asked, share) - self._prefill_s(asked, engine)

    def _nodes(self, blocks: float, dram_share: float, flash_rate: float, peak: float) -> int:
        """As many as the fullest of DRAM, flash, network and flash reads needs."""
        node, total = self.costs.node, blocks * self.block_bytes()
        read = flash_rate * self.load.peak_tokens_per_s * self.costs.kv_bytes_per_token
        needs = [total * dram_share / node.dram_bytes, peak / node.network_bytes_per_s]
        if dram_share < 1:
            needs += [total * (1 - dram_share) / node.flash_bytes, read / node.flash_bytes_per_s]
        return max(1, *(math.ceil(each - 1e-9) for each in needs))

    def _ttft_s(
        self, share: float, engine: float, found: Mapping[str, float], saved_s: float
    ) -> float:
        """Mean, as if no request waited for another."""
        if not self.load.requests:
            return 0.0
        seconds = self.prefill_s() - self.prefill_s(engine) - saved_s
        asked = self.restorable("dram", share) if saved_s else Sums(0.0, 0.0, 0.0)
        for tier, part in found.items():
            if part:
                rate, moved = self.costs.restore[tier], part * self.costs.kv_bytes_per_token
                seconds += asked.requests * rate.latency_s + asked.tokens * moved / rate.bytes_per_s
        return seconds / self.load.requests

    def _spent(self, blocks: float, dram_share: float, nodes: int, monthly: float) -> Spent:
        prices, total = self.costs.prices, blocks * self.block_bytes() / GIB
        # Every token is moved once, restored, or computed and stored: at most, beside engines'.
        moved = self.load.tokens * monthly * self.costs.kv_bytes_per_token / GIB * (blocks > 0)
        return Spent(
            dram=total * dram_share * prices.dram_gib_month.value,
            flash=total * (1 - dram_share) * prices.flash_gib_month.value,
            nodes=nodes * prices.node_month.value,
            network=moved * prices.network_gib.value,
        )
