"""CSV of arrivals and lengths, such as Azure's and BurstGPT's: nothing is known to repeat.

A header names the columns, by any of the names below; `,`, `;` or tabs part them.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from keepwarm.errors import ArgumentError
from keepwarm.workload.hashing import Hasher
from keepwarm.workload.readers import times
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.rows import NO_IDS, BadRecordError, Row, Timed, as_tokens
from keepwarm.workload.readers.skips import Skips

TIME = (
    *("timestamp", "time", "time_s", "t", "arrival", "arrival_time", "arrived_at", "arrival_s"),
    *("arrival_timestamp", "start_time", "request_time", "created_at", "date", "datetime"),
)
INPUT = (
    *("contexttokens", "context_tokens", "input_tokens", "prompt_tokens", "request_tokens"),
    *("input_length", "prompt_length", "prompt_len", "input_len", "num_prefill_tokens"),
    *("num_input_tokens", "input"),
)
OUTPUT = (
    *("generatedtokens", "generated_tokens", "output_tokens", "completion_tokens"),
    *("response_tokens", "output_length", "output_len", "num_decode_tokens", "num_output_tokens"),
    "output",
)
SESSION = ("session_id", "session", "conversation_id", "chat_id", "user_session")
TENANT = ("tenant", "tenant_id", "organization", "org_id", "customer", "team")
_SEPARATORS = ",;\t"


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the columns are; -1: there is none."""

    separator: str
    time: int
    input: int
    output: int
    session: int
    tenant: int


def columns_of(line: bytes, fields: tuple[str, str] = ("", "")) -> Columns | None:
    """The columns, if a line is a header that names a time and input tokens."""
    text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    separator = max(_SEPARATORS, key=text.count)
    try:
        cells = _cells(text, separator)
    except BadRecordError:
        return None
    names = [each.strip().lower().replace(" ", "_").replace("-", "_") for each in cells]

    def place(aliases: Sequence[str]) -> int:
        return next((names.index(each) for each in aliases if each in names), -1)

    found = Columns(
        separator,
        place(TIME),
        place(INPUT),
        place(OUTPUT),
        place([fields[0].lower()] if fields[0] else SESSION),
        place([fields[1].lower()] if fields[1] else TENANT),
    )
    return found if found.time >= 0 and found.input >= 0 else None


class Rows:
    """Reads one file of lengths."""

    def __init__(self, hasher: Hasher, fields: tuple[str, str]) -> None:
        self._hasher = hasher
        self._fields = fields

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """One row a line; what is none is counted. Raises ArgumentError without a header."""
        lines = log.lines(skips, on_read)
        number, header = next(lines, (0, b""))
        columns = columns_of(header, self._fields)
        if columns is None:
            raise ArgumentError(f"{log.name}:{number}: no header that names a time and tokens")
        for number, line in lines:
            try:
                yield self._timed_row(line, columns)
            except BadRecordError as error:
                skips.add(str(error), f"{log.name}:{number}")

    def _timed_row(self, line: bytes, columns: Columns) -> tuple[float, Row]:
        try:
            cells = _cells(line.decode("utf-8"), columns.separator)
        except UnicodeDecodeError:
            raise BadRecordError("it is not UTF-8") from None
        if len(cells) <= max(columns.time, columns.input, columns.output):
            raise BadRecordError("it has fewer columns than the header")
        return times.parsed(cells[columns.time]), Row(
            _count(cells[columns.input], "input"),
            _count(cells[columns.output], "output") if columns.output >= 0 else 0,
            self._name("session", cells, columns.session),
            self._name("tenant", cells, columns.tenant),
            NO_IDS,
        )

    def _name(self, kind: str, cells: list[str], at: int) -> int:
        if 0 <= at < len(cells) and cells[at].strip():
            return self._hasher.name(kind, cells[at].strip())
        return 0


def _cells(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([text.rstrip("\r")], delimiter=separator), [])
    except csv.Error:
        raise BadRecordError("it is no line of CSV") from None


def _count(cell: str, what: str) -> int:
    try:
        return as_tokens(float(cell) if len(cell) < 32 else None, what)
    except (ValueError, OverflowError):
        raise BadRecordError(f"its {what} tokens are no whole number") from None
