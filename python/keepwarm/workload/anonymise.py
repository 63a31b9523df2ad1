"""Writes a trace in its portable form: hashes, counts and times from zero; no text and no names.

Parquet (`parquet`) or JSON lines (`readers.portable`), the latter also gz or zst, by the ending of
the file's name. The file appears under its name when it is whole. Neither the names of logs nor
the day on which they were written are in it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from keepwarm.errors import ArgumentError
from keepwarm.files import replacing
from keepwarm.workload import parquet
from keepwarm.workload.readers import portable
from keepwarm.workload.trace import Batch, Progress, Skipped, TraceInfo, TraceSource

ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst")
NAME = "anonymised"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and what of the logs was not."""

    requests: int
    block_ids: int
    bytes: int
    skipped: Skipped


class _Count:
    """Counts what passes."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self.requests = self.block_ids = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self.requests += len(batch)
            self.block_ids += len(batch.block_ids)
            yield batch


def check_target(out: Path, force: bool) -> None:
    """Raises ArgumentError for a file that cannot be, or is there already."""
    if not out.name.endswith(ENDINGS) or out.name in ENDINGS:
        raise ArgumentError(f"{out}: write a file that ends in {', '.join(ENDINGS)}")
    if not out.parent.is_dir():
        raise ArgumentError(f"{out}: there is no folder {out.parent}")
    if out.is_dir():
        raise ArgumentError(f"{out} is a folder")
    if out.exists() and not force:
        raise ArgumentError(f"{out} exists: give --force to overwrite it")


def anonymise(
    source: TraceSource, out: Path, *, force: bool = False, progress: Progress | None = None
) -> Written:
    """Writes a trace to `out`. Raises ArgumentError, and OSError where it cannot be written."""
    check_target(out, force)
    batches = _Count(source.batches(progress))
    info = anonymous(source.info)
    if out.name.endswith(".parquet"):
        parquet.write(out, info, batches)
    else:
        write_lines(out, info, batches)
    return Written(batches.requests, batches.block_ids, out.stat().st_size, source.skipped())


def write_lines(out: Path, info: TraceInfo, batches: Iterable[Batch]) -> None:
    """Writes a trace as JSON lines, packed as the name of `out` says. Raises OSError."""
    with (
        replacing(out) as part,
        part.open("wb") as plain,
        _packed(plain, out.name) as file,
    ):
        for line in portable.encoded(info, batches):
            file.write(line)


def anonymous(info: TraceInfo) -> TraceInfo:
    """What may be told of a trace: not what its logs were called."""
    return replace(info, name=NAME, source=info.format)


@contextmanager
def _packed(plain: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=plain, mode="wb", filename="", mtime=0) as packed:
            yield cast(IO[bytes], packed)
    elif name.endswith(".zst"):
        try:
            import zstandard
        except ImportError:
            raise ArgumentError(
                'writing .zst needs more packages: pip install "keepwarm[workload]"'
            ) from None
        with zstandard.ZstdCompressor().stream_writer(plain, closefd=False) as stream:
            yield stream
    else:
        yield plain
