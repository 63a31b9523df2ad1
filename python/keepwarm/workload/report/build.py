"""Gathers everything that a report says about one trace: reads it a few times, then draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keepwarm
from keepwarm.workload.costs import CostModel
from keepwarm.workload.describe import Description, description
from keepwarm.workload.geometry import Geometry
from keepwarm.workload.load import HitCurve
from keepwarm.workload.measures import measure
from keepwarm.workload.outcomes import SimulationResult
from keepwarm.workload.plan import Traffic
from keepwarm.workload.report import scorecard, sections
from keepwarm.workload.report.fleets import (
    Fleets,
    FleetShape,
    replicas_for,
    simulate_alone,
    simulate_fleets,
)
from keepwarm.workload.report.page import Headline, html
from keepwarm.workload.report.scorecard import Arguments, Figure
from keepwarm.workload.size import Sizing, size
from keepwarm.workload.survey import Survey, survey
from keepwarm.workload.targets import parse_target
from keepwarm.workload.trace import Progress, TokensAre, TraceSource
from keepwarm.workload.verdict import Advice

#: Grows only when a field is removed or means something else.
SCHEMA = 1
#: A longer trace is not simulated whole: it would take minutes and gigabytes.
SIMULATED_MAX = 2_000_000
#: Where no size pays, the fleet is simulated with this.
MEMORY_BYTES = 512 << 30
_TONES = {Advice.STRONG: "good", Advice.PILOT: "fair", Advice.NO: "poor", Advice.UNKNOWN: "fair"}


@dataclass(frozen=True, slots=True)
class Economy:
    """A model on its hardware, with its prices, and the fleet that is simulated."""

    geometry: Geometry
    costs: CostModel
    hardware: str
    fleet: FleetShape


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, as a page and as JSON."""

    description: Description
    curve: HitCurve | None
    sizing: Sizing | None
    traffic: Traffic | None
    fleets: Fleets | None
    figures: tuple[Figure, ...]
    documents: Mapping[str, Mapping[str, Any]]
    economy: Economy | None
    lacking: str  # why no fleet was simulated
    command: str

    def as_json(self) -> dict[str, Any]:
        """The scorecard and all that it came from; documented in docs/workload.md."""
        info = self.description.measures.info
        sizing = None
        if self.sizing is not None and self.traffic is not None and self.economy is not None:
            sizing = self.sizing.as_json(self.traffic, info, self.economy.geometry)
        return {
            "schema": SCHEMA,
            "kind": "keepwarm.workload.report",
            "version": keepwarm.__version__,
            "command": self.command,
            "scorecard": [figure.as_json() for figure in self.figures],
            "describe": self.description.as_json(),
            "size": sizing,
            "fleets": None
            if self.fleets is None
            else {kind: each.to_json() for kind, each in self.fleets.results.items()},
            "given": dict(self.documents),
        }

    def as_html(self) -> str:
        """One self-contained page."""
        info, measures = self.description.measures.info, self.description.measures
        found, economy = self.description.verdict, self.economy
        currency = "" if economy is None else economy.costs.prices.currency
        kind = "synthetic" if info.synthetic else info.format
        subtitle = (
            f"{info.name} ({kind}), {measures.requests:,} requests; keepwarm "
            f"{keepwarm.__version__}, made by: {self.command}"
        )
        block_bytes = None if self.traffic is None else self.traffic.block_bytes()
        parts = (
            sections.structure(self.description),
            sections.curve(self.curve, block_bytes),
            sections.money(self.sizing, currency, self.lacking),
            sections.fleet(self.fleets, self.lacking),
            sections.lint(self.documents.get("lint")),
            sections.scorecard(self.figures),
            sections.limits(self.description, self.figures, self.documents, economy is not None),
        )
        reasons = [sections.as_sentence(found.reason)]
        if self.sizing is not None:
            money = sections.as_sentence(self.sizing.reason, begins=False)
            reasons.append(f"At the stated prices: {money}")
        headline = Headline(
            f"Verdict: {found.advice.value}",
            _TONES[found.advice],
            " ".join(reasons),
            [(each.shown(), each.title()) for each in self._leading()],
            found.would_change,
        )
        return html(f"What repeats in {info.name}", subtitle, headline, parts)

    def _leading(self) -> list[Figure]:
        keys = (
            "hit_rate_prefix",
            "long_prefix_requests",
            "context_tokens_p50",
            "ttft_p50_without",
            "ttft_p50_with",
        )
        return [
            each
            for key in keys
            for each in self.figures
            if each.key == key and each.value is not None
        ]


def build(
    source: TraceSource,
    economy: Economy | None,
    documents: Mapping[str, Mapping[str, Any]],
    arguments: Arguments,
    progress: Progress | None = None,
) -> Report:
    """Reads the trace: twice, with a model five times more."""
    measures = measure(source, progress=progress)
    skipped = source.skipped().counts
    geometry = costs = None
    hardware = ""
    if economy is not None:
        geometry, costs, hardware = economy.geometry, economy.costs, economy.hardware
    found = description(measures, geometry, costs, hardware, skipped)
    curve = sizing = traffic = fleets = None
    lacking = "--model, and a trace with blocks"
    if measures.info.tokens_are is not TokensAre.LENGTHS_ONLY:
        surveyed = survey(source, progress)
        curve = surveyed.curve
        if economy is not None:
            shape, costs, block_tokens = economy.fleet, economy.costs, measures.info.block_tokens
            replicas = shape.replicas or _replicas(surveyed, costs, block_tokens)
            alone = None
            if measures.requests <= SIMULATED_MAX:
                alone = simulate_alone(source, shape, replicas, costs, progress)
            traffic = _traffic(surveyed, economy, block_tokens, replicas, alone)
            sizing = size(traffic, parse_target("money"))
            lacking = f"a part of the trace: of more than {SIMULATED_MAX:,} requests none are"
            lacking = f"{lacking} simulated here"
            if alone is not None:
                memory = shape.memory_bytes or sizing.best.bytes() or MEMORY_BYTES
                fleets = simulate_fleets(source, shape, replicas, memory, alone, progress)
    figures = (
        *scorecard.structure(found, arguments),
        *scorecard.fleet(fleets, arguments, lacking),
        *scorecard.measured(documents),
    )
    command = f"keepwarm workload report {arguments.report}"
    return Report(
        found, curve, sizing, traffic, fleets, figures, documents, economy, lacking, command
    )


def _replicas(surveyed: Survey, costs: CostModel, block_tokens: int) -> int:
    everything = Traffic(surveyed.load, surveyed.curve, costs, block_tokens).prefill_s()
    return replicas_for(everything, surveyed.load.span_s)


def _traffic(
    surveyed: Survey,
    economy: Economy,
    block_tokens: int,
    replicas: int,
    alone: SimulationResult | None,
) -> Traffic:
    """Engines count as the one memory that finds what they find by themselves, simulated."""
    made = Traffic(surveyed.load, surveyed.curve, economy.costs, block_tokens)
    pooled = replicas * economy.fleet.engine_bytes / made.block_bytes()
    if alone is None:
        return replace(made, engine_blocks=pooled)
    rate = float(alone.to_json()["hit_rate"]["token"] or 0.0)
    same = surveyed.curve.needed(rate)
    return replace(
        made,
        engine_blocks=pooled if same is None else same,
        engines_are=f"which is {100 * rate:.1f} % of the tokens for the fleet simulated below",
    )
