"""Bytes over a path: stored, read back, compared, timed; and a copy in memory to compare with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from keepwarm.client import Space
from keepwarm.errors import NodeError
from keepwarm.ops.doctor.checks import Check, fail, ok, warn
from keepwarm.outcomes import Outcome, Status

BLOCKS = 4
BLOCK_BYTES_MAX = 2 << 20
ROUNDS = 5
# Reads on one machine below this share of a plain copy mean that something is in the way.
SHARE_LEAST = 0.02

_TODO = {
    "corrupt": "bytes change on this path: test the memory of both ends and what lies between",
    "deadline": "the node does not answer in time: look at its load, or give a longer --deadline",
    "store_down": "the node went away meanwhile: look at its log",
    "quota": "the tenant's quota is filled: raise it",
    "leased": "leases hold too much of the arena: raise capacity",
    "watermark": "loads come first and leave no room for stores: raise capacity or add a node",
    "too_large": "the node takes no blocks of this size: raise its capacity",
    "identity": "this principal may not: give it the rights to read and write",
    "evicted": "blocks leave within moments: raise capacity",
}


class Speed(NamedTuple):
    """Bytes a second."""

    put: float
    get: float


def block_bytes(capacity: int) -> int:
    """How large the doctor's blocks are: all of them together at most 1/64 of the arena."""
    share = capacity // 64 // BLOCKS
    return max(min(BLOCK_BYTES_MAX, share - share % 4096), 4096)


def copy_speed(length: int) -> float:
    """Bytes a second of a plain copy of that many, the best of a few."""
    source, target = memoryview(os.urandom(length)), memoryview(bytearray(length))

    def copy() -> None:
        target[:] = source

    return length / min(_seconds(copy) for _ in range(ROUNDS))


def over(
    path: str,
    space: Space,
    keys_of: Callable[[int], bytes],
    each_bytes: int,
    copy: float,
    deadline_s: float,
) -> Iterator[Check]:
    """Puts and gets a few blocks over a path, `ROUNDS` times, each with keys of its own."""
    content = os.urandom(BLOCKS * each_bytes)
    put_s, get_s = [], []
    for number in range(ROUNDS):
        keys, landed = keys_of(number), bytearray(len(content))
        begun = time.perf_counter()
        stored = space.put_from(keys, content, deadline_s=deadline_s)
        put_s.append(time.perf_counter() - begun)
        if bad := _first(stored, Status.STORED):
            yield fail(f"put over {path}", _shown(bad), _todo(bad))
            return
        begun = time.perf_counter()
        read = space.get_into(keys, landed, deadline_s=deadline_s)
        get_s.append(time.perf_counter() - begun)
        if bad := _first(read, Status.OK):
            yield fail(f"get over {path}", _shown(bad), _todo(bad))
            return
        if landed != content:
            todo = "the node gave other bytes than were stored, unnoticed: report this as a bug"
            yield fail(f"bytes over {path}", "differ", todo)
            return
        try:
            space.drop(keys, deadline_s)
        except NodeError as error:
            yield fail(f"drop over {path}", str(error), "give this principal the right to drop")
            return
    speed = Speed(len(content) / min(put_s), len(content) / min(get_s))
    yield _judged(path, speed, copy)


def _judged(path: str, speed: Speed, copy: float) -> Check:
    figure = (
        f"{speed.get / 2**30:.2f} GiB/s ({speed.get / copy:.2f} of a copy), "
        f"put {speed.put / 2**30:.2f} GiB/s ({speed.put / copy:.2f})"
    )
    if speed.get < SHARE_LEAST * copy and path != "tcp":
        todo = "the machine has no processor time for it: give node and engine cores of their own"
        return warn(f"get over {path}", figure, todo)
    return ok(f"get over {path}", figure)


def _first(outcomes: list[Outcome], wanted: Status) -> Outcome | None:
    return next((outcome for outcome in outcomes if outcome.status is not wanted), None)


def _shown(bad: Outcome) -> str:
    return str(bad.status) if bad.reason is None else f"{bad.status}: {bad.reason}"


def _todo(bad: Outcome) -> str:
    name = str(bad.reason) if bad.reason is not None else str(bad.status)
    return _TODO.get(name, f"what {name} means is in the documentation")


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
