"""From single requests to `Batch`es: checks, order of arrival, several logs as one.

Memory is bounded: `WINDOW` requests a log for putting them in order, and one batch.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from keepwarm.workload.readers.skips import Skips
from keepwarm.workload.trace import Batch

T = TypeVar("T")
#: Things with their times, seconds on whatever clock their log has.
Timed = Generator[tuple[float, T], None, None]

#: A log may name a request this many requests too late and is still put in order.
WINDOW = 1024
BATCH_REQUESTS = 4096
BATCH_IDS = 1 << 20
TOKENS_MAX = (1 << 32) - 1
#: Seconds; the year 5138. What is later is no time.
_TIME_MAX_S = 1e11
#: From 1973 on: what is later counts from 1970, what is earlier from anywhere.
SINCE_1970_S = 1e8

CLOCK_RAN_BACK = "clock ran back: moved forward to the request before"
OTHER_CLOCK = "its time is of another clock than most of its log's: that of the request before"


class Row(NamedTuple):
    """One request, without its time: rows travel as `(time_s, row)`."""

    input_tokens: int
    output_tokens: int
    session: int
    tenant: int
    block_ids: array[int]


class BadRecordError(ValueError):
    """A record that is left out; its text is the reason, in fixed words."""


NO_IDS: array[int] = array("Q")


def as_time(value: object, per_second: float = 1.0) -> float:
    """A time in seconds; raises BadRecordError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecordError("its time is no number")
    try:
        seconds = float(value) / per_second
    except OverflowError:
        raise BadRecordError("its time is out of range") from None
    if seconds < 0:
        raise BadRecordError("its time is negative")
    if not math.isfinite(seconds) or seconds > _TIME_MAX_S:
        raise BadRecordError("its time is out of range")
    return seconds


def as_tokens(value: object, what: str) -> int:
    """A count of tokens; `what` names it in the reason."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRecordError(f"its {what} tokens are no whole number")
    if not 0 <= value <= TOKENS_MAX:
        raise BadRecordError(f"its {what} tokens are negative or over 2^32")
    return value


def as_ids(value: object) -> array[int]:
    """Block ids of 64 bits; signed ones are taken as the same bits."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise BadRecordError("its block ids are no list")
    try:
        return array("Q", value)
    except (OverflowError, TypeError):
        pass
    try:
        return array("Q", array("q", value).tobytes())
    except OverflowError:
        raise BadRecordError("its block ids have more than 64 bits") from None
    except TypeError:
        raise BadRecordError("its block ids are no whole numbers") from None


def fitting(ids: array[int], input_tokens: int, block_tokens: int) -> array[int]:
    """The ids, if the request's tokens have that many blocks."""
    if len(ids) > -(-input_tokens // block_tokens):
        raise BadRecordError(
            f"it has more block ids than its tokens have blocks of {block_tokens} "
            "(is the block size right?)"
        )
    return ids


def of_one_clock(items: Iterator[tuple[float, T]], skips: Skips, window: int) -> Timed[T]:
    """Times since 1970 or from anywhere, whichever most of the first items have.

    One zero among times of today would put half a century into the trace, and the day of all
    others into what is anonymised.
    """
    first = list(islice(items, window))
    since_1970 = [time_s >= SINCE_1970_S for time_s, _ in first]
    usual = 2 * sum(since_1970) > len(first)
    last_s = next((time_s for time_s, _ in first if (time_s >= SINCE_1970_S) is usual), 0.0)
    items = chain(first, items)
    del first  # the chain lets go of it once it is through
    for time_s, item in items:
        if (time_s >= SINCE_1970_S) is usual:
            last_s = time_s
        else:
            skips.mend(OTHER_CLOCK)
        yield last_s, item


def in_order(items: Iterable[tuple[float, T]], skips: Skips, window: int = WINDOW) -> Timed[T]:
    """By time, if none comes more than `window` items too late; a later one is moved forward."""
    waiting: list[tuple[float, int, T]] = []
    last_s = -math.inf
    for place, (time_s, item) in enumerate(of_one_clock(iter(items), skips, window)):
        if len(waiting) < window:
            heapq.heappush(waiting, (time_s, place, item))
            continue
        time_s, _, item = heapq.heappushpop(waiting, (time_s, place, item))
        if time_s < last_s:
            skips.mend(CLOCK_RAN_BACK)
            time_s = last_s
        last_s = time_s
        yield time_s, item
    while waiting:
        time_s, _, item = heapq.heappop(waiting)
        yield max(time_s, last_s), item


def merged(logs: Sequence[tuple[float, Callable[[], Timed[T]]]], skips: Skips) -> Timed[T]:
    """Several logs in order as one; each is opened when its first time is reached.

    So a thousand hourly files cost no more than one, and files of replicas at work at once are
    interleaved.
    """
    waiting = sorted(enumerate(logs), key=lambda each: (each[1][0], each[0]), reverse=True)
    heads: list[tuple[float, int, T, Timed[T]]] = []
    last_s = -math.inf
    while heads or waiting:
        while waiting and (not heads or waiting[-1][1][0] <= heads[0][0]):
            place, (_, start) = waiting.pop()
            items = start()
            first = next(items, None)
            if first is not None:
                heapq.heappush(heads, (first[0], place, first[1], items))
        if not heads:
            continue
        time_s, place, item, items = heads[0]
        if time_s < last_s:  # its log begins before the time that it was opened for
            skips.mend(CLOCK_RAN_BACK)
        last_s = max(time_s, last_s)
        yield last_s, item
        following = next(items, None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following[0], place, following[1], items))


def batched(rows: Iterable[tuple[float, Row]]) -> Iterator[Batch]:
    """Columns of rows that are in order; times from the first one's."""
    times: list[float] = []
    kept: list[Row] = []
    ids = 0
    start_s: float | None = None
    for time_s, row in rows:
        if start_s is None:
            start_s = time_s
        times.append(time_s - start_s)
        kept.append(row)
        ids += len(row.block_ids)
        if len(kept) >= BATCH_REQUESTS or ids >= BATCH_IDS:
            yield _batch(times, kept)
            times, kept, ids = [], [], 0
    if kept:
        yield _batch(times, kept)


def _batch(times: list[float], rows: list[Row]) -> Batch:
    def column(name: str, kind: Any) -> Any:
        return np.array([getattr(row, name) for row in rows], dtype=kind)

    offsets = np.zeros(len(rows) + 1, dtype=np.uint64)
    np.cumsum([len(row.block_ids) for row in rows], out=offsets[1:])
    joined = b"".join(memoryview(row.block_ids).cast("B") for row in rows)
    return Batch(
        times_s=np.array(times, dtype=np.float64),
        input_tokens=column("input_tokens", np.uint32),
        output_tokens=column("output_tokens", np.uint32),
        sessions=column("session", np.uint64),
        tenants=column("tenant", np.uint64),
        offsets=offsets,
        block_ids=np.frombuffer(joined, dtype=np.uint64),
    )
