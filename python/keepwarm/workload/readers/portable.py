"""Our own hash form as JSON lines: a header, then a row a request, as Mooncake's with more fields.

    {"format": "keepwarm trace", "version": 1, "block_tokens": 64, ...}
    {"timestamp": 1500, "time_s": 1.5, "input_length": 130, "output_length": 9,
     "hash_ids": [..], "session": .., "tenant": ..}

`time_s` is the exact time, `timestamp` the same in whole ms for tools that read Mooncake's form.
The Parquet form (`keepwarm.workload.parquet`) says the same in less space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from keepwarm.errors import ArgumentError
from keepwarm.workload.readers.json_lines import records
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.rows import (
    BadRecordError,
    Row,
    Timed,
    as_ids,
    as_time,
    as_tokens,
    fitting,
)
from keepwarm.workload.readers.skips import Skips
from keepwarm.workload.trace import Batch, TokensAre, TraceInfo

FORMAT = "keepwarm trace"
VERSION = 1


def matches(record: dict[str, Any]) -> bool:
    """Whether a record is a header of this form."""
    return record.get("format") == FORMAT


def info_of(header: dict[str, Any], where: str) -> TraceInfo:
    """What a header says. Raises ArgumentError where that cannot be."""
    if header.get("version") != VERSION:
        raise ArgumentError(f"{where}: only version {VERSION} of this form is known")
    tokens, notes = header.get("block_tokens"), header.get("notes", [])
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise ArgumentError(f"{where}: block_tokens is no whole number")
    try:
        tokens_are = TokensAre(header.get("tokens_are", ""))
    except ValueError:
        raise ArgumentError(f"{where}: its tokens_are is not known") from None
    return TraceInfo(
        name=str(header.get("name", where)),
        format="keepwarm-jsonl",
        source=str(header.get("source", "")),
        block_tokens=tokens,
        tokens_are=tokens_are,
        synthetic=header.get("synthetic") is True,
        notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
    )


def encoded(info: TraceInfo, batches: Iterable[Batch]) -> Iterator[bytes]:
    """The lines of a trace in this form."""
    encode = msgspec.json.Encoder().encode
    header = {
        "format": FORMAT,
        "version": VERSION,
        "block_tokens": info.block_tokens,
        "name": info.name,
        "source": info.source,
        "synthetic": info.synthetic,
        "tokens_are": info.tokens_are.value,
        "notes": list(info.notes),
    }
    yield encode(header) + b"\n"
    for batch in batches:
        for at in range(len(batch)):
            time_s = float(batch.times_s[at])
            row = {
                "timestamp": round(time_s * 1000),
                "time_s": time_s,
                "input_length": int(batch.input_tokens[at]),
                "output_length": int(batch.output_tokens[at]),
                "hash_ids": batch.blocks(at).tolist(),
                "session": int(batch.sessions[at]),
                "tenant": int(batch.tenants[at]),
            }
            yield encode(row) + b"\n"


class Rows:
    """Reads one file of this form."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """One row a record; what is none is counted."""
        for where, record in records(log, skips, on_read):
            if matches(record):
                if record.get("block_tokens") != self._block_tokens:
                    raise ArgumentError(f"{where}: its blocks are not those of the first file")
                continue
            try:
                yield self._timed_row(record)
            except BadRecordError as error:
                skips.add(str(error), where)

    def _timed_row(self, record: dict[str, Any]) -> tuple[float, Row]:
        tokens = as_tokens(record.get("input_length"), "input")
        time_s = as_time(record.get("time_s"))
        return time_s, Row(
            tokens,
            as_tokens(record.get("output_length"), "output"),
            _hash(record.get("session", 0)),
            _hash(record.get("tenant", 0)),
            fitting(as_ids(record.get("hash_ids")), tokens, self._block_tokens),
        )


def _hash(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise BadRecordError("its session or tenant is no hash of 64 bits")
    return value
