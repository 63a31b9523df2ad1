"""`keepwarm workload report`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from keepwarm.cli.arguments import check_output
from keepwarm.cli.output import tell
from keepwarm.cli.workload.options import CostOptions, TraceOptions, flags, reading, tell_skipped
from keepwarm.config import parse_size
from keepwarm.errors import ArgumentError
from keepwarm.files import write_whole

if TYPE_CHECKING:
    from keepwarm.workload.report.fleets import FleetShape
    from keepwarm.workload.report.scorecard import Arguments


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The simulated fleet."""

    replicas: Annotated[
        int | None, Parameter(help="Engines; without it as many as compute 60 % of their time.")
    ] = None
    router: Annotated[
        Literal["round-robin", "sticky", "prefix-hash", "kv-aware"],
        Parameter(help="How requests find an engine."),
    ] = "sticky"
    replica_cache: Annotated[
        str, Parameter(help="What each replica's own KV memory holds: device, to simulate.")
    ] = "40GiB"
    memory: Annotated[
        str | None,
        Parameter(help="Keepwarm's size; without it what leaves most money, or else 512 GiB."),
    ] = None

    def shape(self) -> FleetShape:
        """Raises ArgumentError or ConfigError for what cannot be."""
        from keepwarm.workload.report.fleets import FleetShape

        if self.replicas is not None and self.replicas < 1:
            raise ArgumentError(f"replicas is {self.replicas}: give 1 or more")
        memory = None if self.memory is None else parse_size(self.memory, "memory")
        if memory == 0:
            raise ArgumentError(
                "memory is 0: engines alone are simulated in any case, leave it out"
            )
        engine = parse_size(self.replica_cache, "replica-cache")
        return FleetShape(self.replicas, self.router, engine, memory)


def report(
    traces: Annotated[tuple[str, ...], Parameter(negative=(), allow_leading_hyphen=True)],
    /,
    *,
    out: Path = Path("report.html"),
    model: str | None = None,
    from_: Annotated[
        tuple[Path, ...], Parameter(name="--from", negative=(), show_default=False)
    ] = (),
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    fleet: FleetOptions | None = None,
    trace: TraceOptions | None = None,
    cost: CostOptions | None = None,
) -> None:
    """Write what a trace shows, and what not, as one HTML page and one JSON object.

    A verdict, charts and a scorecard whose every figure has its definition
    and command. It opens from disk, and has no text of any prompt.

      keepwarm workload report requests.jsonl --model Llama-3.3-70B --gpus 4
      keepwarm workload report requests.jsonl --from replay.json --from lint.json

    Parameters
    ----------
    traces
        Logs of one format, plain, .gz or .zst, several as one; not -: they are read repeatedly.
    out
        The page; beside it, with the ending .json, the same as JSON.
    model
        A model's name, or its config.json: bytes, seconds and money need it.
    from_
        JSON of another command, to show as well: replay, lint, bench. As often as you like.
    json_
        Print the JSON as well.
    """
    from keepwarm.workload.report import build, documents

    trace, cost = trace or TraceOptions(), cost or CostOptions()
    if "-" in traces:
        raise ArgumentError("a report reads its trace several times: give a file, not -")
    if out.suffix == ".json":
        raise ArgumentError(f"{out} is the page: give it another ending than .json")
    check_output(out)
    given, shape = documents.read(from_), (fleet or FleetOptions()).shape()
    source = trace.open(traces, "report")
    economy = None
    if model is not None:
        geometry = cost.model(model)
        costs = cost.costs(geometry, source.info.block_tokens)
        economy = build.Economy(geometry, costs, cost.hardware(), shape)
    words = _arguments(traces, trace, model, cost, fleet or FleetOptions(), from_)
    with reading("reading") as progress:
        made = build.build(source, economy, given, words, progress)
    document = json.dumps(made.as_json(), indent=1)
    write_whole(out, made.as_html())
    write_whole(out.with_suffix(".json"), f"{document}\n")
    tell_skipped(source)
    found = made.description.verdict
    text = f"{found.advice.value}: {found.reason}.\n{out} and {out.with_suffix('.json')} written"
    tell(document if json_ else text)


def _arguments(
    traces: Sequence[str],
    trace: TraceOptions,
    model: str | None,
    cost: CostOptions,
    fleet: FleetOptions,
    given: Sequence[Path],
) -> Arguments:
    """The words with which other commands make the page's figures again."""
    from keepwarm.workload.report.scorecard import Arguments

    read = [*traces, *flags(trace)]
    priced = read if model is None else [*read, "--model", model, *flags(cost)]
    simulated = priced if model is None else [*priced, *flags(fleet)]
    shown = [*simulated, *(word for path in given for word in ("--from", str(path)))]
    return Arguments(*map(shlex.join, (read, priced, shown)))
