"""What became of a simulated trace: a value for each request, and figures over those that count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from keepwarm.workload.costs import TIERS, CostModel
from keepwarm.workload.trace import Skipped, TraceInfo

__all__ = ["TIERS", "HitRate", "SimulationResult", "columns"]

#: Grows only when a field is removed or means something else.
SCHEMA = 1

Integers = NDArray[np.uint32]
Seconds = NDArray[np.float64]


class Columns(TypedDict):
    """A value for each request, in order of arrival; of hits one for each tier and request."""

    replica: Integers
    input_tokens: Integers
    blocks: Integers
    hit_blocks: Integers
    hit_tokens: Integers
    restore_s: Seconds
    wait_s: Seconds
    prefill_s: Seconds


def columns(found: Mapping[str, bytes]) -> Columns:
    """From the native core's bytes."""
    integers = {
        name: np.frombuffer(found[name], np.uint32)
        for name in ("replica", "input_tokens", "blocks", "hit_blocks", "hit_tokens")
    }
    seconds = {
        name: np.frombuffer(found[name], np.float64)
        for name in ("restore_s", "wait_s", "prefill_s")
    }
    return Columns(
        replica=integers["replica"],
        input_tokens=integers["input_tokens"],
        blocks=integers["blocks"],
        hit_blocks=integers["hit_blocks"].reshape(len(TIERS), -1),
        hit_tokens=integers["hit_tokens"].reshape(len(TIERS), -1),
        restore_s=seconds["restore_s"],
        wait_s=seconds["wait_s"],
        prefill_s=seconds["prefill_s"],
    )


