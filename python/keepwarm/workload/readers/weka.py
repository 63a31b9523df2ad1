"""Coding-agent sessions of the `weka-claude-code` data set: a folder, a tar archive or one file.

A session is one JSON document: `requests` with `t` (s from its start), `in`, `out` and `hash_ids`
of 64 tokens; sub-agents' requests are nested. Ids are local to a session, so each session's are
moved past those of the one before: no sharing between sessions is left, and none is invented.
Sessions have no time of day: the n-th starts n times `stagger_s` after the first.
"""

from __future__ import annotations

import heapq
import io
import tarfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keepwarm.errors import ArgumentError
from keepwarm.workload.hashing import Hasher
from keepwarm.workload.readers.json_lines import DOCUMENT_BYTES_MAX, decode
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

BLOCK_TOKENS = 64
_TAR_MAGIC = slice(257, 262)


def is_archive(head: bytes) -> bool:
    """Whether the bytes begin a tar archive."""
    return head[_TAR_MAGIC] == b"ustar"


def matches(record: dict[str, Any]) -> bool:
    """Whether a document is a session."""
    listed = record.get("requests")
    return isinstance(listed, list) and ("hash_id_scope" in record or "block_size" in record)


def files_of(folder: Path) -> list[str]:
    """The sessions in a folder, in order of their names; none if it holds others things."""
    return sorted(str(path) for path in folder.glob("trace_*.json") if path.is_file())


class Sessions:
    """Reads sessions, each in turn, and puts their requests in order of time."""

    def __init__(self, stagger_s: float, hasher: Hasher) -> None:
        self._stagger_s = stagger_s
        self._hasher = hasher
        self._seen: set[bytes] = set()
        self._base = 0
        self._waiting: list[tuple[float, int, Row]] = []
        self._pushed = 0

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """Rows in order; whatever a document has that is no request is counted."""
        for where, document in _documents(log, skips, on_read):
            start_s = len(self._seen) * self._stagger_s
            if not self._is_new(document):
                skips.add("an exact duplicate of another session", where)
                continue
            while self._waiting and self._waiting[0][0] < start_s:
                time_s, _, row = heapq.heappop(self._waiting)
                yield time_s, row
            self._take(document, start_s, where, skips)

    def rest(self) -> Timed[Row]:
        """What is left when all logs were read."""
        while self._waiting:
            time_s, _, row = heapq.heappop(self._waiting)
            yield time_s, row

    def _is_new(self, document: dict[str, Any]) -> bool:
        # As the data set's own list of duplicates has it.
        facts = [
            (entry.get("in"), entry.get("out"), entry.get("t"))
            for entry in document["requests"]
            if isinstance(entry, dict)
        ]
        identity = self._hasher.extend(b"", repr(facts).encode())
        is_new = identity not in self._seen
        self._seen.add(identity)
        return is_new

    def _take(self, document: dict[str, Any], start_s: float, where: str, skips: Skips) -> None:
        session = self._hasher.name("session", f"{document.get('id')}\0{where}")
        highest = 0
        for place, (marker, entry) in enumerate(_entries(document)):
            at = f"{where}#{place}"
            try:
                time_s, row, last = self._row(marker, entry, session)
            except BadRecordError as error:
                skips.add(str(error), at)
                continue
            highest = max(highest, last)
            heapq.heappush(self._waiting, (start_s + time_s, self._pushed, row))
            self._pushed += 1
        self._base += highest + 1

    def _row(self, marker: object, entry: object, session: int) -> tuple[float, Row, int]:
        if not isinstance(entry, dict):
            raise BadRecordError("it is no JSON object")
        time_s = as_time(entry.get("t"))
        if marker is not None:
            # A nested time counts from its marker unless it is already past it.
            start_s = as_time(marker)
            time_s = time_s if time_s >= start_s else start_s + time_s
        tokens = as_tokens(entry.get("in"), "input")
        ids = fitting(as_ids(entry.get("hash_ids")), tokens, BLOCK_TOKENS)
        if not ids:
            raise BadRecordError("it has no block ids")
        plain = np.frombuffer(ids, dtype=np.uint64)
        highest = int(plain.max())
        if highest + self._base >= 1 << 64:
            raise BadRecordError("its block ids have more than 64 bits")
        shifted = array("Q", (plain + np.uint64(self._base)).tobytes())
        return (
            time_s,
            Row(tokens, as_tokens(entry.get("out"), "output"), session, 0, shifted),
            (highest),
        )


def _entries(document: dict[str, Any]) -> Iterator[tuple[object, object]]:
    """Requests, with the time of the marker that they are nested under."""
    for entry in document["requests"]:
        nested = entry.get("requests") if isinstance(entry, dict) else None
        if not isinstance(nested, list):
            yield None, entry
            continue
        for each in nested:
            yield entry.get("t"), each


def _documents(
    log: Input, skips: Skips, on_read: OnRead | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    if is_archive(log.head()):
        yield from _members(log, skips, on_read)
        return
    try:
        found = decode(log.whole(skips, DOCUMENT_BYTES_MAX, on_read))
    except ArgumentError:
        raise
    except ValueError as error:
        skips.add(str(error), log.name)
        return
    if isinstance(found, dict) and matches(found):
        yield log.name, found
    else:
        skips.add("it is no session", log.name)


def _members(
    log: Input, skips: Skips, on_read: OnRead | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sessions of an archive, which is read as a stream, its members in their order."""
    stream = io.BufferedReader(_Stream(log.chunks(skips, on_read)), 1 << 20)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if not member.isfile() or not member.name.endswith(".json"):
                    continue
                where = f"{log.name}:{Path(member.name).name}"
                if member.size > DOCUMENT_BYTES_MAX:
                    skips.add(f"a session of more than {DOCUMENT_BYTES_MAX >> 20} MiB", where)
                    continue
                data = archive.extractfile(member)
                try:
                    found = decode(data.read() if data is not None else b"")
                except ValueError as error:
                    skips.add(str(error), where)
                    continue
                if isinstance(found, dict) and matches(found):
                    yield where, found
                else:
                    skips.add("it is no session", where)
    except (tarfile.TarError, EOFError):
        skips.add("the archive ends early or is damaged", log.name)


class _Stream(io.RawIOBase):
    """Chunks as a file that is read forwards."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes, some of them."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
