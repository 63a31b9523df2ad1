"""Keyed hashes: what text, names and token ids become before anything else sees them.

    key      32 random bytes a run, or what a key file says, so that two logs can be joined
    seed     hash(key, model, adapter, salt): different models never share a block
    block id hash(key, id of the block before (the seed at first), what is in this block)

So equal ids mean equal prefixes: a block's id covers everything up to its end. 64 bits of
BLAKE2b: among a billion distinct blocks two share an id with a chance of 3 %; without the key
nobody can tell whether a guessed text is in a trace.
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import blake2b
from pathlib import Path

from keepwarm.errors import ArgumentError

KEY_BYTES = 32
_KEY_FILE_BYTES_MIN = 16
_KEY_FILE_BYTES_MAX = 1 << 20


def random_key() -> bytes:
    """A key that nobody knows and that is gone with this process."""
    return secrets.token_bytes(KEY_BYTES)


def key_of_file(path: Path) -> bytes:
    """The key that a file stands for: any bytes, at least 16. Raises ArgumentError."""
    try:
        with path.open("rb") as file:
            content = file.read(_KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ArgumentError(f"key file {path}: {error.strerror or error}") from None
    if not _KEY_FILE_BYTES_MIN <= len(content) <= _KEY_FILE_BYTES_MAX:
        raise ArgumentError(
            f"key file {path} has {len(content)} bytes: make one of 32 random bytes, with "
            "head -c 32 /dev/urandom > FILE"
        )
    return blake2b(content, digest_size=KEY_BYTES, person=b"keepwarm.keyfile").digest()


class Hasher:
    """Makes ids of names and contents under one key."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = random_key() if key is None else key
        if not 1 <= len(self._key) <= 64:
            raise ArgumentError(f"a key of {len(self._key)} bytes: give 1 to 64")

    def name(self, kind: str, value: str) -> int:
        """A session's or tenant's id: never 0, which means that none is known."""
        made = self._digest(kind.encode(), value.encode("utf-8", "surrogatepass"))
        return int.from_bytes(made, "little") or 1

    def content(self, data: bytes) -> str:
        """What stands for an image or the like in a prompt."""
        return self._digest(b"content", data).hex()

    def seed(self, *facts: str) -> bytes:
        """What a prompt's first block is chained to: the model, its adapter, a salt."""
        parts = [fact.encode("utf-8", "surrogatepass") for fact in facts]
        return self._digest(b"seed", b"".join(len(p).to_bytes(4, "little") + p for p in parts))

    def extend(self, before: bytes, data: bytes) -> bytes:
        """The digest of `data` behind what `before` is the digest of."""
        return blake2b(before + data, digest_size=8, key=self._key).digest()

    def blocks(self, seed: bytes, data: bytes, block_bytes: int) -> array[int]:
        """Ids of `data`'s blocks of `block_bytes` each, the last of which may be shorter."""
        ids = bytearray()
        key, last = self._key, seed
        for start in range(0, len(data), block_bytes):
            last = blake2b(
                last + data[start : start + block_bytes], digest_size=8, key=key
            ).digest()
            ids += last
        return array("Q", bytes(ids))

    def _digest(self, kind: bytes, data: bytes) -> bytes:
        return blake2b(data, digest_size=8, key=self._key, person=kind[:16]).digest()
