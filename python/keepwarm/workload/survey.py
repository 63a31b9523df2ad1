"""One pass over a trace for sizing: its load, and the hit rate of a memory of every size."""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm._core import TraceCurve
from keepwarm.errors import ArgumentError
from keepwarm.workload.load import HitCurve, Load
from keepwarm.workload.measures import Estimate
from keepwarm.workload.trace import Progress, TokensAre, TraceSource

#: Capacities in each octave.
STEPS = 2
OCTAVES = 40
#: A memory that comes so near to the ideal is as good as unbounded.
NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class Survey:
    """What sizing starts from."""

    load: Load
    curve: HitCurve


def survey(source: TraceSource, progress: Progress | None = None, seed: int = 0) -> Survey:
    """Reads the trace once. Raises ArgumentError where it has no blocks to size for."""
    if source.info.tokens_are is TokensAre.LENGTHS_ONLY:
        raise ArgumentError(
            f"{source.info.name} has lengths only: what repeats cannot be seen, so that no size "
            "can be given; keepwarm workload describe says what lengths alone show"
        )
    load = Load()
    curve = TraceCurve(source.info.block_tokens, [], seed)
    for batch in source.batches(progress):
        load.add(batch)
        curve.feed(batch)
    return Survey(load, hit_curve(curve))


def hit_curve(curve: TraceCurve) -> HitCurve:
    """By tokens, at capacities up to where a larger one finds nothing more."""
    capacities = sorted({round(2 ** (step / STEPS)) for step in range(STEPS * OCTAVES + 1)})
    asked: list[int | None] = [*capacities, None]
    *points, ideal = (Estimate(*tokens) for _, tokens in curve.points(asked))
    enough = next(
        (at for at, point in enumerate(points) if point.value >= ideal.value - NEAR),
        len(points) - 1,
    )
    shown = zip(capacities[: enough + 1], points[: enough + 1], strict=True)
    return HitCurve.of([(float(blocks), point) for blocks, point in shown], ideal)
