"""From a target to a memory: how much of each tier, how many nodes, which network, and if it pays.

`size` answers one target for one trace; where the answer is that there is none, it says why. Every
figure that comes from the curve has the curve's error; what it rests on is in `sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from keepwarm.workload.describe import plain
from keepwarm.workload.geometry import Geometry
from keepwarm.workload.plan import Plan, Traffic
from keepwarm.workload.targets import Target, Wanted
from keepwarm.workload.trace import TraceInfo

#: Grows only when a field is removed or means something else.
SCHEMA = 1
#: Capacities tried between each two of the curve.
BETWEEN = 4
FACTORS = (0.5, 0.8, 1.2, 1.5)
#: What is varied; growth is the same traffic so many times as often, with as many more users.
VARIED = (
    *("gpu_hour", "dram_gib_month", "flash_gib_month", "node_month"),
    *("prefill", "restore", "growth"),
)
_BISECTIONS = 60
#: A P99 below this share of what it was is a memory's doing, target reached or not.
HELPS = 0.9

#: P99 seconds to the first token with a memory of so many blocks, by simulation.
P99 = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where a memory begins and ceases to pay; None where none pays."""

    smallest_blocks: float | None
    largest_blocks: float | None
    gpu_hour: float  # the price from which on a memory of the best size pays
    at_blocks: float  # that size

    def as_json(self, block_bytes: float) -> dict[str, Any]:
        """In blocks and bytes."""

        def size(blocks: float | None) -> dict[str, int] | None:
            if blocks is None:
                return None
            return {"blocks": math.ceil(blocks), "bytes": math.ceil(blocks * block_bytes)}

        return {
            "smallest": size(self.smallest_blocks),
            "largest": size(self.largest_blocks),
            "gpu_hour": self.gpu_hour if math.isfinite(self.gpu_hour) else None,
            "gpu_hour_at": size(self.at_blocks),
        }


