"""The portable form of a trace: one Parquet file of hashes and counts, a row a request.

```text
time_s f64 | input_tokens u32 | output_tokens u32 | session u64 | tenant u64 | block_ids list<u64>
```
What is true of the whole stands in the file's metadata under `keepwarm.*`. Row groups are bounded,
so that writing and reading hold a few megabytes whatever the trace's length. Numbers come out as
views of the columns that were read. Needs pyarrow (`pip install "keepwarm[workload]"`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import ArgumentError
from keepwarm.files import replacing
from keepwarm.workload.trace import Batch, Progress, Skipped, TokensAre, TraceInfo

FORMAT = "keepwarm trace"
VERSION = 1
#: A row group ends at whichever of these comes first.
GROUP_REQUESTS = 65_536
GROUP_BLOCKS = 1 << 21
#: Requests of a batch as it is read.
READ_REQUESTS = 8_192
PLACES_MAX = 5
_NUMBERS = ("time_s", "input_tokens", "output_tokens", "session", "tenant")


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ArgumentError(
            'Parquet traces need pyarrow: pip install "keepwarm[workload]"'
        ) from None
    return pyarrow


def _schema(arrow: Any, info: TraceInfo) -> Any:
    facts = {
        "format": FORMAT,
        "version": str(VERSION),
        "block_tokens": str(info.block_tokens),
        "name": info.name,
        "source": info.source,
        "synthetic": "true" if info.synthetic else "false",
        "tokens_are": info.tokens_are.value,
        "notes": json.dumps(list(info.notes)),
    }
    fields = [
        ("time_s", arrow.float64()),
        ("input_tokens", arrow.uint32()),
        ("output_tokens", arrow.uint32()),
        ("session", arrow.uint64()),
        ("tenant", arrow.uint64()),
        ("block_ids", arrow.list_(arrow.field("item", arrow.uint64(), nullable=False))),
    ]
    columns = [arrow.field(name, kind, nullable=False) for name, kind in fields]
    return arrow.schema(columns, {f"keepwarm.{key}": value for key, value in facts.items()})


def write(path: Path, info: TraceInfo, batches: Iterable[Batch]) -> int:
    """Writes a trace; returns its requests. The file appears under its name when it is whole.

    Raises ArgumentError without pyarrow, OSError where the file cannot be written.
    """
    arrow = _pyarrow()
    schema = _schema(arrow, info)
    written = 0
    # Ids are hashes: neither a dictionary nor statistics make them smaller or quicker to find.
    with (
        replacing(path) as part,
        arrow.parquet.ParquetWriter(
            part,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
        ) as writer,
    ):
        for group in _groups(batches):
            writer.write_table(_table(arrow, schema, group), row_group_size=len(group))
            written += len(group)
    return written


def _table(arrow: Any, schema: Any, batch: Batch) -> Any:
    ids = arrow.ListArray.from_arrays(
        arrow.array(batch.offsets.astype(np.int32)),
        arrow.array(batch.block_ids),
        type=schema.field("block_ids").type,
    )
    numbers = (
        batch.times_s,
        batch.input_tokens,
        batch.output_tokens,
        batch.sessions,
        batch.tenants,
    )
    return arrow.Table.from_arrays([*(arrow.array(each) for each in numbers), ids], schema=schema)


def _groups(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same requests in batches as large as a row group may be."""
    held: list[Batch] = []
    requests = blocks = 0
    for batch in batches:
        for piece in _pieces(batch):
            if held and (
                requests + len(piece) > GROUP_REQUESTS
                or blocks + len(piece.block_ids) > GROUP_BLOCKS
            ):
                yield joined(held)
                held, requests, blocks = [], 0, 0
            held.append(piece)
            requests += len(piece)
            blocks += len(piece.block_ids)
    if held:
        yield joined(held)


def _pieces(batch: Batch) -> Iterator[Batch]:
    """A batch cut so that each piece fits into a row group, or is a single request."""
    start = 0
    while start < len(batch):
        limit = int(batch.offsets[start]) + GROUP_BLOCKS
        by_blocks = int(np.searchsorted(batch.offsets, limit, side="right")) - 1
        end = max(start + 1, min(by_blocks, start + GROUP_REQUESTS, len(batch)))
        yield batch if end - start == len(batch) else part_of(batch, start, end)
        start = end


