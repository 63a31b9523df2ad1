"""Calls that cannot be meant, by what is wrong with each: every memory refuses all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

OBJECTS = np.array([None, None])
STRIDED = np.zeros((4, 4), np.uint8)[:, ::2]


def calls(space: Any, keys: bytes, size: int) -> dict[str, Callable[[], Any]]:
    """`keys` are two keys, of blocks of `size` bytes each."""
    both, one, shared = bytearray(2 * size), keys[:16], bytearray(size)
    return {
        "half a key": lambda: space.lookup(keys[:-1]),
        "keys as text": lambda: space.lookup("k" * 16),
        "too many keys": lambda: space.lookup(bytes(16 * 65_537)),
        "a negative place": lambda: space.lookup(keys, first_position=-1),
        "a negative lease": lambda: space.lookup(keys, lease_s=-1),
        "a deadline that is no number": lambda: space.lookup(keys, deadline_s="soon"),
        "an endless deadline": lambda: space.lookup(keys, deadline_s=1e9),
        "an uneven buffer": lambda: space.get_into(keys, bytearray(2 * size + 1)),
        "a buffer too few": lambda: space.get_into(keys, [bytearray(size)]),
        "a read-only destination": lambda: space.get_into(keys, bytes(2 * size)),
        "a shared destination": lambda: space.get_into(keys, [shared, shared]),
        "a part of too many bits": lambda: space.get_into(keys, both, part=300),
        "an empty buffer": lambda: space.put_from(one, b""),
        "a null pointer": lambda: space.put_from(one, (0, 4)),
        "a buffer with gaps": lambda: space.put_from(one, STRIDED),
        "a buffer of objects": lambda: space.put_from(one, OBJECTS),
        "a number for a buffer": lambda: space.put_from(one, 7),
        "a hash too few": lambda: space.put_from(keys, both, engine_hashes=[1]),
        "a hash of too many bits": lambda: space.put_from(one, b"abcd", engine_hashes=[1 << 65]),
        "a negative epoch": lambda: space.bump_epoch(-1),
        "a report of two": lambda: space.report(keys, 1),
    }