@dataclass(frozen=True, slots=True)
class Varied:
    """The answer where one thing is otherwise; no plan: there is none then."""

    what: str
    factor: float
    plan: Plan | None

    def as_json(self) -> dict[str, Any]:
        """Its capacity and its money."""
        return {
            "what": self.what,
            "factor": self.factor,
            "capacity_bytes": None if self.plan is None else self.plan.bytes(),
            "net_month": None if self.plan is None else self.plan.net.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer to one target."""

    target: Target
    plan: Plan | None
    reason: str
    #: Capacities in blocks at the good and the bad end of the curve's error; None: not reached.
    blocks_low: float | None
    blocks_high: float | None
    break_even: BreakEven
    best: Plan  # what leaves most money, whatever the target; no capacity where none pays
    points: tuple[Plan, ...]
    sensitivity: tuple[Varied, ...]
    p99_ttft_s: float | None
    p99_ttft_without_s: float | None
    notes: tuple[str, ...]

    def as_json(self, traffic: Traffic, info: TraceInfo, geometry: Geometry) -> dict[str, Any]:
        """Documented in docs/workload.md, and stable within a schema number."""
        load, ideal = traffic.load, traffic.curve.ideal
        return {
            "schema": SCHEMA,
            "kind": "keepwarm.workload.size",
            "target": {"kind": self.target.wanted.value, "value": self.target.value},
            "answer": "none" if self.plan is None else "memory",
            "reason": self.reason,
            "plan": None if self.plan is None else self.plan.as_json(),
            "capacity_range": {
                "low_blocks": _whole(self.blocks_low),
                "high_blocks": _whole(self.blocks_high),
            },
            "p99_ttft_s": self.p99_ttft_s,
            "p99_ttft_without_s": self.p99_ttft_without_s,
            "best": self.best.as_json(),
            "curve": [each.as_json() for each in self.points],
            "ideal": {"value": ideal.value, "error": ideal.error},
            "break_even": self.break_even.as_json(traffic.block_bytes()),
            "sensitivity": [each.as_json() for each in self.sensitivity],
            "costs": traffic.costs.as_json(),
            "model": geometry.as_json(),
            "load": {
                "requests": load.requests,
                "span_s": load.span_s,
                "input_tokens": load.tokens,
                "tokens_per_s": load.tokens_per_s(),
                "tokens_per_s_peak": load.peak_tokens_per_s,
                "engine_cache_bytes": math.floor(traffic.engine_blocks * traffic.block_bytes()),
            },
            "trace": plain(info),
            "notes": [*info.notes, *self.notes],
        }


def _whole(blocks: float | None) -> int | None:
    return None if blocks is None else math.ceil(blocks)


def size(traffic: Traffic, target: Target, p99: P99 | None = None) -> Sizing:
    """What to buy for a target. `p99` is needed for the P99 target alone."""
    blocks, reason, reached = _answer(traffic, target, p99)
    plan = None if blocks is None else traffic.plan(blocks)
    low, high = _ends(traffic, target, blocks)
    points = tuple(traffic.plan(each) for each in traffic.curve.blocks)
    return Sizing(
        target=target,
        plan=plan,
        reason=reason,
        blocks_low=low,
        blocks_high=high,
        break_even=break_even(traffic),
        best=best(traffic),
        points=points,
        sensitivity=tuple(_sensitivity(traffic, target, blocks)),
        p99_ttft_s=reached[0],
        p99_ttft_without_s=reached[1],
        notes=tuple(_notes(traffic)),
    )


def best(traffic: Traffic) -> Plan:
    """The memory that leaves most money a month; none at all where every one costs more."""
    plans = [traffic.plan(blocks) for blocks in (0.0, *traffic.curve.grid(BETWEEN))]
    return max(plans, key=lambda plan: (plan.net.value, -plan.blocks))


def break_even(traffic: Traffic) -> BreakEven:
    """The smallest and the largest memory that pay, and the price of a GPU's hour that decides."""
    grid = [0.0, *traffic.curve.grid(BETWEEN)]
    plans = [traffic.plan(blocks) for blocks in grid]
    pays = [plan.net.value >= 0 and plan.blocks > 0 for plan in plans]
    smallest = largest = None
    if any(pays):
        first = pays.index(True)
        smallest = _edge(traffic, grid[first - 1], grid[first])
        last = len(pays) - 1 - pays[::-1].index(True)
        # Beyond the last capacity nothing more is found, so that a larger one only costs more.
        end = grid[last + 1] if last + 1 < len(grid) else _beyond(traffic, grid[last])
        largest = _edge(traffic, end, grid[last])
    hours = [(_gpu_hour(plan), plan.blocks) for plan in plans[1:]]
    price, at_blocks = min(hours)
    return BreakEven(smallest, largest, price, at_blocks)


def _edge(traffic: Traffic, out: float, within: float) -> float:
    """Where between a size that does not pay and one that does it begins to."""
    for _ in range(_BISECTIONS):
        middle = (out + within) / 2
        if middle > 0 and traffic.plan(middle).net.value >= 0:
            within = middle
        else:
            out = middle
    return within


def _beyond(traffic: Traffic, blocks: float) -> float:
    """A size that does not pay any more; ends, as costs grow with the size and savings do not."""
    while traffic.plan(blocks).net.value >= 0 and blocks < 1e18:
        blocks *= 2
    return blocks


def _gpu_hour(plan: Plan) -> float:
    hours = plan.gpu_seconds_saved.value / 3600
    return plan.spent.total() / hours if hours > 0 else math.inf


def _answer(
    traffic: Traffic, target: Target, p99: P99 | None
) -> tuple[float | None, str, tuple[float | None, float | None]]:
    if target.wanted is Wanted.HIT_RATE:
        return *_for_hit_rate(traffic, target.value), (None, None)
    if target.wanted is Wanted.MONEY:
        return *_for_money(traffic), (None, None)
    if p99 is None:
        raise ValueError("a P99 target needs a simulation")
    return _for_p99(traffic, target.value, p99)


def _for_hit_rate(traffic: Traffic, rate: float) -> tuple[float | None, str]:
    """The bad end of the error must reach it, so that the answer is not too small."""
    curve, ideal = traffic.curve, traffic.curve.ideal
    blocks = curve.needed(rate, -1)
    if blocks is not None and blocks <= traffic.engine_blocks:
        return 0.0, f"{100 * rate:g} % is what engines find in their own memory already"
    if blocks is not None:
        return blocks, f"{100 * rate:g} % is reached even at the low end of the curve's error"
    said = f"an unbounded memory would find {100 * ideal.value:.1f} % of the tokens"
    error = f" (± {100 * ideal.error:.1f})" if ideal.error else ""
    if ideal.value + ideal.error < rate:
        return None, (
            f"none: {said}{error}, which is below {100 * rate:g} %; no size changes that. "
            "keepwarm lint finds what keeps prefixes from repeating"
        )
    return None, (
        f"none that is sure: {said}{error}, so that {100 * rate:g} % is within the error; "
        "ask for a little less"
    )


def _for_money(traffic: Traffic) -> tuple[float | None, str]:
    found = best(traffic)
    money = traffic.costs.prices.currency
    if found.blocks > 0:
        return found.blocks, (
            f"it leaves most: {found.saved.value:,.0f} {money} a month of GPU time are saved for "
            f"{found.spent.total():,.0f} {money} spent"
        )
    plans = [traffic.plan(blocks) for blocks in traffic.curve.blocks]
    nearest = max(plans, key=lambda plan: plan.net.value)
    price = break_even(traffic).gpu_hour
    if not math.isfinite(price):
        return None, (
            "none: no memory saves anything, since nothing repeats or restoring takes longer than "
            "computing"
        )
    return None, (
        f"none: the memory that comes nearest saves {nearest.saved.value:,.2f} {money} a month and "
        f"costs {nearest.spent.total():,.2f}; from {price:,.2f} {money} a GPU hour on one pays"
    )


def _for_p99(
    traffic: Traffic, seconds: float, p99: P99
) -> tuple[float | None, str, tuple[float | None, float | None]]:
    """The smallest of the curve's capacities that reaches it, by halving: more is never slower."""
    without = p99(0.0)
    if without <= seconds:
        return 0.0, f"{seconds:g} s is reached without a memory: {without:.2f} s", (without,) * 2
    capacities = traffic.curve.blocks
    reached = p99(capacities[-1])
    if reached > seconds:
        rest = "what repeats is not what makes it slow, or engines are overloaded"
        if reached < HELPS * without:
            rest = "the rest is new text, restoring and waiting: for more replicas or faster links"
        return (
            None,
            f"none: with room for everything the P99 is still {reached:.2f} s (without a memory "
            f"{without:.2f} s); {rest}",
            (None, without),
        )
    low, high = -1, len(capacities) - 1
    while high - low > 1:
        middle = (low + high) // 2
        found = p99(capacities[middle])
        if found <= seconds:
            high, reached = middle, found
        else:
            low = middle
    return (
        capacities[high],
        f"the smallest simulated capacity with a P99 of {seconds:g} s or less: {reached:.2f} s, "
        f"against {without:.2f} s without a memory",
        (reached, without),
    )


def _ends(
    traffic: Traffic, target: Target, blocks: float | None
) -> tuple[float | None, float | None]:
    if target.wanted is Wanted.HIT_RATE:
        return traffic.curve.needed(target.value, 1), traffic.curve.needed(target.value, -1)
    return blocks, blocks


def _sensitivity(traffic: Traffic, target: Target, blocks: float | None) -> Iterator[Varied]:
    """A P99 is not simulated again: its capacity stays, and only the money is counted anew."""
    for what in VARIED:
        for factor in FACTORS:
            other = varied(traffic, what, factor)
            found = blocks
            if target.wanted is not Wanted.P99_TTFT:
                found = _answer(other, target, None)[0]
            elif blocks is not None and what == "growth":
                found = blocks * factor
            yield Varied(what, factor, None if found is None else other.plan(found))


def varied(traffic: Traffic, what: str, factor: float) -> Traffic:
    """The same traffic where one thing is `factor` times what it was."""
    if what == "growth":
        grown, curve = traffic.load.grown(factor), traffic.curve.stretched(factor)
        return replace(traffic, load=grown, curve=curve)
    return replace(traffic, costs=traffic.costs.scaled(**{what: factor}))


def _notes(traffic: Traffic) -> Iterator[str]:
    from keepwarm.workload.load import SPAN_SHORT_S

    yield (
        "a month is taken to be like this trace over and over; saved GPU time becomes money only "
        "where GPUs are given back or not bought"
    )
    if traffic.load.span_s < SPAN_SHORT_S:
        yield (
            f"the trace spans {traffic.load.span_s / 60:.0f} minutes: too little to speak for a "
            "month, which has nights and weekends"
        )
    if traffic.engine_blocks:
        yield (f"savings are beyond what engines find in their own memory, {traffic.engines_are}")
    else:
        yield (
            "what engines find in their own memory is not taken off: say --engine-cache to count "
            "only what a memory adds"
        )
    yield from _slow_tiers(traffic)


def _slow_tiers(traffic: Traffic) -> Iterator[str]:
    """Where restoring is slower than computing, or nearly: what the answer hangs on."""
    share, load, costs = traffic.curve.ideal.value, traffic.load, traffic.costs
    mean = round(load.mean_tokens() * share)
    if not mean:
        return
    kept = traffic.restorable("dram", share).requests / load.requests
    if kept < 0.5 / load.requests:
        yield "restoring from DRAM takes longer than computing here, so that nothing is saved"
        return
    if kept < 0.995:
        yield (
            f"restoring from DRAM takes longer than computing for {100 * (1 - kept):.0f} % of the "
            f"requests, with less than {costs.restored_from('dram'):,.0f} tokens to restore: "
            "nothing is saved there"
        )
    if not costs.pays_to_restore("flash", mean):
        yield "restoring from flash takes longer than computing here, so that none is used"
    elif not costs.scaled(restore=0.8).pays_to_restore("flash", mean):
        yield (
            "flash is hardly faster than computing: at four fifths of its rate none is used, and "
            "the answer is another (see what it is if the rate of restoring were otherwise)"
        )