def part_of(batch: Batch, start: int, end: int) -> Batch:
    """The requests from `start` to before `end`, as views."""
    first, last = int(batch.offsets[start]), int(batch.offsets[end])
    return Batch(
        batch.times_s[start:end],
        batch.input_tokens[start:end],
        batch.output_tokens[start:end],
        batch.sessions[start:end],
        batch.tenants[start:end],
        batch.offsets[start : end + 1] - np.uint64(first),
        batch.block_ids[first:last],
    )


def joined(batches: list[Batch]) -> Batch:
    """Batches one behind the other as one."""
    if len(batches) == 1:
        return batches[0]
    ends = np.cumsum([0, *(len(each.block_ids) for each in batches)], dtype=np.uint64)
    offsets = [each.offsets[1:] + end for each, end in zip(batches, ends[:-1], strict=True)]
    return Batch(
        np.concatenate([each.times_s for each in batches]),
        np.concatenate([each.input_tokens for each in batches]),
        np.concatenate([each.output_tokens for each in batches]),
        np.concatenate([each.sessions for each in batches]),
        np.concatenate([each.tenants for each in batches]),
        np.concatenate([np.zeros(1, np.uint64), *offsets]),
        np.concatenate([each.block_ids for each in batches]),
    )


class ParquetTrace:
    """A trace in the form of this module. Implements `TraceSource`.

    Raises ArgumentError for a file that is no such trace: which, and what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._skipped = Skipped({}, {})
        with self._open() as file:
            self._info = _info(path, file.schema_arrow)
            self._requests = int(file.metadata.num_rows)

    @property
    def info(self) -> TraceInfo:
        """What the file's metadata say."""
        return self._info

    def requests(self) -> int:
        """Rows, without reading them."""
        return self._requests

    def skipped(self) -> Skipped:
        """What the last complete reading left out."""
        return self._skipped

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """Reads from the beginning. Rows that no request can be are skipped and counted."""
        counts: Counter[str] = Counter()
        places: dict[str, list[str]] = {}
        arrow = _pyarrow()
        size = self._path.stat().st_size
        row, latest = 0, 0.0
        with self._open() as file:
            names = [*_NUMBERS, "block_ids"]
            for read in self._read(arrow, file, names):
                batch, wrong = _checked(read, latest, self._info.block_tokens)
                for reason, rows in wrong.items():
                    counts[reason] += len(rows)
                    known = places.setdefault(reason, [])
                    room = PLACES_MAX - len(known)
                    known += [f"{self._path.name}:{row + int(at) + 1}" for at in rows[:room]]
                row += read.num_rows
                if len(batch):
                    latest = float(batch.times_s[-1])
                    yield batch
                if progress is not None:
                    progress(size * row // max(self._requests, 1), size)
        self._skipped = Skipped(dict(counts), places)
        if row == counts.total():
            reasons = "; ".join(f"{count} records: {reason}" for reason, count in counts.items())
            raise ArgumentError(f"{self._path}: no request could be read: {reasons or 'no rows'}")

    def _read(self, arrow: Any, file: Any, names: list[str]) -> Iterator[Any]:
        try:
            # One thread: the columns are decoded about as fast as anybody takes them.
            yield from file.iter_batches(READ_REQUESTS, columns=names, use_threads=False)
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise ArgumentError(f"{self._path} is damaged: {_said(error)}") from error

    def _open(self) -> Any:
        arrow = _pyarrow()
        try:
            # Buffering ahead would keep all of the file that was read.
            return arrow.parquet.ParquetFile(self._path, pre_buffer=False)
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise ArgumentError(f"{self._path} is no Parquet file: {_said(error)}") from error


def _said(error: Exception) -> str:
    """What a library says of damage, in one line of what can be printed."""
    text = " ".join(str(error).split())
    return "".join(each if each.isprintable() else "?" for each in text)[:200]


def _check_types(path: Path, schema: Any) -> None:
    """Others' columns of the same names may have types in which no hash and no count fits."""
    kinds = ("double", "uint32", "uint32", "uint64", "uint64")
    for name, kind in zip(_NUMBERS, kinds, strict=True):
        found = str(schema.field(name).type)
        if found != kind:
            raise ArgumentError(f"{path}: the column {name} is {found}, not {kind}")
    ids = schema.field("block_ids").type
    value = getattr(ids, "value_type", None)
    if not str(ids).startswith(("list<", "large_list<")) or str(value) != "uint64":
        raise ArgumentError(f"{path}: the column block_ids is {ids}, not list<uint64>")


def _info(path: Path, schema: Any) -> TraceInfo:
    facts = {
        key.decode("utf-8", "replace").removeprefix("keepwarm."): value.decode("utf-8", "replace")
        for key, value in (schema.metadata or {}).items()
        if key.startswith(b"keepwarm.")
    }
    if facts.get("format") != FORMAT or facts.get("version") != str(VERSION):
        raise ArgumentError(
            f"{path} is no {FORMAT} of version {VERSION}: use workload anonymise or synth"
        )
    missing = [name for name in (*_NUMBERS, "block_ids") if name not in schema.names]
    if missing:
        raise ArgumentError(f"{path} lacks the columns {', '.join(missing)}")
    _check_types(path, schema)
    try:
        block_tokens = int(facts["block_tokens"])
        tokens_are = TokensAre(facts["tokens_are"])
        notes = tuple(map(str, json.loads(facts.get("notes", "[]"))))
    except (KeyError, ValueError, TypeError, RecursionError):
        raise ArgumentError(f"{path} has metadata that mean nothing") from None
    return TraceInfo(
        name=facts.get("name") or path.stem,
        format="parquet",
        source=facts.get("source", path.name),
        block_tokens=block_tokens,
        tokens_are=tokens_are,
        synthetic=facts.get("synthetic") == "true",
        notes=notes,
    )


def _column(read: Any, name: str, kind: Any) -> NDArray[Any]:
    column = read.column(name)
    if column.null_count:
        column = column.fill_null(0)
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(kind, copy=False)


def _checked(
    read: Any, latest: float, block_tokens: int
) -> tuple[Batch, dict[str, NDArray[np.int64]]]:
    """A batch of the rows that can be requests, and the others' places by reason."""
    ids = read.column("block_ids")
    if ids.values.null_count:
        raise ArgumentError("a trace has block ids that are null: write it again without them")
    raw = np.asarray(ids.offsets.to_numpy())
    offsets = (raw - raw[0]).astype(np.uint64)
    values = np.asarray(ids.values.to_numpy(zero_copy_only=False))[int(raw[0]) : int(raw[-1])]
    batch = Batch(
        _column(read, "time_s", np.float64),
        _column(read, "input_tokens", np.uint32),
        _column(read, "output_tokens", np.uint32),
        _column(read, "session", np.uint64),
        _column(read, "tenant", np.uint64),
        offsets,
        values.astype(np.uint64, copy=False),
    )
    times = batch.times_s
    finite = np.isfinite(times) & (times >= 0)
    sofar = np.maximum.accumulate(np.where(finite, times, latest)) if len(batch) else times
    before = np.concatenate([[latest], np.maximum(sofar[:-1], latest)]) if len(batch) else times
    blocks = np.diff(batch.offsets)
    room = (batch.input_tokens.astype(np.uint64) + np.uint64(block_tokens - 1)) // np.uint64(
        block_tokens
    )
    reasons = {
        "time is no number, or negative": ~finite,
        "time runs back": finite & (times < before),
        "more blocks than tokens": blocks > room,
    }
    wrong = {reason: np.flatnonzero(bad) for reason, bad in reasons.items() if bad.any()}
    if not wrong:
        return batch, wrong
    bad = np.logical_or.reduce(list(reasons.values()))
    return _kept(batch, ~bad), wrong


def _kept(batch: Batch, good: NDArray[np.bool_]) -> Batch:
    lengths = np.diff(batch.offsets)
    of_good = np.repeat(good, lengths.astype(np.int64))
    return Batch(
        batch.times_s[good],
        batch.input_tokens[good],
        batch.output_tokens[good],
        batch.sessions[good],
        batch.tenants[good],
        np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths[good], dtype=np.uint64)]),
        batch.block_ids[of_good],
    )
