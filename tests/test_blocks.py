"""Block bytes: recomputable, and different wherever a mistake could put them."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from keepwarm.testing import blocks

SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))


def test_content_depends_on_key_part_and_position() -> None:
    one, other = b"a" * 16, b"b" * 16
    assert blocks.content(one, 4096) == blocks.content(one, 4096)
    assert blocks.content(one, 4096) != blocks.content(other, 4096)
    assert blocks.content(one, 4096, part=1) != blocks.content(one, 4096)
    words = np.frombuffer(blocks.content(one, 1 << 20), dtype=np.uint64)
    assert len(np.unique(words)) == len(words)


def test_a_shorter_block_is_a_prefix_of_a_longer_one() -> None:
    key = b"k" * 16
    longest = blocks.content(key, 3 * blocks.STEP_BYTES + 13)
    for length in (0, 1, 7, 8, 9, 4095, blocks.STEP_BYTES, blocks.STEP_BYTES + 1):
        assert blocks.content(key, length) == longest[:length]
        assert blocks.check(key, longest[:length]) is None


def test_unaligned_destinations_get_the_same_bytes() -> None:
    store = bytearray(4096 + 3)
    blocks.fill(b"u" * 16, memoryview(store)[3:])
    assert bytes(store[3:]) == blocks.content(b"u" * 16, 4096)


def test_every_wrong_byte_is_counted_and_the_first_one_named() -> None:
    print(f"KEEPWARM_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(50):
        length = rng.randrange(1, 600_000)
        data = bytearray(blocks.content(b"w" * 16, length))
        places = sorted({rng.randrange(length) for _ in range(rng.randrange(1, 20))})
        for place in places:
            data[place] ^= rng.randrange(1, 256)
        assert blocks.check(b"w" * 16, data) == blocks.Mismatch(len(places), places[0])


def test_swapped_and_shifted_blocks_are_seen() -> None:
    keys = b"x" * 16 + b"y" * 16
    data = bytearray(2 * 4096)
    blocks.fill_many(keys, data)
    assert blocks.check_many(keys, data) == {}
    assert set(blocks.check_many(keys[16:] + keys[:16], data)) == {0, 1}
    shifted = data[8:] + data[:8]
    assert set(blocks.check_many(keys, shifted)) == {0, 1}


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="read-only"):
        blocks.fill(b"k" * 16, b"1234")
    with pytest.raises(ValueError, match="no multiple of 16"):
        blocks.split_keys(b"k" * 17)
    with pytest.raises(ValueError, match="does not divide evenly"):
        blocks.fill_many(b"k" * 48, bytearray(100))