@dataclass(frozen=True, slots=True)
class HitRate:
    """Shares of what was asked for that was not computed again."""

    block: float  # of known blocks
    token: float  # of input tokens
    #: Of those input tokens that belong to known blocks: a trace may name no id for a prompt's last
    #: tokens, and some published tables leave these out.
    covered_token: float

    def as_json(self) -> dict[str, float]:
        """By name."""
        return {"block": self.block, "token": self.token, "covered_token": self.covered_token}


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Everything about one simulation. Arrays have a value for each request, warm-up included."""

    info: TraceInfo
    skipped: Skipped
    settings: Mapping[str, object]
    notes: tuple[str, ...]
    costs: CostModel | None
    replicas: int
    count_from: float
    distinct_blocks: int
    span_s: float  # from the first arrival to the last
    replica: Integers  # which one served it
    input_tokens: Integers
    blocks: Integers  # known ones of its prompt
    hit_blocks: Integers  # by tier and request
    hit_tokens: Integers  # by tier and request
    restore_s: Seconds  # from arrival until what it restores was there
    wait_s: Seconds  # from then until its prefill began
    prefill_s: Seconds

    @property
    def requests(self) -> int:
        """All of them."""
        return len(self.replica)

    @property
    def first_counted(self) -> int:
        """Requests before this one warmed up."""
        return int(self.requests * self.count_from)

    @property
    def recomputed_tokens(self) -> Integers:
        """Tokens that no tier had, of each request."""
        hits: Integers = self.hit_tokens.sum(axis=0, dtype=np.uint32)
        return self.input_tokens - hits

    @property
    def ttft_s(self) -> Seconds:
        """Time to the first token, of each request. Zeros without a cost model."""
        return self.restore_s + self.wait_s + self.prefill_s

    def hit_rate(self, tier: str | None = None) -> HitRate:
        """Of one tier, or of all together."""
        rows = slice(None) if tier is None else [TIERS.index(tier)]
        first = self.first_counted
        blocks, tokens = self.blocks[first:], self.input_tokens[first:]
        hit_tokens = self.hit_tokens[rows, first:].sum(dtype=np.uint64)
        covered = np.minimum(tokens, blocks.astype(np.uint64) * self.info.block_tokens)
        return HitRate(
            _share(self.hit_blocks[rows, first:].sum(dtype=np.uint64), _total(blocks)),
            _share(hit_tokens, _total(tokens)),
            _share(hit_tokens, _total(covered)),
        )

    def gpu_seconds(self) -> dict[str, float] | None:
        """What prefills took, what they would have taken without any memory, and the difference.

        Seconds of single GPUs: a replica's, times the GPUs that it has. None without a cost model.
        """
        if self.costs is None:
            return None
        first = self.first_counted
        tokens = self.input_tokens[first:].astype(np.float64)
        without = (
            self.costs.prefill_fixed_s * np.count_nonzero(tokens)
            + self.costs.prefill_token_s * tokens.sum()
            + self.costs.prefill_position_s * (tokens * (tokens - 1) / 2).sum()
        ) * self.costs.gpus
        spent = float(self.prefill_s[first:].sum()) * self.costs.gpus
        return {"spent": spent, "without": float(without), "saved": float(without) - spent}

    def money(self) -> dict[str, float | str] | None:
        """What those GPU-seconds cost; nothing else is in it. None without a cost model."""
        seconds = self.gpu_seconds()
        if self.costs is None or seconds is None:
            return None
        price = self.costs.gpu_second()
        cost: dict[str, float | str] = {name: price * each for name, each in seconds.items()}
        return {"currency": self.costs.prices.currency, **cost}

    def busy(self) -> float | None:
        """Prefill seconds over all replicas' seconds between the first arrival and the last.

        From 1 on queues only grow: times to the first token then say how long the trace is, and no
        more. None without a cost model, and where all arrive at once.
        """
        if self.costs is None or self.span_s <= 0:
            return None
        return float(self.prefill_s.sum()) / (self.span_s * self.replicas)

    def to_json(self) -> dict[str, Any]:
        """Everything but single requests; documented in docs/workload.md."""
        first = self.first_counted
        info = self.info
        return {
            "schema": SCHEMA,
            "kind": "keepwarm.workload.simulate",
            "trace": {
                "name": info.name,
                "format": info.format,
                "source": info.source,
                "block_tokens": info.block_tokens,
                "tokens_are": info.tokens_are.value,
                "synthetic": info.synthetic,
                "notes": list(info.notes),
            },
            "skipped": dict(self.skipped.counts),
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "requests": self.requests,
            "counted_requests": self.requests - first,
            "distinct_blocks": self.distinct_blocks,
            "blocks": _total(self.blocks[first:]),
            "input_tokens": _total(self.input_tokens[first:]),
            "recomputed_tokens": _total(self.recomputed_tokens[first:]),
            "hit_rate": {
                **self.hit_rate().as_json(),
                "by_tier": {tier: self.hit_rate(tier).as_json() for tier in self._tiers()},
            },
            "requests_by_replica": np.bincount(
                self.replica[first:], minlength=self.replicas
            ).tolist(),
            **self._seconds(first),
        }

    def _tiers(self) -> list[str]:
        levels = self.settings["levels"]
        assert isinstance(levels, list)
        return [level["tier"] for level in levels]

    def _seconds(self, first: int) -> dict[str, Any]:
        if self.costs is None:
            names = ("busy", "ttft_s", "restore_s", "wait_s", "gpu_s", "gpu_money", "costs")
            return dict.fromkeys(names)
        return {
            "busy": self.busy(),
            "ttft_s": _spread(self.ttft_s[first:]),
            "restore_s": _spread(self.restore_s[first:]),
            "wait_s": _spread(self.wait_s[first:]),
            "gpu_s": self.gpu_seconds(),
            "gpu_money": self.money(),
            "costs": self.costs.as_json(),
        }


def _total(values: NDArray[Any]) -> int:
    return int(values.sum(dtype=np.uint64))


def _share(part: Any, whole: int) -> float:
    return float(part) / whole if whole else 0.0


def _spread(values: Seconds) -> dict[str, float] | None:
    """Quantiles are values that occurred: the least that so many are not above."""
    if not len(values):
        return None
    p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99], method="inverted_cdf").tolist()
    return {
        "mean": float(values.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(values.max()),
    }
