"""The kernel's small files, and the folders of control groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def text(file: Path) -> str:
    """What it says; nothing where it is not there."""
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""


def number(file: Path) -> int | None:
    """Its number; None where it says something else, such as max."""
    found = text(file).strip()
    return int(found) if found.isdigit() else None


def field(table: str, name: str) -> int | None:
    """The first number on the line that begins with a name."""
    match = re.search(rf"^{re.escape(name)}\s*(\d+)", table, re.MULTILINE)
    return int(match[1]) if match else None


def groups(root: Path, controller: str, process: str = "self") -> Iterator[tuple[Path, bool]]:
    """Folders of a process' control groups that bound a controller, each with whether it is of
    version 2: from its own up to the root, since an outer one may be tighter."""
    for line in text(root / "proc" / process / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup"
        if controllers and controller not in controllers.split(","):
            continue
        if controllers:
            mount /= controller
        # In a container the path may name folders that only its host sees; those here count.
        own = mount / path.lstrip("/")
        for folder in (own, *own.parents):
            yield folder, not controllers
            if folder == mount:
                break
