"""The encodings of docs/identity.md, written from that page alone, without Keepwarm's code.

It exists to disagree: vectors are made with it, and Rust and the bindings are held against them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from blake3 import blake3

Value: TypeAlias = "bool | int | str | bytes | list[Value]"

DEFAULT_SECRET = blake3(
    b"", derive_key_context="keepwarm v1 public secret of tenant default"
).digest()


def encode_value(value: Value) -> bytes:
    if isinstance(value, bool):
        return bytes([1, int(value)])
    if isinstance(value, int):
        return b"\x02" + struct.pack("<q", value)
    if isinstance(value, str):
        text = value.encode()
        return b"\x03" + struct.pack("<I", len(text)) + text
    if isinstance(value, bytes):
        return b"\x04" + struct.pack("<I", len(value)) + value
    return b"\x05" + struct.pack("<I", len(value)) + b"".join(encode_value(v) for v in value)


def encode(magic: bytes, fields: Mapping[str, Value]) -> bytes:
    out = magic + b"\x01" + struct.pack("<H", len(fields))
    for name in sorted(fields, key=str.encode):
        out += bytes([len(name)]) + name.encode() + encode_value(fields[name])
    return out


def encode_namespace(fields: Mapping[str, Value]) -> bytes:
    return encode(b"KWNS", fields)


def fingerprint(fields: Mapping[str, Value]) -> bytes:
    return blake3(encode_namespace(fields)).digest()


def chain_key(fields: Mapping[str, Value], secret: bytes) -> bytes:
    return blake3(b"keepwarm v1 chain key\0" + fingerprint(fields), key=secret).digest()


def key_check(fields: Mapping[str, Value], secret: bytes) -> bytes:
    return blake3(b"keepwarm v1 key check\0" + fingerprint(fields), key=secret).digest()[:8]


def block_extras(
    facts: Mapping[str, Any], first_token: int, block_tokens: int, blocks: int
) -> list[bytes]:
    """One encoding a block; b"" where a block has none."""
    common = {name: facts[name] for name in ("cache_salt", "lora") if name in facts}
    out = []
    for block in range(blocks):
        start = first_token + block * block_tokens
        here = [
            (offset, digest, tokens)
            for digest, offset, tokens in facts.get("multimodal", [])
            if offset < start + block_tokens and offset + tokens > start
        ]
        fields: dict[str, Value] = dict(common)
        if here:
            fields["multimodal"] = [[d, o - start, t] for o, d, t in sorted(here)]
        out.append(encode(b"KWEX", fields) if fields else b"")
    return out


def chain(
    key: bytes,
    tokens: Sequence[int],
    block_tokens: int,
    previous: bytes | None = None,
    extras: Sequence[bytes] = (),
) -> list[bytes]:
    keys = []
    for index in range(len(tokens) // block_tokens):
        block = tokens[index * block_tokens : (index + 1) * block_tokens]
        extra = extras[index] if extras else b""
        flags = (previous is not None) | (2 if extra else 0)
        message = struct.pack("<BBHI", 1, flags, 0, len(block)) + (previous or bytes(16))
        message += struct.pack(f"<{len(block)}I", *block) + extra
        previous = blake3(message, key=key).digest()[:16]
        keys.append(previous)
    return keys


def engine_hash_key(key: bytes, engine_hash: bytes, group: int, extra: bytes = b"") -> bytes:
    header = struct.pack("<BBHI", 2, 2 if extra else 0, len(engine_hash), group)
    return blake3(header + engine_hash + extra, key=key).digest()[:16]
