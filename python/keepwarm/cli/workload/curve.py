"""`keepwarm workload curve`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from keepwarm.cli.output import wide_console, write_result
from keepwarm.cli.workload.options import TraceOptions, reading, tell_skipped
from keepwarm.errors import ArgumentError

if TYPE_CHECKING:
    from keepwarm.workload.curve import Curve
    from keepwarm.workload.measures import Estimate

BAR = 30


def curve(
    traces: Annotated[tuple[str, ...], Parameter(negative=(), allow_leading_hyphen=True)],
    /,
    *,
    policy: Literal["lru", "fifo", "lfu", "s3fifo", "adaptive", "default"] = "lru",
    points: str | None = None,
    seed: int = 0,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    trace: TraceOptions | None = None,
) -> None:
    """Show the hit rate for each size of a memory, from one reading.

    One pass in bounded memory, whatever the trace's length: a sample of
    the blocks is watched, and each figure has the half width of its 99 %
    interval. Up to 131,072 distinct blocks all are watched: then figures
    are exact. For tiers, replicas and money see simulate and size.

      keepwarm workload curve requests.jsonl --points 1000,10000,100000

    Parameters
    ----------
    traces
        Logs of one format, plain, .gz or .zst; several are read as one; - is standard input.
    policy
        Which block leaves first: lru is the most exact. default is adaptive, the store's own.
    points
        Capacities in blocks, with commas between. Without it powers of two, up to all blocks.
    seed
        Chooses which blocks of a large trace are watched.
    json_
        One JSON object.
    """
    from keepwarm.workload.curve import measure_curve

    source = (trace or TraceOptions()).open(traces, "curve")
    with reading("reading") as progress:
        found = measure_curve(
            source,
            policy="adaptive" if policy == "default" else policy,
            capacities=_capacities(points),
            seed=seed,
            progress=progress,
        )
    if json_:
        write_result(json.dumps(found.as_json() | {"skipped": source.skipped().counts}, indent=1))
        return
    tell_skipped(source)
    _show(found)


def _capacities(points: str | None) -> list[int]:
    if points is None:
        return []
    try:
        return [int(each.replace("_", "")) for each in points.split(",")]
    except ValueError:
        raise ArgumentError(
            f"points {points!r}: pass whole numbers of blocks, such as 1000,10000"
        ) from None


def _show(found: Curve) -> None:
    from rich.table import Table
    from rich.text import Text

    console = wide_console()
    kind = ", synthetic" if found.info.synthetic else ""
    console.print(Text(f"{found.info.name}{kind}: {found.policy}", style="bold"))
    console.print(Text(_how(found)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("blocks", "tokens", "hit rate by block", "by token"):
        table.add_column(name, justify="right")
    table.add_column("")
    for point in found.points:
        capacity = point.capacity_blocks
        tokens = None if capacity is None else capacity * found.info.block_tokens
        table.add_row(
            "unbounded" if capacity is None else f"{capacity:,}",
            "" if tokens is None else f"{tokens:,}",
            _rate(point.blocks),
            _rate(point.tokens),
            Text("█" * round(BAR * point.tokens.value), style="green"),
        )
    console.print(table)


def _how(found: Curve) -> str:
    if found.watched_share >= 1:
        return f"exact: all {found.watched_blocks:,} distinct blocks were watched"
    return (
        f"from {found.watched_blocks:,} watched blocks, {100 * found.watched_share:.2f} % of all "
        f"({found.heavy_blocks} heavy ones counted whole); ± is half of a 99 % interval"
    )


def _rate(rate: Estimate) -> str:
    error = "" if rate.is_exact else f" ± {100 * rate.error:.2f}"
    return f"{100 * rate.value:.2f}{error} %"
