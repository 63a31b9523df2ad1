"""JSON that other commands wrote, told apart by what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepwarm.errors import ArgumentError

#: A document larger than this is no result of a command.
BYTES_MAX = 64 << 20
#: What a report takes in, by what a document says of itself: our name, the command that writes it.
KINDS = {
    "keepwarm.workload.replay.endpoints": ("endpoints", "keepwarm workload replay --against"),
    "keepwarm.workload.replay.node": ("node", "keepwarm workload replay --node"),
    "keepwarm.lint": ("lint", "keepwarm lint --json"),
    "keepwarm.bench": ("bench", "keepwarm bench --json"),
}


def read(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The documents by kind. Raises ArgumentError for what is none, and for two of a kind."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        document = _load(path)
        known = KINDS.get(_kind(document))
        if known is None:
            commands = ", ".join(command for _, command in KINDS.values())
            raise ArgumentError(
                f"{path} is no result that a report can show; it takes those of: {commands}"
            )
        kind, command = known
        if kind in found:
            raise ArgumentError(f"{path} is a second result of {command}; give one")
        found[kind] = document
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ArgumentError(f"{path} has more than {BYTES_MAX >> 20} MiB: it is no result")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ArgumentError(
            f"{path} is not one JSON object: give what a command printed with --json"
        ) from None
    if not isinstance(document, dict):
        raise ArgumentError(f"{path} is not a JSON object")
    return document


def _kind(document: dict[str, Any]) -> str:
    kind = document.get("kind")
    return kind if isinstance(kind, str) and document.get("schema") == 1 else ""
