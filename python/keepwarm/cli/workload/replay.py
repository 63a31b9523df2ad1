"""`keepwarm workload replay`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from keepwarm.cli.arguments import check_output, refuse_options
from keepwarm.cli.exits import FAILED, UnreachableError, reach
from keepwarm.cli.output import complain, tell, wide_console
from keepwarm.config import parse_duration, parse_size
from keepwarm.errors import ArgumentError
from keepwarm.files import write_whole

if TYPE_CHECKING:
    from keepwarm.workload.readers import RequestLog
    from keepwarm.workload.replay import Arrival, Pace
    from keepwarm.workload.trace import Skipped, TraceSource

INTERRUPTED = 130
Progress = Callable[[int, float], None]
Made = Callable[[asyncio.Event, Progress], Coroutine[Any, Any, dict[str, Any]]]


def _flag(text: str, group: str = "What is replayed") -> Any:
    return Parameter(help=text, negative=(), group=group, show_default=_shown)


def _shown(default: object) -> str | None:
    """Defaults of flags that stand alone, or may be repeated, are what one thinks."""
    return None if default in ((), False, None) else str(default)


def _endpoint(text: str) -> Any:
    return _flag(text, "Against live endpoints")


def _node(text: str) -> Any:
    return _flag(text, "Against a bare node")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """What is replayed, and when."""

    speed: Annotated[
        float, _flag("Divides all times: 2 sends twice as fast. The load changes with it.")
    ] = 1.0
    limit: Annotated[int | None, _flag("Only the first so many requests.")] = None
    duration: Annotated[
        str | None, _flag("Only what is due in the replay's first so long, such as 10m.")
    ] = None
    count_from: Annotated[
        str, _flag("What is due before warms up: it is sent, and counted nowhere.")
    ] = "0s"
    format: Annotated[str | None, _flag("The trace's format, where its content does not tell.")] = (
        None
    )
    block_tokens: Annotated[
        int | None, _flag("Tokens a block, where the format leaves it open.")
    ] = None
    in_flight_max: Annotated[
        int,
        _flag(
            "Requests under way at once for each target (for a node: waiting for a client). What "
            "is due beyond that is not sent and counted so; nothing is held back."
        ),
    ] = 1024
    lag_max: Annotated[
        str,
        _flag(
            "If more than 1 % of requests leave later than this after their time, the sender fell "
            "behind and the command fails."
        ),
    ] = "100ms"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Against live endpoints."""

    against: Annotated[
        tuple[str, ...],
        _endpoint(
            "NAME=URL of an OpenAI-compatible endpoint, http://host:port or unix:/path. Repeat it "
            "for several targets, which are compared with the first; several URLs for one name, "
            "with commas between, are its replicas."
        ),
    ] = ()
    order: Annotated[
        Literal["interleaved", "sequential"],
        _endpoint(
            "interleaved: each request to all targets at its time, side by side. sequential: one "
            "target after the other; for targets that share a machine."
        ),
    ] = "interleaved"
    router: Annotated[
        Literal["round-robin", "sticky", "prefix-hash"],
        _endpoint("How replicas of one name share requests: sticky by session, or by first block."),
    ] = "round-robin"
    model: Annotated[
        str | None, _endpoint("The model that is asked for. Default: the first that is served.")
    ] = None
    send: Annotated[
        Literal["tokens", "text"],
        _endpoint(
            "tokens: prompts made of block ids, to /v1/completions. text: the log's own chat and "
            "completion requests, as they were."
        ),
    ] = "tokens"
    vocabulary: Annotated[
        int,
        _endpoint(
            "Token ids are below this: give the model's vocab_size if it is less than 32000."
        ),
    ] = 32_000
    prompt_max: Annotated[
        int | None, _endpoint("Longer prompts are cut to so many tokens, from their end.")
    ] = None
    output_max: Annotated[
        int | None, _endpoint("Longer answers are asked for with so many tokens.")
    ] = None
    timeout: Annotated[str, _endpoint("A request's deadline, to its last token.")] = "5m"
    header: Annotated[tuple[str, ...], _endpoint("NAME=VALUE, sent with each request.")] = ()
    api_key_env: Annotated[
        str | None, _endpoint("The environment variable that holds the API key.")
    ] = None
    seed: Annotated[int, _endpoint("Of the redrawn samples behind intervals.")] = 20261201


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Against a bare node."""

    node: Annotated[
        str | None,
        _node(
            "A Keepwarm node, unix:/path, tcp:// or tls://: no engine, real bytes, each verified. "
            "They take room there as an engine's do."
        ),
    ] = None
    clients: Annotated[
        int, _node("Processes that serve requests, each one at a time. Too few: requests wait.")
    ] = 1
    block_bytes: Annotated[str, _node("Bytes a block.")] = "1MiB"
    as_fast_as_possible: Annotated[
        bool, _node("A closed loop, without arrival times: for throughput, not for latency.")
    ] = False
    keep: Annotated[
        bool, _node("Begin with what an earlier replay left there, and leave this one's blocks.")
    ] = False
    deadline: Annotated[str, _node("Of each call to the node.")] = "5s"
    tenant: Annotated[str, _node("Whose the blocks are.")] = "default"
    secret: Annotated[Path | None, _node("The tenant's secret file.")] = None


def replay(
    trace: Annotated[tuple[Path, ...], Parameter(negative=(), allow_leading_hyphen=True)],
    /,
    *,
    pacing: Pacing = Pacing(),
    endpoints: Endpoints = Endpoints(),
    node: Node = Node(),
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    out: Path | None = None,
) -> int:
    """Send a trace's requests at their times, to engines or to a bare node, and measure.

    An open loop: no request waits for another's answer, and latencies
    count from when each should have been sent. Before and after:

      keepwarm workload replay trace.parquet --count-from 60s \\
        --against baseline=http://a:8000 --against keepwarm=http://b:8000

    The store alone, with real bytes:

      keepwarm workload replay trace.parquet --node unix:/run/kw.sock

    Exit code 1 if the sender fell behind, nothing was answered, or a byte
    was wrong; 130 after Ctrl-C, with what there is so far. A second Ctrl-C
    ends it at once.

    Parameters
    ----------
    trace
        Logs of one format, plain, .gz or .zst; several are read as one; - is standard input.
    json_
        Print one JSON object instead of the table; docs/workload.md explains it.
    out
        Write that object to a file as well.
    """
    if bool(endpoints.against) == bool(node.node):
        raise ArgumentError(
            "who is asked? give --against NAME=URL, once or several times, or --node ADDRESS"
        )
    refuse_options(trace, "workload replay")
    if out is not None:
        check_output(out)  # what cannot be written is said before an hour of replay, not after
    run = _against(trace, pacing, endpoints) if endpoints.against else _bare(trace, pacing, node)
    result = _run(run, pacing.limit)
    result["command"] = _command(trace, pacing, endpoints, node)
    text = json.dumps(result, indent=1)
    if json_:
        tell(text)
    else:
        _show(result)
    for problem in result["problems"]:
        complain(f"keepwarm: {problem}")
    if out is not None:
        write_whole(out, f"{text}\n")
    if result["interrupted"]:
        return INTERRUPTED
    return FAILED if result["problems"] else 0


def _pace(pacing: Pacing) -> Pace:
    from keepwarm.workload.replay import Pace

    return Pace(
        speed=pacing.speed,
        limit=pacing.limit,
        duration_s=None if pacing.duration is None else parse_duration(pacing.duration, "duration"),
        count_from_s=parse_duration(pacing.count_from, "count-from"),
    )


def _open(trace: tuple[Path, ...], pacing: Pacing) -> TraceSource:
    from keepwarm.workload.readers import open_trace
    from keepwarm.workload.trace import TokensAre

    if not trace:
        raise ArgumentError("name at least one log, or - for standard input")
    opened = open_trace(trace, format=pacing.format, block_tokens=pacing.block_tokens)
    if opened.info.tokens_are is TokensAre.LENGTHS_ONLY:
        complain(
            "keepwarm: this trace has lengths alone: nothing in it repeats, so nothing can hit"
        )
    return opened


def _described(
    result: dict[str, Any], info: dict[str, Any], skipped: Skipped, pace: Pace
) -> dict[str, Any]:
    """The result with what was replayed in front."""
    head = {
        name: result.pop(name) for name in ("schema", "kind", "interrupted", "problems", "notes")
    }
    return {
        **head,
        "trace": info,
        "schedule": dataclasses.asdict(pace),
        "skipped": dict(skipped.counts),
        **result,
    }


def _open_text(trace: tuple[Path, ...], pacing: Pacing) -> tuple[RequestLog, dict[str, Any]]:
    """A log with its text, and what is told of it, under the names that a trace's have."""
    from keepwarm.workload.readers import open_requests

    log = open_requests(trace, format=pacing.format)
    names = ", ".join(path.name for path in trace[:3])
    about = {"name": names, "source": names, "format": log.format, "synthetic": False}
    return log, about | {"block_tokens": None, "tokens_are": None, "notes": []}


