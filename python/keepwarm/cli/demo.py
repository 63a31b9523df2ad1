"""``keepwarm demo``: a node at work, killed in the middle, and a report that must add up."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import cyclopts
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from keepwarm.cli.demo_vllm import vllm

if TYPE_CHECKING:
    from keepwarm.demo import DemoConfig, Plan, Record

LINES = 12
WIDTH = 120

app = cyclopts.App(
    name="demo",
    help=(
        "Run a node and two replicas on coding-agent sessions, and kill the node in the middle. "
        "With vllm: two real engines."
    ),
    help_format="plaintext",
)
app.command(vllm)


@app.default
def demo(
    *,
    out: Path = Path("out"),
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    trace: Literal["auto", "recorded", "generated"] = "auto",
    sessions: int = 12,
    turns: int = 30,
    arena_share: float = 0.3,
    policy: str = "default",
    seed: int = 20261201,
) -> int:
    """Run a node and two replicas on coding-agent sessions; kill -9 the node in the middle.

    Every byte that comes back is verified, every token is counted once, and the node's counters
    must agree with its clients'. Exit code 1, with the reason, if anything does not add up.

    Parameters
    ----------
    out
        Folder for demo.json and demo.svg.
    json_
        Print demo.json instead of the report.
    trace
        Recorded sessions (where present), or generated ones; auto prefers recorded.
    sessions
        How many sessions interleave. More need more memory and time.
    turns
        Requests of each session, at most.
    arena_share
        Size of the memory as a share of the working set. 1 or more: nothing is evicted.
    policy
        The node's eviction policy.
    seed
        Of the generated sessions.
    """
    try:
        from keepwarm.demo import DemoConfig, ProcessError
    except ModuleNotFoundError as missing:
        print(f"keepwarm: the demo needs {missing.name}: pip install {missing.name}")
        return 2
    config = DemoConfig(
        out=out,
        source=trace,
        sessions=sessions,
        turns=turns,
        arena_share=arena_share,
        policy=policy,
        seed=seed,
    )
    if not _can_be(out):
        return 2
    _say_what_fits(sys.stdout, sys.stderr)
    console = Console(stderr=json_, width=None if sys.stdout.isatty() else WIDTH)
    # As Ctrl-C does, so that no process of the demo outlives it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _run(config, console, as_json=json_)
    except (ProcessError, ValueError) as error:
        return _failed(console, error)


def _failed(console: Console, error: Exception) -> int:
    said = Text.assemble(("the demo failed:", "bold red"), f" {error}")
    console.print(said, highlight=False)
    return 1


def _can_be(out: Path) -> bool:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"keepwarm: out is {out}: {error.strerror}: give a folder to write", file=sys.stderr)
        return False
    return True


def _say_what_fits(*streams: TextIO) -> None:
    """A terminal that knows ASCII alone gets `?` for what it cannot show, and no exception."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(config: DemoConfig, console: Console, as_json: bool) -> int:
    from keepwarm.demo import chart, make, report, summarise

    began = time.monotonic()
    plan = make(config)
    _announce(console, plan)
    record = _with_progress(console, plan)
    summary = summarise(record)
    plain = report.plain(record, summary)
    text = json.dumps(plain, indent=1)
    (config.out / "demo.json").write_text(text + "\n", encoding="utf-8")
    (config.out / "demo.svg").write_text(chart.svg(record, summary), encoding="utf-8")
    if as_json:
        sys.stdout.write(text + "\n")
    report.show(console, record, summary)
    took = time.monotonic() - began
    console.print(f"{config.out}/demo.json, {config.out}/demo.svg ({took:.0f} s in all)")
    return 1 if summary.problems else 0


def _announce(console: Console, plan: Plan) -> None:
    console.print(f"requests: {plan.trace.describe()}", highlight=False)
    if plan.trace.synthetic:
        console.print("these sessions are generated; no user ever had them", highlight=False)
    console.print(
        f"memory: {plan.arena_bytes >> 20:,} MiB for a working set of "
        f"{plan.working_set_bytes >> 20:,} MiB ({plan.config.block_bytes >> 10} KiB a block)",
        highlight=False,
    )


def _with_progress(console: Console, plan: Plan) -> Record:
    from keepwarm.demo import run

    if not console.is_terminal:
        return run(plan, _Lines(console))
    columns = (
        TextColumn("{task.description:>18}"),
        BarColumn(None),
        TextColumn("{task.completed:.0f}/{task.total:.0f} requests"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(plan.turns))

        def show(done: int, total: int, doing: str) -> None:
            progress.update(task, completed=done, total=total, description=doing)

        return run(plan, show)


class _Lines:
    """Progress where there is no terminal: a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = (-1, "")

    def __call__(self, done: int, total: int, doing: str) -> None:
        now = (done * LINES // max(total, 1), doing)
        if now != self._last:
            self._last = now
            self._console.print(f"{done:>5}/{total} requests, {doing}", highlight=False)
