"""Checks of what a command was given, before it begins work that would be lost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from keepwarm.errors import ArgumentError


def refuse_options(names: Iterable[object], verb: str) -> None:
    """Refuses a misspelt option among names of files, where `-` alone is standard input."""
    for name in map(str, names):
        if name.startswith("-") and name != "-" and not Path(name).exists():
            raise ArgumentError(
                f"unknown option {name}: keepwarm {verb} --help lists them (a file of that name "
                f"is ./{name})"
            )


def check_output(path: Path) -> None:
    """Refuses a place where no file can be written. Raises ArgumentError."""
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder: name the file to write")
    if not path.parent.is_dir():
        raise ArgumentError(f"{path}: there is no folder {path.parent} to write it to")
    is_device = path.exists() and not path.is_file()
    if not is_device and not os.access(path.parent, os.W_OK):
        raise ArgumentError(f"{path}: you may not write to the folder {path.parent}")