def _against(trace: tuple[Path, ...], pacing: Pacing, given: Endpoints) -> Made:
    from keepwarm.workload import replay as replays

    pace = _pace(pacing)
    targets = replays.parse_targets(given.against, replays.Router(given.router))
    headers = replays.parse_headers(given.header, _api_key(given.api_key_env))
    vocabulary = replays.Vocabulary(given.vocabulary)
    limits = replays.Limits(given.prompt_max, given.output_max)
    sending = replays.Sending(
        parse_duration(given.timeout, "timeout"), pacing.in_flight_max, headers
    )
    source: TraceSource | RequestLog
    arrivals: Callable[[], Iterator[Arrival]]
    if given.send == "text":
        source, info = _open_text(trace, pacing)
        arrivals = partial(replays.of_log, source, pace)
    else:
        source = _open(trace, pacing)
        info = dataclasses.asdict(source.info)
        arrivals = partial(replays.of_trace, source, pace)

    async def run(stop: asyncio.Event, progress: Progress) -> dict[str, Any]:
        bodies: replays.TextBodies | replays.TokenBodies
        if given.send == "text":
            bodies = replays.TextBodies(given.model, limits)
        else:
            try:
                model = given.model or await replays.model_of(targets[0], headers)
            except ConnectionError as error:
                raise UnreachableError(str(error)) from None
            bodies = replays.TokenBodies(model, vocabulary, limits)
        plan = replays.Plan(
            arrivals=arrivals,
            bodies=bodies,
            targets=targets,
            order=replays.Order(given.order),
            sending=sending,
            lag_s_max=parse_duration(pacing.lag_max, "lag-max"),
            seed=given.seed,
        )
        result = await replays.replay(plan, stop, progress)
        return _described(result, info, source.skipped(), pace)

    return run


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    if name not in os.environ:
        raise ArgumentError(f"there is no variable {name} in the environment: --api-key-env")
    return os.environ[name]


