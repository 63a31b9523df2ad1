"""`keepwarm bench`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keepwarm.cli.output import complain, tell, wide_console
from keepwarm.errors import KeepwarmError
from keepwarm.files import write_whole

if TYPE_CHECKING:
    from keepwarm.bench.measure import Progress


def bench(
    *,
    only: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    quick: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    out: Path | None = None,
    seed: int | None = None,
) -> int:
    """Measure this machine's Keepwarm against what the machine does without it.

    Real nodes are started and ended. Every ratio is the median of interleaved rounds of a limit
    (memcpy, a bare socket loop, a raw file) and of ours, over the same bytes. Floors are for a
    machine that does nothing else. Exit code 1 if a figure misses its floor.

    Parameters
    ----------
    only
        A figure, or how the names of several begin. May be given several times.
    quick
        Fewer and smaller rounds: a look, not a figure to publish.
    json_
        Print one JSON object instead of the table.
    out
        Write that object to a file as well.
    seed
        Of contents and places.
    """
    from keepwarm.bench import run
    from keepwarm.bench.measure import SEED, names

    names(only)
    # As Ctrl-C does, so that no node outlives the bench.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = SEED if seed is None else seed
    try:
        with _Bar() as progress:
            result = run(only, quick=quick, seed=chosen, progress=progress)
    except (RuntimeError, OSError) as error:
        raise KeepwarmError(f"the bench failed: {error}") from error
    text = json.dumps(result, indent=1)
    if out is not None:
        write_whole(out, f"{text}\n")
    if json_:
        tell(text)
    else:
        _show(result)
    missed = [name for name, each in result["details"].items() if each["passed"] is False]
    if missed:
        complain(f"keepwarm: below their floors: {', '.join(missed)}")
    return 1 if missed else 0


class _Bar:
    """Progress on standard error, where that is a terminal."""

    def __enter__(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._bar.start()
        task = self._bar.add_task("starting", total=None)

        def show(done: int, total: int, doing: str) -> None:
            self._bar.update(task, completed=done, total=total, description=doing)

        return show

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from keepwarm.bench.report import heading, rows

    console = wide_console()
    console.print(Text(heading(result)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("min..max of pairs", justify="right", no_wrap=True)
    table.add_column("floor (goal)", no_wrap=True)
    table.add_column("")
    table.add_column("", style="dim", overflow="fold")
    colours = {"pass": "green", "MISSED": "bold red"}
    for row in rows(result):
        verdict = Text(row.verdict, style=colours.get(row.verdict, ""))
        cells = (row.name, row.value, row.spread, row.wanted)
        table.add_row(*map(Text, cells), verdict, Text(row.notes))
    console.print(table)
