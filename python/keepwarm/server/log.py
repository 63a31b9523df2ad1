"""The node's log: takes records out of the core's journal and writes a line for each.

```text
 core, any thread ──say──► journal (bounded, lossy, counted) ──log_next──► this thread ──► stderr
```
Only this thread ever waits for standard error. When nobody takes its lines, the journal fills, and
what found no room is counted in a line of its own as soon as there is room again.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from keepwarm import _core

WAIT_S = 1.0
# How long the last lines have when the node goes.
LAST_S_MAX = 1.0
# What `keepwarm serve` says itself: not twice on one terminal.
SAID = {"started", "machine", "machine_limit", "reloaded", "draining", "drain_overdue", "stopped"}

Value = int | float | str


class Format(Protocol):
    """Makes a line of a record."""

    def __call__(
        self, event: str, level: str, unix_ms: int, node: str, fields: Mapping[str, Value]
    ) -> str: ...


def as_json(event: str, level: str, unix_ms: int, node: str, fields: Mapping[str, Value]) -> str:
    """One JSON object."""
    head = {"time": _time(unix_ms), "level": level, "event": event, "node": node}
    return json.dumps({**head, **{name: _kept(value) for name, value in fields.items()}})


def as_text(event: str, level: str, unix_ms: int, node: str, fields: Mapping[str, Value]) -> str:
    """Words for people: time, level, event, name=value."""
    del node  # there is one on a terminal
    shown = "".join(f" {name}={_word(value)}" for name, value in fields.items())
    return f"{_time(unix_ms)} {level:<5} {event}{shown}"


FORMATS: dict[str, Format] = {"json": as_json, "text": as_text}


def format_named(name: str, stream: TextIO | None) -> Format:
    """The format of that name; auto is text on a terminal and JSON elsewhere."""
    if name == "auto":
        name = "text" if _is_terminal(stream) else "json"
    return FORMATS[name]


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def say(event: str, fields: Mapping[str, Any] | None = None) -> None:
    """Says that something happened in the node's own Python."""
    told: list[tuple[str, Value]] = []
    for name, value in (fields or {}).items():
        plain = isinstance(value, int | float | str) and not isinstance(value, bool)
        fits = not isinstance(value, int) or 0 <= value < 1 << 64
        told.append((name, value if plain and fits else _shown(value)))
    _core.log_say(event, told)


class Log:
    """Writes the journal's records down, from a thread of its own."""

    def __init__(self, node: str, style: str, level: str, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._node = node
        self._skipped = SAID if _is_terminal(self._stream) and _is_terminal(sys.stdout) else set()
        self._ended = threading.Event()
        self.tune(style, level)
        self._thread = threading.Thread(target=self._run, name="keepwarm-log", daemon=True)
        self._thread.start()

    def tune(self, style: str, level: str) -> None:
        """Changes format and level, from the next record on."""
        self._format = format_named(style, self._stream)
        _core.log_listen(level)

    def close(self) -> None:
        """Writes what is left, if somebody takes it in time."""
        self._ended.set()
        self._thread.join(LAST_S_MAX)
        _core.log_listen(None)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._write(_core.log_next(WAIT_S))
        self._write(_core.log_last())

    def _write(self, records: list[tuple[str, str, int, dict[str, Value]]]) -> None:
        if not records or self._stream is None:
            return
        make = self._format
        lines = [
            make(event, level, unix_ms, self._node, fields)
            for event, level, unix_ms, fields in records
            if event not in self._skipped
        ]
        if not lines:
            return
        try:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()
        except UnicodeEncodeError:
            text = "\n".join(line.encode("ascii", "backslashreplace").decode() for line in lines)
            self._stream.write(text + "\n")
        except (OSError, ValueError):
            pass  # nobody reads it any more, or the disk is full: the node goes on


def _time(unix_ms: int) -> str:
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{unix_ms % 1000:03d}Z"


def _kept(value: Value) -> Value | None:
    """JSON knows no infinity."""
    if isinstance(value, float) and value - value != 0:
        return None
    return value


def _word(value: Value) -> str:
    """A value on a line of text: what could break out of it is escaped."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else json.dumps(text)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value))
    return str(value)
