"""`keepwarm workload size`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from keepwarm.cli.output import rows_table, wide_console, write_result
from keepwarm.cli.workload.options import CostOptions, TraceOptions, reading, tell_skipped
from keepwarm.config import parse_size, show_size

if TYPE_CHECKING:
    from rich.console import Console

    from keepwarm.workload.costs import CostModel
    from keepwarm.workload.plan import Plan, Range, Traffic
    from keepwarm.workload.size import Sizing
    from keepwarm.workload.trace import TraceSource

SHOWN = 1024


def size(
    traces: Annotated[tuple[str, ...], Parameter(negative=(), allow_leading_hyphen=True)],
    /,
    *,
    model: str,
    target: str = "money",
    engine_cache: str = "0",
    replicas: int | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    trace: TraceOptions | None = None,
    cost: CostOptions | None = None,
) -> None:
    """Say how much memory a target needs, how many nodes, and whether it pays.

    Reads a trace once, into the hit rate of every size, and counts time
    and money with a stated cost model. Where no size reaches the target,
    or none pays, it says so and why. Prices are assumptions until you
    give yours.

      keepwarm workload size log.jsonl --model Llama-3.3-70B --gpu-hour 2.1
      keepwarm workload size log.jsonl --model config.json --target hit-rate=0.6

    Parameters
    ----------
    traces
        Logs of one format, plain, .gz or .zst; several are read as one; - is standard input.
    model
        A model's name, or its config.json.
    target
        hit-rate=0.6 (of tokens), p99-ttft=2s, or money: most left a month.
    engine_cache
        What engines' own memory holds, all together, such as 160GiB: only what is more counts.
    replicas
        Of the fleet that p99-ttft simulates; else as many as bear the load without a memory.
    json_
        All figures, as one JSON object.
    """
    from keepwarm.workload.size import size as sized
    from keepwarm.workload.targets import Wanted, parse_target

    trace, cost = trace or TraceOptions(), cost or CostOptions()
    wanted, engine_bytes = parse_target(target), parse_size(engine_cache, "engine-cache")
    shape = cost.model(model)
    source = trace.open(traces, "size")
    costs = cost.costs(shape, source.info.block_tokens)
    traffic = _traffic(source, costs, engine_bytes)
    if wanted.wanted is Wanted.P99_TTFT:
        from keepwarm.workload.ttft import for_p99

        answer = for_p99(source, traffic, wanted, replicas)
    else:
        answer = sized(traffic, wanted)
    if json_:
        write_result(json.dumps(answer.as_json(traffic, source.info, shape), indent=1))
        return
    tell_skipped(source)
    _show(answer, traffic)


def _traffic(source: TraceSource, costs: CostModel, engine_bytes: int) -> Traffic:
    from keepwarm.workload.plan import Traffic
    from keepwarm.workload.survey import survey

    with reading("reading") as progress:
        found = survey(source, progress)
    block_tokens = source.info.block_tokens
    engine_blocks = engine_bytes / (block_tokens * costs.kv_bytes_per_token)
    return Traffic(found.load, found.curve, costs, block_tokens, engine_blocks)


def _show(answer: Sizing, traffic: Traffic) -> None:
    from rich.text import Text

    console = wide_console()
    plan = answer.plan
    title = "none" if plan is None else show_size(plan.bytes()) if plan.blocks else "no memory"
    console.print(Text(f"for {answer.target.text()}: {title}", style="bold"))
    console.print(Text(f"{answer.reason}."))
    if plan is not None and plan.blocks:
        _section(console, "the memory", _plan(answer, plan, traffic))
    _section(console, "break-even", _break_even(answer, traffic))
    console.print()
    console.print(Text("hit rate and money by size", style="bold"))
    console.print(_curve(answer, traffic))
    console.print()
    console.print(Text("if something were otherwise", style="bold"))
    console.print(_sensitivity(answer, traffic))
    _section(console, "what it rests on", _rests_on(answer, traffic))


def _section(console: Console, title: str, rows: Iterator[tuple[str, str]]) -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(rows_table(rows))


def _plan(answer: Sizing, plan: Plan, traffic: Traffic) -> Iterator[tuple[str, str]]:
    money = traffic.costs.prices.currency
    yield "capacity", f"{show_size(plan.bytes())}, {plan.blocks:,.0f} blocks{_within(answer)}"
    yield "tiers", f"{show_size(plan.dram_bytes())} DRAM, {show_size(plan.flash_bytes())} flash"
    yield "nodes", f"{plan.nodes} ({traffic.costs.node.source})"
    rate = plan.hit_rate
    yield "token hit rate", f"{100 * rate.value:.1f} ± {100 * rate.error:.1f} %"
    yield (
        "network",
        f"{show_size(plan.network_bytes_per_s)}/s, "
        f"{show_size(plan.network_bytes_per_s_peak)}/s in the busiest minute",
    )
    yield "GPU hours saved a month", _range(plan.gpu_seconds_saved, 3600)
    yield "saved a month", f"{_range(plan.saved)} {money}"
    spent = plan.spent
    parts = (
        f"{name} {value:,.2f}"
        for name, value in spent.as_json().items()
        if name != "total" and value
    )
    yield "spent a month", f"{spent.total():,.2f} {money} ({', '.join(parts)})"
    yield "left a month", f"{_range(plan.net)} {money}"
    without = traffic.split(0.0, 1.0).ttft_mean_s
    yield "mean TTFT without queues", f"{plan.ttft_mean_s:.3f} s, {without:.3f} s without a memory"
    if answer.p99_ttft_s is not None:
        yield (
            "P99 TTFT, simulated",
            f"{answer.p99_ttft_s:.3f} s, {answer.p99_ttft_without_s:.3f} s without a memory",
        )


def _within(answer: Sizing) -> str:
    low, high = answer.blocks_low, answer.blocks_high
    if low is None or high is None or low == high:
        return ""
    return f" ({low:,.0f} to {high:,.0f} within the curve's error)"


def _range(values: Range, unit: float = 1.0) -> str:
    low, value, high = (each / unit for each in (values.low, values.value, values.high))
    return f"{value:,.2f}" if low == high else f"{value:,.2f} ({low:,.2f} to {high:,.2f})"


def _break_even(answer: Sizing, traffic: Traffic) -> Iterator[tuple[str, str]]:
    edge, money = answer.break_even, traffic.costs.prices.currency
    unit = traffic.block_bytes()
    if edge.smallest_blocks is None or edge.largest_blocks is None:
        yield "a memory pays", "at no size"
    else:
        low, high = edge.smallest_blocks * unit, edge.largest_blocks * unit
        yield "a memory pays", f"from {show_size(low)} to {show_size(high)}"
        best = answer.best
        yield "most is left at", f"{show_size(best.bytes())}: {_range(best.net)} {money} a month"
    if edge.gpu_hour < float("inf"):
        size_there = show_size(edge.at_blocks * unit)
        yield "it begins to pay", f"at {edge.gpu_hour:,.3f} {money} a GPU hour, with {size_there}"


def _curve(answer: Sizing, traffic: Traffic) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    money = traffic.costs.prices.currency
    for name in ("capacity", "DRAM", "nodes", "hit rate", "saved", "spent", f"left {money}"):
        table.add_column(name, justify="right")
    # Sizes far below all that matter are left out; the JSON has them.
    least = max(answer.points[-1].blocks / SHOWN, traffic.engine_blocks)
    shown = [each for each in answer.points if each.blocks >= least] or answer.points[-1:]
    step = max(1, len(shown) // 12)
    for plan in shown[::-1][::step][::-1]:
        rate = f"{100 * plan.hit_rate.value:.1f} ± {100 * plan.hit_rate.error:.1f} %"
        table.add_row(
            show_size(plan.bytes()),
            show_size(plan.dram_bytes()),
            str(plan.nodes),
            rate,
            f"{plan.saved.value:,.2f}",
            f"{plan.spent.total():,.2f}",
            f"{plan.net.value:,.2f}",
        )
    return table


def _sensitivity(answer: Sizing, traffic: Traffic) -> object:
    from rich.table import Table

    factors = sorted({each.factor for each in answer.sensitivity})
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"capacity, {traffic.costs.prices.currency} left")
    for factor in factors:
        table.add_column(f"x {factor:g}", justify="right")
    for what in dict.fromkeys(each.what for each in answer.sensitivity):
        row = {each.factor: each.plan for each in answer.sensitivity if each.what == what}
        cells = (
            "none" if plan is None else f"{show_size(plan.bytes())}, {plan.net.value:,.0f}"
            for plan in (row[factor] for factor in factors)
        )
        table.add_row(what.replace("_", " "), *cells)
    return table


def _rests_on(answer: Sizing, traffic: Traffic) -> Iterator[tuple[str, str]]:
    costs = traffic.costs
    yield "bytes a token", f"{costs.kv_bytes_per_token:,.0f}"
    yield "prefill", costs.prefill_source
    for name, price in costs.prices.as_json().items():
        if isinstance(price, dict):
            value = f"{price['value']:g} {costs.prices.currency} per {price['unit']}"
            yield name.replace("_", " "), f"{value} ({price['source']})"
    for tier in ("dram", "flash"):
        rate = costs.restore[tier]
        speed = f"{show_size(rate.bytes_per_s)}/s after {1e3 * rate.latency_s:g} ms"
        yield f"restore from {tier}", f"{speed} ({rate.source})"
    for note in answer.notes:
        yield "note", note
