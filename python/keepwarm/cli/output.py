"""What commands write. Who reads it may go away at any time, and a disk may be full."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

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


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all; raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
