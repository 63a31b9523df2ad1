"""What commands write. Who reads it may go away at any time, and a disk may be full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 120

# OSError: nobody takes it. ValueError: the stream is closed, or cannot write these characters.
# AttributeError: the process was started without one.
_UNWRITABLE = (OSError, ValueError, AttributeError)


def tell(text: str) -> None:
    """Writes a line for whoever still reads; never raises, since the work matters more."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except UnicodeEncodeError:
        tell(text.encode("ascii", "backslashreplace").decode())
    except _UNWRITABLE:
        abandon()


def write_result(text: str) -> None:
    """Writes what a command was asked for. Who stops reading is no failure; a full disk is one.

    Raises OSError, which the command line says in one line.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        abandon()


def complain(text: str) -> None:
    """Writes a line of standard error; never raises."""
    with suppress(*_UNWRITABLE):
        sys.stderr.write(f"{text}\n")


def abandon() -> None:
    """Lets what is left of the output go nowhere, so that Python does not fail over it at exit."""
    with suppress(*_UNWRITABLE):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def rows_table(rows: Iterable[tuple[str, str]]) -> Table:
    """What something is called, and what it is: a line each. Names in it are no markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def wide_console() -> Console:
    """Where tables go: as wide as the terminal, and so wide where there is none.

    Whoever reads may go away, as `head` does: what is left goes nowhere, and the command goes on.
    """
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            abandon()

    return Patient(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
