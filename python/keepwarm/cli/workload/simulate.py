"""`keepwarm workload simulate`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from keepwarm.cli.output import rows_table, wide_console, write_result
from keepwarm.cli.workload.options import CostOptions, TraceOptions, reading, tell_skipped
from keepwarm.config import parse_duration, parse_size
from keepwarm.errors import ArgumentError

if TYPE_CHECKING:
    from keepwarm.workload.costs import CostModel
    from keepwarm.workload.outcomes import SimulationResult
    from keepwarm.workload.simulate import Level
    from keepwarm.workload.twin import NodeModel

UNBOUNDED = "unbounded"
PAGE_BYTES = 4096


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """How large each tier is, and what it does with blocks."""

    capacity_blocks: Annotated[
        int | None, Parameter(help="One tier (dram) of so many blocks; 0: unbounded.")
    ] = None
    unbounded: Annotated[
        bool, Parameter(negative=(), help="One tier (dram) without an end: the most there is.")
    ] = False
    capacity: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="TIER=SIZE, once for each tier, such as dram=64GiB or object=unbounded. device "
            "and host are each replica's, the others the whole fleet's. Needs --model or "
            "--kv-bytes-per-token.",
        ),
    ] = ()
    kv_bytes_per_token: Annotated[
        float | None, Parameter(help="What a token's KV takes, instead of what the model says.")
    ] = None
    policy: Annotated[
        str,
        Parameter(
            help="default (adaptive, the store's own), lru, fifo, s3fifo, lfu or opt (knows the "
            "end)."
        ),
    ] = "default"
    ttl: Annotated[
        str | None,
        Parameter(help="Blocks end so long after they were stored: in dram, flash and object."),
    ] = None
    second_use: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="A tier that takes only blocks that were asked for before.",
        ),
    ] = ()
    demoted: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="A tier that takes only what the next nearer one lets go of.",
        ),
    ] = ()
    as_node: Annotated[
        Literal["reuse", "all"] | None,
        Parameter(
            help="dram and flash are a node exactly as it runs, block by block: its list of "
            "evictions, its segments, what it writes again. Says what it writes to flash: reuse "
            "(its default) or all."
        ),
    ] = None
    head_first: Annotated[
        bool,
        Parameter(negative=(), help="Use a prompt's first block first, as some tables do."),
    ] = False

    def levels(self, block_tokens: int, costs: CostModel | None) -> tuple[Level, ...]:
        """Nearest first; raises ArgumentError that says what to give."""
        from keepwarm.workload.costs import TIERS

        ttl_s = None if self.ttl is None else parse_duration(self.ttl, "ttl")
        blocks = dict(self._blocks(block_tokens, costs))
        for name in (*self.second_use, *self.demoted):
            if name not in blocks:
                raise ArgumentError(f"{name!r} has no capacity: give --capacity {name}=SIZE")
        return tuple(
            self._level(tier, blocks[tier], ttl_s if tier not in ("device", "host") else None)
            for tier in TIERS
            if tier in blocks
        )

    def adjusted(self, costs: CostModel) -> CostModel:
        """With what a token's KV takes, where that was said."""
        said = self.kv_bytes_per_token
        return costs if said is None else replace(costs, kv_bytes_per_token=said)

    def parts(
        self, block_tokens: int, costs: CostModel | None
    ) -> tuple[tuple[Level, ...], NodeModel | None]:
        """The levels, nearest first, and the node that stands for some of them, if one does."""
        levels = self.levels(block_tokens, costs)
        node = self._node(levels, block_tokens, costs)
        return (levels if node is None else tuple(each for each in levels if each.is_own())), node

    def _node(
        self, levels: tuple[Level, ...], block_tokens: int, costs: CostModel | None
    ) -> NodeModel | None:
        from keepwarm.workload.twin import NodeFlash, NodeModel

        if self.as_node is None:
            return None
        sizes = {level.tier: level.capacity_blocks for level in levels if not level.is_own()}
        memory, flash = sizes.pop("dram", None), sizes.pop("flash", 0)
        if memory is None or flash is None or sizes or self.ttl or self.demoted or self.second_use:
            raise ArgumentError(
                "as-node is for dram and flash of given sizes, with the node's own rules: give "
                "--capacity dram=SIZE, and flash=SIZE, without --ttl, --demoted and --second-use"
            )
        block_bytes = round(self._token_bytes(costs) * block_tokens)
        return NodeModel(
            capacity_bytes=memory * -(-block_bytes // PAGE_BYTES) * PAGE_BYTES,
            block_bytes=block_bytes,
            policy=self.policy,
            flash=NodeFlash(flash * block_bytes, None, self.as_node) if flash else None,
        )

    def _level(self, tier: str, blocks: int | None, ttl_s: float | None) -> Level:
        from keepwarm.workload.simulate import Level

        return Level(
            tier=tier,
            capacity_blocks=blocks,
            policy=self.policy,
            ttl_s=ttl_s,
            admission="second-use" if tier in self.second_use else "all",
            source="demotion" if tier in self.demoted else "requests",
        )

    def _blocks(
        self, block_tokens: int, costs: CostModel | None
    ) -> Iterator[tuple[str, int | None]]:
        from keepwarm.workload.costs import TIERS

        ways = (self.capacity_blocks is not None) + self.unbounded + bool(self.capacity)
        if ways != 1:
            raise ArgumentError(
                "say how large the memory is, in one way: --capacity-blocks N, --unbounded, or "
                "--capacity TIER=SIZE for each tier"
            )
        if not self.capacity:
            if self.capacity_blocks is not None and self.capacity_blocks < 0:
                raise ArgumentError(f"capacity-blocks is {self.capacity_blocks}: give 0 or more")
            yield "dram", self.capacity_blocks or None
            return
        for each in self.capacity:
            tier, _, size = each.partition("=")
            if tier not in TIERS or not size:
                raise ArgumentError(f"capacity is {each!r}: give one of {', '.join(TIERS)}=SIZE")
            if size == UNBOUNDED:
                yield tier, None
                continue
            yield tier, self._in_blocks(tier, parse_size(size, "capacity"), block_tokens, costs)

    def _in_blocks(self, tier: str, size: int, block_tokens: int, costs: CostModel | None) -> int:
        token_bytes = self._token_bytes(costs)
        blocks = int(size / (token_bytes * block_tokens))
        if blocks < 1:
            raise ArgumentError(
                f"{tier} of {size} bytes holds no block of {block_tokens} tokens, "
                f"{token_bytes:g} bytes each: give more"
            )
        return blocks

    def _token_bytes(self, costs: CostModel | None) -> float:
        token_bytes = self.kv_bytes_per_token or (costs and costs.kv_bytes_per_token)
        if not token_bytes or not 0 < token_bytes < math.inf:
            raise ArgumentError(
                "a capacity in bytes needs to know what a token takes: give --model or "
                "--kv-bytes-per-token"
            )
        return token_bytes


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Replicas, how requests reach them, and what they share."""

    replicas: Annotated[int, Parameter(help="Engines that serve the trace.")] = 1
    router: Annotated[
        Literal["round-robin", "sticky", "prefix-hash", "kv-aware"],
        Parameter(
            help="sticky: by session. prefix-hash: by a prompt's first blocks. kv-aware: to the "
            "replica that promises the first token soonest."
        ),
    ] = "round-robin"
    prefix_blocks: Annotated[
        int | None, Parameter(help="Blocks that prefix-hash looks at. Default: 256 tokens' worth.")
    ] = None
    shared: Annotated[
        bool,
        Parameter(
            negative="--local",
            help="Whether dram, flash and object are one for all, or each replica has a part.",
        ),
    ] = True


def simulate(
    traces: Annotated[tuple[str, ...], Parameter(negative=(), allow_leading_hyphen=True)],
    /,
    *,
    model: str | None = None,
    planner: Annotated[bool, Parameter(negative=())] = False,
    count_from: float = 0.0,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    memory: MemoryOptions | None = None,
    fleet: FleetOptions | None = None,
    trace: TraceOptions | None = None,
    cost: CostOptions | None = None,
) -> None:
    """Replay a trace through a memory: what hits, and, for a model, when answers begin.

    Every block of every request goes through the policies that a node
    runs, exactly. With --model there are seconds: prefill, restore by
    tier, queues, shared links, by docs/workload.md; answers left out.

      keepwarm workload simulate requests.jsonl --policy lru --capacity-blocks 10000
      keepwarm workload simulate requests.jsonl --model Llama-3.1-8B --replicas 4 \\
        --router kv-aware --capacity device=20GiB --capacity dram=256GiB --local

    Parameters
    ----------
    traces
        Logs of one format, plain, .gz or .zst; several are read as one; - is standard input.
    model
        A model's name, or its config.json: for seconds, and for capacities in bytes.
    planner
        Restore only as much of a prefix as brings the first token sooner than computing it.
    count_from
        A share: 0.5 takes the first half of the requests as warm-up, which is not counted.
    json_
        All figures, as one JSON object.
    """
    from keepwarm.workload.simulate import Settings
    from keepwarm.workload.simulate import simulate as simulated

    memory, cost = memory or MemoryOptions(), cost or CostOptions()
    source = (trace or TraceOptions()).open(traces, "simulate")
    block_tokens = source.info.block_tokens
    costs = None if model is None else memory.adjusted(cost.costs(cost.model(model), block_tokens))
    levels, node = memory.parts(block_tokens, costs)
    settings = Settings(
        levels=levels,
        node=node,
        costs=costs,
        planned=planner,
        count_from=count_from,
        head_first=memory.head_first,
        **asdict(fleet or FleetOptions()),
    )
    with reading("replaying") as progress:
        result = simulated(source, settings, progress)
    if json_:
        write_result(json.dumps(result.to_json(), indent=1))
        return
    tell_skipped(source)
    _show(result)


def _show(result: SimulationResult) -> None:
    from rich.text import Text

    console = wide_console()
    found = result.to_json()
    console.print(rows_table(_rows(found)))
    console.print()
    console.print(_tiers(found))
    if found["ttft_s"] is not None:
        console.print()
        console.print(_seconds(found))
    console.print()
    for note in (*found["trace"]["notes"], *found["notes"]):
        console.print(Text(f"- {note}"))


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    trace, settings, rate = found["trace"], found["settings"], found["hit_rate"]
    kind = ", synthetic" if trace["synthetic"] else ""
    tokens = "" if trace["tokens_are"] == "exact" else f", tokens are {trace['tokens_are']}"
    yield "trace", f"{trace['name']} ({trace['format']}{kind}{tokens})"
    counted, requests = found["counted_requests"], found["requests"]
    warm = f", of which the last {counted:,} count" if counted < requests else ""
    yield (
        "requests",
        f"{requests:,}{warm}; {found['input_tokens']:,} tokens, {found['blocks']:,} blocks of "
        f"{trace['block_tokens']}, {found['distinct_blocks']:,} distinct",
    )
    replicas = settings["replicas"]
    if replicas > 1:
        most = max(found["requests_by_replica"])
        yield (
            "replicas",
            f"{replicas}, {settings['router']}, memory {settings['memory']}; "
            f"the busiest has {100 * most / max(1, counted):.1f} % of requests",
        )
    yield "hit rate", f"{rate['block']:.4f} of blocks, {rate['token']:.4f} of tokens"
    yield "recomputed", f"{found['recomputed_tokens']:,} tokens"
    if (gpu := found["gpu_s"]) is not None:
        saved = gpu["saved"] / gpu["without"] if gpu["without"] else 0.0
        yield (
            "prefill",
            f"{gpu['spent']:,.0f} GPU-seconds; without any memory {gpu['without']:,.0f}: "
            f"{100 * saved:.1f} % saved",
        )
        if (busy := found["busy"]) is not None:
            full = ": queues only grow, give more --replicas" if busy >= 1 else ""
            yield "replicas busy", f"{100 * busy:.0f} % of the time{full}"
        money = found["gpu_money"]
        yield (
            "their price",
            f"{money['spent']:,.2f} {money['currency']}; {money['saved']:,.2f} saved",
        )


def _tiers(found: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tier")
    table.add_column("blocks", justify="right")
    table.add_column("policy")
    for name in ("hits of blocks", "hits of tokens"):
        table.add_column(name, justify="right")
    for level in found["settings"]["levels"]:
        rate = found["hit_rate"]["by_tier"][level["tier"]]
        capacity = level["capacity_blocks"]
        table.add_row(
            level["tier"],
            UNBOUNDED if capacity is None else f"{capacity:,} of {level['of']}",
            level["policy"],
            f"{rate['block']:.4f}",
            f"{rate['token']:.4f}",
        )
    return table


def _seconds(found: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("seconds")
    names = ("mean", "p50", "p90", "p99", "max")
    for name in names:
        table.add_column(name, justify="right")
    for label, key in (
        ("to first token", "ttft_s"),
        ("of which restore", "restore_s"),
        ("of which queue", "wait_s"),
    ):
        spread = found[key] or dict.fromkeys(names, 0.0)
        table.add_row(label, *(f"{spread[name]:.3f}" for name in names))
    return table