def _bare(trace: tuple[Path, ...], pacing: Pacing, given: Node) -> Made:
    from keepwarm.workload.replay import of_trace
    from keepwarm.workload.replay.node import NodePlan, replay_node

    pace, source = _pace(pacing), _open(trace, pacing)
    assert given.node is not None
    plan = NodePlan(
        address=given.node,
        arrivals=lambda: of_trace(source, pace),
        block_tokens=source.info.block_tokens,
        block_bytes=parse_size(given.block_bytes, "block-bytes"),
        clients=given.clients,
        closed=given.as_fast_as_possible,
        keep=given.keep,
        deadline_s=parse_duration(given.deadline, "deadline"),
        waiting_max=pacing.in_flight_max,
        lag_s_max=parse_duration(pacing.lag_max, "lag-max"),
        tenant=given.tenant,
        secret=None if given.secret is None else str(given.secret),
    )

    with reach(plan.address, plan.deadline_s):
        pass

    async def run(stop: asyncio.Event, progress: Progress) -> dict[str, Any]:
        result = await replay_node(plan, stop, progress)
        return _described(result, dataclasses.asdict(source.info), source.skipped(), pace)

    return run


def _run(made: Made, limit: int | None) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=limit)

        def show(sent: int, due_s: float) -> None:
            said = f"{sent:,} requests sent, {due_s:,.0f} s into the trace"
            bar.update(task, completed=sent, description=said)

        async def main() -> dict[str, Any]:
            stop = asyncio.Event()
            with stopping(stop):
                return await made(stop, show)

        return asyncio.run(main())


@contextmanager
def stopping(stop: asyncio.Event) -> Iterator[None]:
    """Ctrl-C sets `stop`; the next one ends the process, even while a log is waited for."""
    loop = asyncio.get_running_loop()

    def interrupted(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    before = {each: signal.signal(each, interrupted) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(trace: tuple[Path, ...], *flags: object) -> list[str]:
    """What made this, to be run again; values of headers are left out."""
    made = ["keepwarm", "workload", "replay", *(str(path) for path in trace)]
    for group in flags:
        for field in fields(group):  # type: ignore[arg-type]
            value = getattr(group, field.name)
            if value == field.default:
                continue
            name = f"--{field.name.replace('_', '-')}"
            if value is True:
                made.append(name)
                continue
            for each in value if isinstance(value, tuple) else (value,):
                shown = f"{each.partition('=')[0]}=…" if field.name == "header" else str(each)
                made += [name, shown]
    return made


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from keepwarm.workload.replay.showing import comparison_lines, endpoint_rows, node_rows

    console = wide_console()
    trace, loop = result["trace"], result["loop"]
    kind = "synthetic" if trace["synthetic"] else "recorded"
    console.print(Text(f"{trace['name']} ({kind}, {trace['format']}), {loop} loop"))
    against = result["kind"].endswith(".endpoints")
    rows = endpoint_rows(result) if against else node_rows(result)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for line in comparison_lines(result) if against else []:
        console.print(Text(line))
    for note in result["notes"]:
        console.print(Text(f"note: {note}", style="dim"))
