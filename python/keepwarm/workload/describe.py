"""A trace's structure, what a model would keep for it, and the verdict: one object for reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from keepwarm.workload.costs import CostModel
from keepwarm.workload.geometry import Geometry
from keepwarm.workload.measures import Distribution, Measures
from keepwarm.workload.verdict import Prefill, Verdict, verdict

#: Grows only when a field is removed or means something else.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class KvFigures:
    """Bytes that a model would keep for this traffic."""

    geometry: Geometry
    block_bytes: float  # one block in a memory
    #: An engine's memory for a session at its end, at quantiles of length; sessions known only.
    session_bytes: Mapping[str, int]
    #: For one request's prompt.
    prompt_bytes: Mapping[str, int]
    working_set_bytes: float  # every distinct block once
    working_set_error: float


@dataclass(frozen=True, slots=True)
class Description:
    """What `keepwarm workload describe` says."""

    measures: Measures
    verdict: Verdict
    kv: KvFigures | None
    skipped: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Documented in docs/workload.md, and stable within a schema number."""
        shown: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "keepwarm.workload.describe",
            "measures": plain(self.measures),
            "verdict": self.verdict.as_json(),
            "kv": None,
            "skipped": dict(self.skipped),
        }
        if self.kv is not None:
            shown["kv"] = self.kv.geometry.as_json() | {
                "block_bytes": self.kv.block_bytes,
                "session_bytes": dict(self.kv.session_bytes),
                "prompt_bytes": dict(self.kv.prompt_bytes),
                "working_set_bytes": self.kv.working_set_bytes,
                "working_set_error": self.kv.working_set_error,
            }
        return shown


def description(
    measures: Measures,
    geometry: Geometry | None = None,
    costs: CostModel | None = None,
    hardware: str = "",
    skipped: Mapping[str, int] | None = None,
) -> Description:
    """Puts it together; with `costs` the verdict says what prompts take to compute."""
    prefill = None
    if geometry is not None and costs is not None and measures.requests:
        mean = round(measures.input_length.mean)
        prefill = Prefill(
            seconds=costs.prefill_s(0, mean),
            again_s=costs.prefill_s(0, round(mean * measures.reuse_by_prefix.tokens.value)),
            restore_s=costs.restore_s("dram", mean),
            model=geometry.model,
            hardware=hardware,
        )
    return Description(
        measures,
        verdict(measures, prefill),
        None if geometry is None else _kv(measures, geometry),
        dict(skipped or {}),
    )


def _kv(measures: Measures, geometry: Geometry) -> KvFigures:
    block_tokens = measures.info.block_tokens
    block = block_tokens * geometry.stored_bytes_per_token(block_tokens)
    distinct = measures.distinct_blocks
    return KvFigures(
        geometry,
        block,
        _quantiles(measures.sessions.tokens_at_end, geometry),
        _quantiles(measures.input_length, geometry),
        distinct.value * block,
        distinct.error * block,
    )


def _quantiles(lengths: Distribution, geometry: Geometry) -> dict[str, int]:
    if not lengths.count:
        return {}
    return {
        name: geometry.session_bytes(round(getattr(lengths, name)))
        for name in ("mean", "p50", "p90", "p99", "largest")
    }


def plain(value: Any) -> Any:
    """Dataclasses, enums and numbers as JSON has them; what is no number there becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value
