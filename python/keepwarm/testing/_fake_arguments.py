"""What the fake refuses: the same arguments as the real client, with errors of the same kind."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from keepwarm import ArgumentError
from keepwarm.arguments import left, real
from keepwarm.testing.blocks import split_keys

KEYS_MAX = 65_536
SECONDS_MAX = 86_400.0


def remaining(deadline_s: float) -> float:
    """What the deadline leaves."""
    return _bounded("deadline_s", left(deadline_s))


def lease(lease_s: float | None) -> float | None:
    """A lease's time, if one is asked for."""
    return None if lease_s is None else _bounded("lease_s", real("lease_s", lease_s))


def _bounded(name: str, seconds: float) -> float:
    if not 0 <= seconds <= SECONDS_MAX:
        raise ArgumentError(f"{name} is {seconds}: pass seconds from 0 to 86400")
    return seconds


def keys_of(keys: Any) -> list[bytes]:
    """The keys in one buffer of 16 bytes each."""
    plain = bytes(_view(keys, "keys"))
    if len(plain) % 16:
        raise ArgumentError(f"keys has {len(plain)} bytes, which is no multiple of 16")
    if len(plain) // 16 > KEYS_MAX:
        raise ArgumentError(f"{len(plain) // 16} keys in one call; at most {KEYS_MAX}: split")
    return split_keys(plain)


def views(buffers: Any, count: int, writable: bool) -> list[memoryview]:
    """One view a key: of one buffer split evenly, of a sequence of buffers, or of addresses."""
    if not count:
        return []  # whatever was given, none of it is touched
    one = isinstance(buffers, bytes | bytearray | memoryview) or _is_pair(buffers)
    if isinstance(buffers, Sequence) and not one:
        found = [_view(each, f"buffers[{at}]") for at, each in enumerate(buffers)]
        if len(found) != count:
            raise ArgumentError(f"buffers has {len(found)} entries for {count} keys: one per key")
    else:
        found = _split(_view(buffers, "buffers"), count)
    if any(not len(view) for view in found):
        raise ArgumentError("buffers is empty: a block has one byte or more")
    if writable and any(view.readonly for view in found):
        raise ArgumentError("buffers is read-only: pass memory that can be written")
    if writable:
        _refuse_overlaps(found)
    return found


def _split(whole: memoryview, count: int) -> list[memoryview]:
    if len(whole) % count:
        raise ArgumentError(
            f"buffers has {len(whole)} bytes, which do not split evenly over {count} keys"
        )
    size = len(whole) // count
    return [whole[at * size : (at + 1) * size] for at in range(count)]


def _refuse_overlaps(found: list[memoryview]) -> None:
    starts = ((np.frombuffer(view, np.uint8).ctypes.data, len(view)) for view in found)
    for (one, length), (other, _) in pairwise(sorted(starts)):
        if one + length > other:
            raise ArgumentError("buffers overlap: give each key its own memory")


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(n, int) for n in given)


def _view(buffer: Any, name: str) -> memoryview:
    if _is_pair(buffer):
        address, length = buffer
        if not 0 < address < 1 << 64 or not 0 < length <= (1 << 64) - address:
            raise ArgumentError(f"{name} is {buffer}: pass the address of the memory and its bytes")
        return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
    try:
        view = memoryview(buffer)
    except TypeError:
        raise ArgumentError(
            f"{name} is {type(buffer).__name__}: pass an object with the buffer protocol"
        ) from None
    if "O" in view.format:
        raise ArgumentError(f"{name} holds Python objects, whose bytes mean nothing elsewhere")
    if not view.c_contiguous:
        raise ArgumentError(f"{name} is not C-contiguous: pass a contiguous slice, or copy it")
    # A view without elements cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")
