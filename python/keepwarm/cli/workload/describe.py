"""`keepwarm workload describe`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from keepwarm.cli.output import rows_table, wide_console, write_result
from keepwarm.cli.workload.options import CostOptions, TraceOptions, reading, tell_skipped
from keepwarm.config import show_size

if TYPE_CHECKING:
    from keepwarm.workload.describe import Description, KvFigures
    from keepwarm.workload.measures import Distribution, Estimate, Measures

Rows = Iterator[tuple[str, str]]


def describe(
    traces: Annotated[tuple[str, ...], Parameter(negative=(), allow_leading_hyphen=True)],
    /,
    *,
    model: str | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    trace: TraceOptions | None = None,
    cost: CostOptions | None = None,
) -> None:
    """Say what repeats in your traffic, and whether a memory is worth deploying for it.

    Reads request logs or traces of block hashes once, in bounded memory;
    keeps no text. The verdict is strong, worth a pilot, do not deploy, or
    unknown, with the figures that decided it.

      keepwarm workload describe requests.jsonl --model Llama-3.3-70B

    Parameters
    ----------
    traces
        Logs of one format, plain, .gz or .zst; several are read as one; - is standard input.
    model
        A model's name, or its config.json: adds the bytes of KV that sessions need.
    json_
        All figures, as one JSON object.
    """
    from keepwarm.workload.describe import description
    from keepwarm.workload.measures import measure

    trace, cost = trace or TraceOptions(), cost or CostOptions()
    shape = None if model is None else cost.model(model)  # before a long reading
    source = trace.open(traces, "describe")
    with reading("reading") as progress:
        measures = measure(source, progress=progress)
    costs = None
    if shape is not None and shape.work is not None:
        costs = cost.costs(shape, source.info.block_tokens)
    found = description(measures, shape, costs, cost.hardware(), source.skipped().counts)
    if json_:
        write_result(json.dumps(found.as_json(), indent=1))
        return
    tell_skipped(source)
    _show(found)


def _show(found: Description) -> None:
    from rich.text import Text

    console = wide_console()
    console.print(Text(f"verdict: {found.verdict.advice.value}", style="bold"))
    console.print(Text(f"{found.verdict.reason}."))
    for each in found.verdict.would_change:
        console.print(Text(f"  would change it: {each}"))
    sections = [("the trace", _trace(found.measures)), ("what repeats", _reuse(found.measures))]
    sections.append(("sessions", _sessions(found.measures)))
    if found.kv is not None:
        sections.append((f"KV of {found.kv.geometry.model}", _kv(found.kv)))
    for title, rows in sections:
        console.print()
        console.print(Text(title, style="bold"))
        console.print(rows_table(rows))


def _trace(measures: Measures) -> Rows:
    info = measures.info
    kind = "synthetic" if info.synthetic else info.format
    yield "name", f"{info.name} ({kind}), blocks of {info.block_tokens} tokens"
    yield "tokens are", info.tokens_are.value
    yield "requests", f"{measures.requests:,} in {measures.span_s / 3600:,.2f} h"
    if measures.requests_without_blocks:
        yield "requests without blocks", f"{measures.requests_without_blocks:,}"
    yield "input tokens", f"{measures.input_tokens:,}; a prompt {_spread(measures.input_length)}"
    yield (
        "output tokens",
        f"{measures.output_tokens:,}; an answer {_spread(measures.output_length)}",
    )
    for note in info.notes:
        yield "note", note


def _reuse(measures: Measures) -> Rows:
    yield "tokens that repeat as prefixes", _share(measures.reuse_by_prefix.tokens)
    yield "blocks that repeat as prefixes", _share(measures.reuse_by_prefix.blocks)
    yield "blocks that repeat anywhere", _share(measures.reuse_by_block.blocks)
    yield (
        f"requests with a prefix >= {measures.long_prefix_tokens:,} tokens",
        f"{_share(measures.long_prefix_requests)} (and >= "
        f"{100 * measures.long_prefix_share:.0f} % of the prompt, asked for before)",
    )
    sticky = f"{_share(measures.reuse_sticky.tokens)} of the tokens or more"
    has_sessions = measures.sessions.sessions.value > 0
    yield "a sticky router alone gets", sticky if has_sessions else "not known: no sessions"
    yield "distinct blocks", f"{_count(measures.distinct_blocks)}"
    yield "of these never asked for again", _share(measures.never_reused)
    yield "reuse distance, blocks", _spread(measures.reuse_distance_blocks)
    yield "reuse time, seconds", _spread(measures.reuse_time_s)
    for name, shared in (
        ("previous user was the same session", measures.sharing_sessions),
        ("previous user was the same tenant", measures.sharing_tenants),
    ):
        if shared.unknown.value < 1:
            others = f"another {_share(shared.other)}, unknown {_share(shared.unknown)}"
            yield name, f"{_share(shared.same)}, {others}"
    for hot in measures.hottest[:3]:
        yield "hot prefix", f"{hot.tokens:,} tokens, {hot.uses:,} uses"


def _sessions(measures: Measures) -> Rows:
    shape = measures.sessions
    yield "sessions", _count(shape.sessions)
    if shape.requests_unknown:
        yield "requests without a session", f"{shape.requests_unknown:,}"
    if not shape.requests.count:
        return
    yield "requests of a session", _spread(shape.requests)
    yield "sessions of one request", _share(shape.single_share)
    yield "tokens added by a request", _spread(shape.tokens_added)
    yield "seconds between requests", _spread(shape.gap_s)
    yield "tokens at the end", _spread(shape.tokens_at_end)


def _kv(kv: KvFigures) -> Rows:
    shape = kv.geometry
    source = shape.source.rpartition("/")[2]
    yield "bytes a token", f"{shape.bytes_per_token():,} ({shape.kv_dtype}; {source})"
    if window := shape.window_bytes_per_token():
        yield "within windows", f"{window:,} bytes a token"
    if state := shape.state_bytes():
        yield "state of a sequence", show_size(state)
    yield "a block in a memory", show_size(kv.block_bytes)
    for name, sizes in (("a session's end", kv.session_bytes), ("a prompt", kv.prompt_bytes)):
        if sizes:
            shown = (f"{key} {show_size(value)}" for key, value in sizes.items())
            yield name, ", ".join(shown)
    yield "every distinct block once", show_size(kv.working_set_bytes)


def _spread(values: Distribution) -> str:
    if not values.count:
        return "-"
    return (
        f"mean {_number(values.mean)}, p50 {_number(values.p50)}, p90 {_number(values.p90)}, "
        f"p99 {_number(values.p99)}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _share(estimate: Estimate) -> str:
    error = f" ± {100 * estimate.error:.1f}" if estimate.error >= 0.0005 else ""
    return f"{100 * estimate.value:.1f}{error} %"


def _count(estimate: Estimate) -> str:
    error = f" ± {estimate.error:,.0f}" if estimate.error >= 0.5 else ""
    return f"{estimate.value:,.0f}{error}"
