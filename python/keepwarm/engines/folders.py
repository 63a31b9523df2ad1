"""Folders of the user's cache that are made once: whole or not there, one maker at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

Report: TypeAlias = Callable[[str], None]
"""Is told, in a line each, what is being done."""

MARK = "complete"


def cache() -> Path:
    """Where what Keepwarm makes for a user is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "keepwarm"


def ensure_folder(folder: Path, make: Callable[[Path], None], report: Report) -> Path:
    """The folder, made by `make(folder)` unless it is whole already.

    `make` gets the final path, because environments cannot be moved; it may find what an earlier
    attempt left there and has to clear what it does not go on with. A mark says that the folder is
    whole. Who comes while another makes it waits, and then finds it.
    """
    mark = folder / MARK
    if mark.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process is making {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            mark.touch()
    return folder


def clear(folder: Path, keep: str | None = None) -> None:
    """Removes what is in a folder, but for one name."""
    for each in folder.iterdir():
        if each.name == keep:
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            with suppress(FileNotFoundError):
                each.unlink()
