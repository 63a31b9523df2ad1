"""Block bytes that anyone can compute again from the key, so that nobody has to keep them.

A block's content is a fixed pseudo-random stream (Philox, one seed for everybody) XORed with a
64-bit word drawn from (key, part). The stream makes every position differ, so bytes that landed at
the wrong offset are seen; the word makes every key and part differ, so another block's bytes are
seen. Filling and checking run at memory speed, in steps that stay in the processor's cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY_BYTES = 16
STREAM_SEED = 0x6B77626C6F636B73
STEP_BYTES = 256 * 1024

_U64 = np.dtype("<u8")


class Mismatch(NamedTuple):
    """What a check found in one block: how many bytes differ and where the first one is."""

    wrong_bytes: int
    first_offset: int


def _word(key: bytes, part: int) -> np.uint64:
    digest = hashlib.blake2b(key, digest_size=8, salt=part.to_bytes(4, "little")).digest()
    return np.uint64(int.from_bytes(digest, "little"))


class _Stream:
    """The common stream, grown to the largest block seen; readers only ever see whole arrays."""

    def __init__(self) -> None:
        self._words: NDArray[np.uint64] = np.empty(0, dtype=_U64)

    def words(self, count: int) -> NDArray[np.uint64]:
        if len(self._words) < count:
            generator = np.random.Generator(np.random.Philox(key=STREAM_SEED))
            size = max(count, STEP_BYTES // 8)
            self._words = generator.integers(0, 2**64, size=size, dtype=np.uint64).astype(_U64)
        return self._words[:count]


_STREAM = _Stream()


def _view(buffer: Buffer) -> NDArray[np.uint8]:
    return np.frombuffer(memoryview(buffer).cast("B"), dtype=np.uint8)


def _steps(length: int) -> Iterator[tuple[int, int]]:
    for start in range(0, length, STEP_BYTES):
        yield start, min(start + STEP_BYTES, length)


def fill(key: bytes, buffer: Buffer, part: int = 0) -> None:
    """Writes the content of (key, part) over the whole of `buffer`.

    The first n bytes do not depend on the buffer's length.
    """
    out = _view(buffer)
    if not out.flags.writeable:
        raise ValueError("the buffer is read-only: pass a bytearray or a writable array")
    length = len(out)
    word = _word(key, part)
    stream = _STREAM.words((length + 7) // 8)
    whole = length // 8 * 8
    if out.ctypes.data % 8 == 0:
        np.bitwise_xor(stream[: whole // 8], word, out=out[:whole].view(_U64))
    else:
        out[:whole] = (stream[: whole // 8] ^ word).view(np.uint8)
    if whole < length:
        tail = (stream[whole // 8 :] ^ word).view(np.uint8)
        out[whole:] = tail[: length - whole]


def content(key: bytes, length: int, part: int = 0) -> bytes:
    """The content of (key, part) as `bytes`."""
    out = bytearray(length)
    fill(key, out, part)
    return bytes(out)


def check(key: bytes, buffer: Buffer, part: int = 0) -> Mismatch | None:
    """Compares every byte of `buffer` with the content of (key, part); None when all are right."""
    got = _view(buffer)
    length = len(got)
    word = _word(key, part)
    stream = _STREAM.words((length + 7) // 8)
    wrong, first = 0, -1
    for start, end in _steps(length):
        expected = (stream[start // 8 : (end + 7) // 8] ^ word).view(np.uint8)[: end - start]
        piece = got[start:end]
        if np.array_equal(piece, expected):
            continue
        differs = np.flatnonzero(piece != expected)
        first = start + int(differs[0]) if first < 0 else first
        wrong += len(differs)
    return Mismatch(wrong, first) if wrong else None


def fill_many(keys: bytes, buffer: Buffer, part: int = 0) -> None:
    """Splits `buffer` evenly over `keys` (n of 16 bytes) and fills each share with its block."""
    for key, share in shares(keys, buffer):
        fill(key, share, part)


def check_many(keys: bytes, buffer: Buffer, part: int = 0) -> dict[int, Mismatch]:
    """Checks each share of `buffer`; returns the mismatches by the key's place in `keys`."""
    found = {}
    for place, (key, share) in enumerate(shares(keys, buffer)):
        mismatch = check(key, share, part)
        if mismatch is not None:
            found[place] = mismatch
    return found


def split_keys(keys: bytes) -> list[bytes]:
    """One `bytes` a key, from the one buffer in which keys travel."""
    if len(keys) % KEY_BYTES:
        raise ValueError(f"keys are {len(keys)} bytes, which is no multiple of {KEY_BYTES}")
    return [bytes(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)]


def shares(keys: bytes, buffer: Buffer) -> Iterator[tuple[bytes, memoryview]]:
    """Pairs each key with its even share of `buffer`."""
    names = split_keys(keys)
    view = memoryview(buffer).cast("B")
    if names and len(view) % len(names):
        raise ValueError(
            f"a buffer of {len(view)} bytes does not divide evenly over {len(names)} keys"
        )
    size = len(view) // len(names) if names else 0
    for place, key in enumerate(names):
        yield key, view[place * size : (place + 1) * size]
