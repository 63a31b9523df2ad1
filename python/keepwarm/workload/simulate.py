"""Replays a whole trace through tiers, policies and routers: what would have hit, and when.

Nothing is sampled: every block of every request passes through the store's own policies, in the
native core. `keepwarm workload curve` answers for all capacities at once, from a sample.

A request meets its replica's own memory (device, host), then the memory below (dram, flash,
object), which all replicas share or each has to itself. A hit is a block of the unbroken prefix.
Then all blocks are stored where they are missing and used where they are, a prompt's tail first.

The seconds are a model (`keepwarm.workload.costs`), not a measurement:

    prefill of positions f..t = c + a·(t - f) + b·(f + ... + (t - 1))
    restore from a tier       = wait for its link + latency + bytes / bytes a second
    TTFT                      = restore, then wait for the replica's GPU, then prefill

A replica prefills one request after the other, in the order in which their blocks are there. A
tier's link carries one transfer after the other: a memory that replicas share, shares its
bandwidth. What a request stores is there for the next one at once. The last token of a prompt is
computed always. Answers (decode) are left out: they take GPU time that is the same with any memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from keepwarm import _core
from keepwarm.errors import ArgumentError
from keepwarm.workload.costs import CostModel
from keepwarm.workload.outcomes import TIERS, SimulationResult, columns
from keepwarm.workload.trace import Progress, TraceSource
from keepwarm.workload.twin import NodeModel, NodeRow

__all__ = ["OPT", "Level", "Router", "Settings", "policies", "simulate"]

#: The policy that knows what comes: not one that a memory could have.
OPT = "opt"
#: What OPT may take by default; it has to know all of a trace's blocks at once.
OPT_BYTES_MAX = 4 << 30
#: A prefix-hash router looks at the first blocks, up to so many tokens.
PREFIX_TOKENS = 256

REPLICAS_MAX = 4096
Router = Literal["round-robin", "sticky", "prefix-hash", "kv-aware"]


def policies() -> list[str]:
    """Names of all policies, the store's default first."""
    return [*_core.sim_policies(), OPT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tier. Capacities of device and host are each replica's; of others, the whole fleet's."""

    tier: str  # device, host, dram, flash or object
    capacity_blocks: int | None = None  # None: unbounded
    policy: str = "default"
    ttl_s: float | None = None  # from when a block was stored, however often it is used
    #: second-use: only blocks that an earlier request has asked for.
    admission: Literal["all", "second-use"] = "all"
    #: demotion: only what the next nearer tier lets go of to make room.
    source: Literal["requests", "demotion"] = "requests"

    def is_own(self) -> bool:
        """Whether it is a replica's in any case."""
        return self.tier in ("device", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A fleet and how it is watched."""

    levels: tuple[Level, ...]  # nearest first
    #: Stands for dram and flash: a node exactly as it runs, with its ghost list, its admission and
    #: its segments. Its bytes are the whole fleet's.
    node: NodeModel | None = None
    replicas: int = 1
    router: Router = "round-robin"
    #: Of the prefix-hash router; None: the blocks of the first 256 tokens.
    prefix_blocks: int | None = None
    #: Whether replicas share dram, flash and object, or each has an equal part to itself.
    shared: bool = True
    #: None: nothing is said about seconds.
    costs: CostModel | None = None
    #: Restore only as much as brings the first token sooner than computing it. Otherwise all that
    #: is found is restored, and hit rates depend on sizes alone.
    planned: bool = False
    #: The first so many (0 to 1) of the requests warm up and are not counted.
    count_from: float = 0.0
    #: Use a prompt's first block first: what some published tables did.
    head_first: bool = False
    opt_bytes_max: int = OPT_BYTES_MAX

    def is_opt(self) -> bool:
        """Whether the future has to be known."""
        return any(level.policy == OPT for level in self.levels)


def simulate(
    source: TraceSource, settings: Settings, progress: Progress | None = None
) -> SimulationResult:
    """Replays a trace; with OPT reads it twice.

    Holds about 90 bytes for each request and, exactly, for each distinct block 30 bytes and 4 for
    each memory that may have it. Raises ArgumentError for settings that cannot be, and for OPT over
    a trace that takes more than `opt_bytes_max`.
    """
    _check(settings)
    info = source.info
    foresight = _foresight(source, settings, progress) if settings.is_opt() else None
    prefix_blocks = settings.prefix_blocks
    if prefix_blocks is None:
        prefix_blocks = max(1, PREFIX_TOKENS // info.block_tokens)
    simulation = _core.Simulation(
        [_row(level, settings) for level in settings.levels],
        block_tokens=info.block_tokens,
        replicas=settings.replicas,
        router=settings.router,
        prefix_blocks=prefix_blocks,
        shared=settings.shared,
        head_first=settings.head_first,
        costs=_costs(settings.costs),
        planned=settings.planned,
        foresight=foresight,
        node=_node(settings),
    )
    requests, unknown, span_s = 0, 0, 0.0
    for batch in source.batches(progress):
        simulation.feed(batch)
        span_s = float(batch.times_s[-1]) if len(batch) else span_s
        requests += len(batch)
        unknown += len(batch) - int(np.count_nonzero(batch.sessions))
    found, distinct = simulation.finish()
    return SimulationResult(
        info=info,
        skipped=source.skipped(),
        settings=_as_json(settings, prefix_blocks),
        notes=tuple(_notes(settings, unknown / requests if requests else 0.0)),
        costs=settings.costs,
        replicas=settings.replicas,
        count_from=settings.count_from,
        distinct_blocks=distinct,
        span_s=span_s,
        **columns(found),
    )


def _check(settings: Settings) -> None:
    if not 0 <= settings.count_from < 1:
        raise ArgumentError(f"count_from is {settings.count_from}: give a share, 0 up to below 1")
    if settings.prefix_blocks is not None and not 0 < settings.prefix_blocks < 1 << 32:
        raise ArgumentError(f"prefix_blocks is {settings.prefix_blocks}: give 1 to 2^32 - 1")
    if not 0 < settings.replicas <= REPLICAS_MAX:
        raise ArgumentError(f"replicas is {settings.replicas}: give 1 to {REPLICAS_MAX}")
    if settings.router == "kv-aware" and settings.costs is None:
        raise ArgumentError("the kv-aware router weighs seconds: say which model (--model)")
    if settings.planned and settings.costs is None:
        raise ArgumentError("a planner weighs seconds: say which model (--model)")
    if settings.is_opt():
        level = settings.levels[0]
        is_plain = level == Level(
            tier=level.tier, capacity_blocks=level.capacity_blocks, policy=OPT
        )
        if len(settings.levels) > 1 or settings.replicas > 1 or not is_plain:
            raise ArgumentError(
                "opt is for one replica and one tier that takes all blocks: the future of several "
                "depends on what each of them does"
            )


def _node(settings: Settings) -> NodeRow | None:
    node = settings.node
    if node is None:
        return None
    if settings.is_opt() or settings.head_first:
        raise ArgumentError("a node has policies of its own, and is asked tail first")
    if not settings.shared:
        parts, flash = settings.replicas, node.flash
        node = replace(
            node,
            capacity_bytes=node.capacity_bytes // parts,
            flash=flash and replace(flash, device_bytes=flash.device_bytes // parts),
        )
    return node.row()


def _row(level: Level, settings: Settings) -> tuple[str, int | None, str, float | None, bool, bool]:
    capacity = level.capacity_blocks
    if capacity is not None and not settings.shared and not level.is_own():
        if capacity < settings.replicas:
            raise ArgumentError(
                f"{level.tier} of {capacity} blocks cannot be parted among {settings.replicas} "
                "replicas: give more, or share it"
            )
        capacity //= settings.replicas
    if capacity is not None and not 0 < capacity < 1 << 32:
        raise ArgumentError(f"{level.tier} of {capacity} blocks: give 1 to 2^32 - 1, or no end")
    return (
        level.tier,
        capacity,
        "default" if level.policy == OPT else level.policy,
        level.ttl_s,
        level.admission == "second-use",
        level.source == "demotion",
    )


def _costs(
    costs: CostModel | None,
) -> tuple[float, float, float, float, list[tuple[float, float]]]:
    if costs is None:
        return 0.0, 0.0, 0.0, 0.0, [(0.0, 1.0)] * len(TIERS)
    links = [(costs.restore[tier].latency_s, costs.restore[tier].bytes_per_s) for tier in TIERS]
    return (
        costs.prefill_fixed_s,
        costs.prefill_token_s,
        costs.prefill_position_s,
        costs.kv_bytes_per_token,
        links,
    )


def _foresight(
    source: TraceSource, settings: Settings, progress: Progress | None
) -> _core.Foresight:
    foresight = _core.Foresight()
    for batch in source.batches(progress):
        foresight.feed(batch)
        if foresight.bytes() > settings.opt_bytes_max:
            raise ArgumentError(
                f"opt over this trace takes more than {settings.opt_bytes_max >> 20} MiB, as it "
                "has to know all blocks at once: give a shorter trace, or ask keepwarm workload "
                "curve for what an unbounded memory hits"
            )
    return foresight


def _as_json(settings: Settings, prefix_blocks: int) -> Mapping[str, object]:
    return {
        "levels": [
            {
                "tier": level.tier,
                "capacity_blocks": level.capacity_blocks,
                "of": "each replica" if level.is_own() else "the fleet",
                "policy": level.policy,
                "ttl_s": level.ttl_s,
                "admission": level.admission,
                "source": level.source,
            }
            for level in settings.levels
        ]
        + ([] if settings.node is None else _node_levels(settings.node)),
        "node": settings.node and asdict(settings.node),
        "replicas": settings.replicas,
        "router": settings.router,
        "prefix_blocks": prefix_blocks if settings.router == "prefix-hash" else None,
        "memory": "shared" if settings.shared else "local",
        "planned": settings.planned,
        "used_first": "head" if settings.head_first else "tail",
    }


def _node_levels(node: NodeModel) -> list[dict[str, object]]:
    sizes = {"dram": node.capacity_bytes}
    if node.flash is not None:
        sizes["flash"] = node.flash.device_bytes
    return [
        {
            "tier": tier,
            "capacity_blocks": size // node.block_bytes,
            "of": "the fleet",
            "policy": node.policy if tier == "dram" else "the node's log of segments",
            "ttl_s": None,
            "admission": "all" if node.flash is None or tier == "dram" else node.flash.admission,
            "source": "node",
        }
        for tier, size in sizes.items()
    ]


def _notes(settings: Settings, unknown: float) -> list[str]:
    """What a reader should know before believing figures."""
    notes = ["what a request stores is there for the next one at once, before it is computed"]
    if settings.node is not None:
        notes.append("the node has settled its background work before the next request comes")
    if settings.costs is None:
        notes.append("no model was given: nothing is said about seconds")
    else:
        notes.append("seconds come from the stated cost model; answers (decode) are left out")
    if settings.router == "sticky" and unknown:
        notes.append(
            f"{100 * unknown:.1f} % of requests name no session: these go round the replicas"
        )
    if settings.router == "kv-aware":
        notes.append("the router knows all memories and queues exactly, as no real one does")
    if settings.is_opt():
        notes.append("opt knows the future: a bound for policies, none of them")
    return notes
