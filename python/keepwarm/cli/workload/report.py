"""`keepwarm workload report`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from keepwarm.cli.output import tell, write_whole
from keepwarm.cli.workload.options import CostOptions, TraceOptions, flags, reading, tell_skipped
from keepwarm.config import parse_size
from keepwarm.errors import ArgumentError

if TYPE_CHECKING:
    from keepwarm.workload.report.build import Economy, Report
    from keepwarm.workload.report.scorecard import Arguments
    from keepwarm.workload.simulate import Router


def report(
    traces: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    out: Path = Path("report.html"),
    model: str | None = None,
    replicas: int | None = None,
    router: Literal["round-robin", "sticky", "prefix-hash", "kv-aware"] = "sticky",
    engine_cache: str = "40GiB",
    memory: str | None = None,
    from_: Annotated[list[Path] | None, Parameter(name="--from", negative=())] = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    trace: TraceOptions | None = None,
    cost: CostOptions | None = None,
) -> None:
    """Write what a trace shows, and what not, as one HTML page and one JSON object.

    The page has a verdict, charts and a scorecard whose every figure has its definition and the
    command that made it. It opens from disk, needs no network, and has no text of any prompt.

      keepwarm workload report requests.jsonl --model Llama-3.3-70B --gpus 4
      keepwarm workload report requests.jsonl --from replay.json --from lint.json

    Parameters
    ----------
    traces
        Logs of one format, plain, .gz or .zst; several are read as one. Read several times, so
        that standard input will not do.
    out
        The page; beside it, with the ending .json, the same as JSON.
    model
        A model's name, or its config.json: bytes, seconds and money need it.
    replicas
        Engines of the simulated fleet; without it as many as compute 60 % of their time.
    router
        How the simulated fleet's requests find a replica.
    engine_cache
        KV memory of each replica itself.
    memory
        The simulated memory's size; without it what leaves most money, or else 512 GiB.
    from_
        Results of other commands to show as well: replay, lint, bench.
    json_
        Print the JSON as well.
    """
    from keepwarm.workload.report import build, documents

    trace, cost = trace or TraceOptions(), cost or CostOptions()
    if "-" in traces:
        raise ArgumentError("a report reads its trace several times: give a file, not -")
    given = documents.read(from_ or [])
    source = trace.open(traces)
    economy = None
    if model is not None:
        economy = _economy(
            cost, model, source.info.block_tokens, (replicas, router, engine_cache, memory)
        )
    with reading("reading") as progress:
        made = build.build(source, economy, given, _arguments(traces, trace, model, cost), progress)
    _write(made, out)
    tell_skipped(source)
    if json_:
        tell(json.dumps(made.as_json(), indent=1))
    else:
        found = made.description.verdict
        tell(f"{found.advice.value}: {found.reason}.\n{out} and {out.with_suffix('.json')} written")


def _arguments(
    traces: Sequence[str], trace: TraceOptions, model: str | None, cost: CostOptions
) -> Arguments:
    """The words with which other commands make the page's figures again."""
    from keepwarm.workload.report.scorecard import Arguments

    read = shlex.join([*traces, *flags(trace)])
    priced = "" if model is None else shlex.join(["--model", model, *flags(cost)])
    return Arguments(read, f"{read} {priced}".strip())


def _economy(
    cost: CostOptions,
    model: str,
    block_tokens: int,
    fleet: tuple[int | None, Router, str, str | None],
) -> Economy:
    from keepwarm.workload.report.build import Economy
    from keepwarm.workload.report.fleets import FleetShape

    replicas, router, engine_cache, memory = fleet
    if replicas is not None and replicas < 1:
        raise ArgumentError(f"replicas is {replicas}: give 1 or more")
    shape = cost.model(model)
    return Economy(
        shape,
        cost.costs(shape, block_tokens),
        cost.hardware(),
        FleetShape(
            replicas,
            router,
            parse_size(engine_cache, "engine-cache"),
            None if memory is None else parse_size(memory, "memory"),
        ),
    )


def _write(made: Report, out: Path) -> None:
    if out.suffix == ".json":
        raise ArgumentError(f"{out} is the page: give it another ending than .json")
    write_whole(out, made.as_html())
    write_whole(out.with_suffix(".json"), json.dumps(made.as_json(), indent=1) + "\n")
