"""Logs as a `TraceSource`: reads them in order as one, and says what was left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Protocol, runtime_checkable

from keepwarm.errors import ArgumentError
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.rows import (
    SINCE_1970_S,
    Row,
    T,
    Timed,
    batched,
    in_order,
    merged,
    of_one_clock,
)
from keepwarm.workload.readers.skips import Skips
from keepwarm.workload.trace import Batch, Progress, Skipped, TraceInfo

#: Rows of a log that are looked at for its first time, where there are several logs.
_PEEKED = 32


class RowReader(Protocol):
    """One format, for one reading of a trace; may remember things from one log to the next."""

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """Rows about in order of time; what is none is counted."""


@runtime_checkable
class Whole(Protocol):
    """A format whose logs are read one behind the other, and which orders rows by itself."""

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """Rows in order, of this log and those before."""

    def rest(self) -> Timed[Row]:
        """The rows that are left when all logs were read."""


class LogTrace:
    """Implements `TraceSource` on logs that are read row by row."""

    def __init__(
        self, info: TraceInfo, logs: Sequence[Input], make: Callable[[], RowReader]
    ) -> None:
        self._info = info
        self._logs = logs
        self._make = make
        self._skipped = Skipped({}, {})

    @property
    def info(self) -> TraceInfo:
        """What is true of the whole."""
        return self._info

    def skipped(self) -> Skipped:
        """What the last complete reading left out or changed."""
        return self._skipped

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        """Reads from the beginning. Raises ArgumentError if there is no request at all."""
        skips = Skips()
        is_empty = True
        for batch in batched(self._rows(skips, progress)):
            is_empty = False
            yield batch
        self._skipped = skips.seal()
        if is_empty:
            raise ArgumentError(nothing_read(self._logs, skips))

    def _rows(self, skips: Skips, progress: Progress | None) -> Timed[Row]:
        reader = self._make()
        meter = Meter(self._logs, progress)
        if isinstance(reader, Whole):
            for place, log in enumerate(self._logs):
                yield from reader.read(log, skips, meter.of(place))
            yield from reader.rest()
            return

        def read(log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
            return in_order(reader.read(log, skips, on_read), skips)

        def peek(log: Input) -> Timed[Row]:
            return self._make().read(log, Skips(), None)

        starts = starts_of(self._logs, read, skips, meter, peek)
        _refuse_two_clocks(self._logs, [first_s for first_s, _ in starts])
        yield from merged(starts, skips)


def starts_of(
    logs: Sequence[Input],
    read: Callable[[Input, Skips, OnRead | None], Timed[T]],
    skips: Skips,
    meter: Meter,
    peek: Callable[[Input], Timed[T]],
) -> list[tuple[float, Callable[[], Timed[T]]]]:
    """Each log's first time (minus infinity if it has none), and how to read it from its beginning.

    `peek` reads without remembering anything, and in the log's own order.
    """
    starts: list[tuple[float, Callable[[], Timed[T]]]] = []
    for place, log in enumerate(logs):
        begin = partial(read, log, skips, meter.of(place))
        if len(logs) == 1:
            return [(0.0, begin)]
        if log.is_pipe:
            items = begin()
            first = next(items, None)
            starts.append((first[0] if first else -math.inf, partial(_again, first, items)))
            continue
        with closing(peek(log)) as looking:
            usual = islice(of_one_clock(looking, Skips(), _PEEKED), _PEEKED)
            first_s = min((time_s for time_s, _ in usual), default=-math.inf)
        starts.append((first_s, begin))
    return starts


def _refuse_two_clocks(logs: Sequence[Input], starts_s: Sequence[float]) -> None:
    """Merged they would make a trace of half a century, which tells the day of one of them."""
    known = [(log.name, at_s) for log, at_s in zip(logs, starts_s, strict=False) if at_s >= 0]
    days = [name for name, at_s in known if at_s >= SINCE_1970_S]
    others = [name for name, at_s in known if at_s < SINCE_1970_S]
    if days and others:
        raise ArgumentError(
            f"times of {days[0]} count from 1970, those of {others[0]} do not, or it has none: "
            "give logs of one clock"
        )


def _again(first: tuple[float, T] | None, following: Timed[T]) -> Timed[T]:
    if first is not None:
        yield first
    yield from following


class Meter:
    """Adds up what was read of several logs, for a progress bar."""

    def __init__(self, logs: Sequence[Input], progress: Progress | None) -> None:
        sizes = [log.size for log in logs]
        self._all = None if None in sizes else sum(size or 0 for size in sizes)
        self._read = [0] * len(logs)
        self._progress = progress

    def of(self, place: int) -> OnRead | None:
        """What the log at `place` tells its bytes to."""
        return None if self._progress is None else partial(self._tell, place)

    def _tell(self, place: int, read: int) -> None:
        self._read[place] = read
        if self._progress is not None:
            self._progress(sum(self._read), self._all)


def nothing_read(logs: Sequence[Input], skips: Skips) -> str:
    """Why a whole trace came to nothing."""
    names = ", ".join(log.name for log in logs[:3]) + (", …" if len(logs) > 3 else "")
    if not skips.total():
        return f"{names}: there is no request in it"
    return f"{names}: no request could be read of {skips.total()} records: {skips.describe()}"
