"""Files that have their name once they are whole: who reads one never sees half of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing", "write_whole"]


@contextmanager
def replacing(out: Path, *, private: bool = False) -> Iterator[Path]:
    """An empty file beside `out` to write: it takes that name, or is gone if anything fails.

    Its owner alone can read it if it is `private`. Raises OSError where it cannot be written.
    """
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    mode = 0o600 if private else 0o666
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def write_whole(out: Path, text: str) -> None:
    """Writes a text; into a pipe or a device as it is. Raises OSError."""
    if out.exists() and not out.is_file():
        out.write_text(text, encoding="utf-8")
        return
    with replacing(out) as part:
        part.write_text(text, encoding="utf-8")
