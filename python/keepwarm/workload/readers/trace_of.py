"""`open_trace`: from paths to a `TraceSource`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from keepwarm.errors import ArgumentError
from keepwarm.workload.hashing import Hasher
from keepwarm.workload.parquet import ParquetTrace
from keepwarm.workload.readers import mooncake
from keepwarm.workload.readers.detect import Format, told
from keepwarm.workload.readers.opening import Input
from keepwarm.workload.readers.source import LogTrace
from keepwarm.workload.trace import TokensAre, TraceInfo, TraceSource

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def open_trace(
    paths: Paths,
    *,
    format: str | None = None,
    block_tokens: int | None = None,
    key: bytes | None = None,
    session_field: str | None = None,
    tenant_field: str | None = None,
) -> TraceSource:
    """A trace of one or more logs of one format; `-` is stdin.

    `format` (a value of `Format`) where the content does not tell; `block_tokens` where the format
    leaves it open; `key` so that two traces can be joined. `session_field` and `tenant_field` name
    a record's fields, with dots for nested ones. Raises ArgumentError, with the reason.
    """
    if block_tokens is not None and block_tokens < 1:
        raise ArgumentError(f"blocks of {block_tokens} tokens: give 1 or more")
    hasher = Hasher(key)
    logs = opened(paths)
    form, record = told(logs[0], format)
    if form is Format.PARQUET:
        return _parquet(logs)
    tokens = block_tokens or mooncake.block_tokens_of(record)
    fields = (session_field or "", tenant_field or "")
    info = TraceInfo(
        name=_name(logs),
        format=form.value,
        source=", ".join(log.name for log in logs[:3]),
        block_tokens=tokens,
        tokens_are=TokensAre.EXACT,
        notes=_notes(logs),
    )
    return LogTrace(info, logs, lambda: mooncake.Rows(tokens, hasher, fields))


def opened(paths: Paths) -> list[Input]:
    """The logs, by names that tell them apart."""
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    texts = [fspath(each) for each in given]
    if not texts:
        raise ArgumentError("name at least one log, or - for stdin")
    short = ["stdin" if text == "-" else Path(text).name or text for text in texts]
    clear = len(set(short)) == len(short)
    return [
        Input.open(text, name if clear else text) for text, name in zip(texts, short, strict=True)
    ]


def _parquet(logs: list[Input]) -> TraceSource:
    if len(logs) > 1:
        raise ArgumentError("give one Parquet trace at a time")
    if logs[0].is_pipe:
        raise ArgumentError("Parquet cannot be read from a pipe: give the file")
    return ParquetTrace(Path(logs[0].path))


def _name(logs: list[Input]) -> str:
    return logs[0].name if len(logs) == 1 else f"{logs[0].name} and {len(logs) - 1} more"


def _notes(logs: list[Input]) -> tuple[str, ...]:
    if len(logs) == 1:
        return ()
    return (f"{len(logs)} files are taken as parts of one trace: equal ids mean equal blocks",)
