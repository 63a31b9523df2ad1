"""What makes two blocks the same: namespaces, facts of a request, block keys.

The encodings are in docs/identity.md.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
    TypedDict,
    Union,
    Unpack,
)

from keepwarm import _core
from keepwarm.arguments import whole
from keepwarm.errors import ArgumentError, IdentityError
from keepwarm.prompt import KEY_BYTES, Prompt, placed

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Array(Protocol):
    """An array that type checkers of Python 3.11 do not know as a buffer, such as numpy's."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


BufferLike: TypeAlias = "Buffer | Array"
"""Anything with the buffer protocol."""

Value: TypeAlias = Union[
    bool, int, str, bytes, "Sequence[Value]", "Mapping[str, Value]"
]  # what an identity may hold


class NamespaceFields(TypedDict):
    """The facts that stay fixed while an engine runs; each of them is required."""

    tenant: str
    model: str
    weights: str
    load: Value
    quantisation: Value
    kv_dtype: str
    kv_scales: Value
    layers: int | Sequence[Value]
    kv_heads: int | Sequence[Value]
    head_dim: int | Sequence[Value]
    layout: str
    engine: str
    attention_backend: str
    isa: str
    block_tokens: int
    kv_options: Value
    parallel: Value
    connector: str
    parts: int
    run_blocks: int


class MultimodalItem(NamedTuple):
    """A picture, sound or video that stands at some of a prompt's tokens."""

    hash: bytes
    """digest of the content, 1 to 64 bytes"""
    first_token: int
    """counted from the prompt's first token"""
    tokens: int
    """how many it takes, 1 or more"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Facts of one request that change its KV."""

    lora: bytes | None = None
    """digest of the adapter's content, 1 to 64 bytes; a name is not enough"""
    cache_salt: bytes | str | None = None
    """keeps this request's blocks apart from those of other salts"""
    multimodal: Sequence[MultimodalItem | tuple[bytes, int, int]] = ()


class Namespace:
    """Everything that makes two engines' blocks interchangeable, and the tenant that owns them.

    Every field is required and given by name: one that is missing or None raises `IdentityError`
    with its name and what to give, because a guess would hand one model's bytes to another.
    `secret` is the path of the tenant's secret file (64 hex digits, readable by its owner alone);
    tenant `default` has none.
    """

    __slots__ = ("_core", "_fields")

    def __init__(
        self,
        *,
        secret: str | os.PathLike[str] | None = None,
        **fields: Unpack[NamespaceFields],
    ) -> None:
        plain = [(name, _plain(value)) for name, value in fields.items()]
        if secret is not None and not isinstance(secret, str | os.PathLike):
            raise IdentityError(
                f"secret is a {type(secret).__name__}: give the path of the tenant's secret file",
                "secret",
            )
        path = None if secret is None else os.fspath(secret)
        self._core = _core.Namespace(plain, path)
        self._fields = dict(fields)

    @property
    def tenant(self) -> str:
        """Who owns the bytes."""
        return self._core.tenant

    @property
    def parts(self) -> int:
        """Parts of one block, 1 to 64."""
        return self._core.parts

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self._core.block_tokens

    @property
    def run_blocks(self) -> int:
        """Blocks that are placed together."""
        return self._core.run_blocks

    @property
    def fields(self) -> Mapping[str, object]:
        """The fields as given; a copy."""
        return dict(self._fields)

    @property
    def encoding(self) -> bytes:
        """The canonical bytes that are hashed."""
        return self._core.encoding

    @property
    def fingerprint(self) -> bytes:
        """BLAKE3 of the encoding, 32 bytes."""
        return self._core.fingerprint

    @property
    def key_check(self) -> bytes:
        """8 bytes that are equal on both ends if namespace and secret are; gives neither away."""
        return self._core.key_check

    def differences(self, other: Namespace) -> list[str]:
        """Each field in which the two differ, as `kv_dtype: "fp8" here, "bf16" there`."""
        return self._core.differences(other._core)

    def block_keys(
        self,
        token_ids: Sequence[int] | BufferLike,
        previous: BufferLike | None = None,
        extras: Extras | None = None,
        *,
        first_token: int = 0,
    ) -> bytes:
        """Keys of the complete blocks of `token_ids`, 16 bytes each; a shorter rest has none.

        `token_ids` is a sequence of int, or a buffer of uint32, int32 or int64. To go on where an
        earlier call ended, pass the last key as `previous`, and as `first_token` the position in
        the prompt, which matters where `extras` has multimodal items.
        """
        whole("first_token", first_token, 62)
        facts = None if extras is None else _facts(extras)
        return self._core.block_keys(token_ids, previous, facts, first_token)

    def engine_keys(
        self, hashes: Sequence[bytes], group: int = 0, extras: Extras | None = None
    ) -> bytes:
        """Keys of blocks that the engine has hashed itself, 16 bytes each.

        An engine's hashes are chained already. `group` tells its cache groups apart, which may
        share hashes. What the hashes know already, such as multimodal items, is left out of
        `extras`.
        """
        whole("group", group, 32)
        if not isinstance(hashes, Sequence) or isinstance(hashes, str | bytes):
            raise ArgumentError(f"hashes is {type(hashes).__name__}: pass a list of bytes")
        for place, each in enumerate(hashes):
            if not isinstance(each, bytes | bytearray):
                raise ArgumentError(f"hashes[{place}] is a {type(each).__name__}: pass bytes")
        if extras is not None and extras.multimodal:
            raise ArgumentError(
                "extras of engine_keys has multimodal items: the engine's hashes hold them already"
            )
        facts = None if extras is None else _facts(extras)
        return self._core.engine_keys(list(hashes), group, facts)

    def prompt(
        self,
        token_ids: Sequence[int] | BufferLike,
        after: Prompt | None = None,
        extras: Extras | None = None,
    ) -> Prompt:
        """The complete blocks of a whole prompt, as `block_keys` names them, with their places.

        `after` is what an earlier call gave for the tokens before these: the answer then holds all.
        """
        if after is None:
            return placed(self, self.block_keys(token_ids, extras=extras), 0, b"")
        if after.first_position or after.namespace != self:
            raise ArgumentError(
                f"after is {after!r}: pass the prompt from its first block on, of this namespace"
            )
        first_token, previous = len(after) * self.block_tokens, after.keys[-KEY_BYTES:] or None
        more = self.block_keys(token_ids, previous, extras, first_token=first_token)
        return placed(self, after.keys + more, 0, b"")

    def place(
        self, keys: BufferLike, first_position: int = 0, run_heads: BufferLike = b""
    ) -> Prompt:
        """Keys, neighbours in one prompt, with the place of the first of them, in blocks.

        `run_heads` are the keys at multiples of `run_blocks` from the one at or before the first
        key on; those that are among the keys may be left out, and are checked if given.
        """
        return placed(self, keys, whole("first_position", first_position, 63), run_heads)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Namespace):
            return NotImplemented
        return self.encoding == other.encoding and self.key_check == other.key_check

    def __hash__(self) -> int:
        return hash(self.encoding)

    def __repr__(self) -> str:
        fields = self._fields
        return (
            f"<keepwarm.Namespace {self.fingerprint.hex()[:12]} tenant={fields['tenant']} "
            f"model={fields['model']} kv_dtype={fields['kv_dtype']} engine={fields['engine']}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Namespace holds a secret and is not pickled: make it anew from fields")


def _plain(value: object) -> object:
    """Mappings become lists of pairs sorted by name, since the encoding knows lists alone."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise IdentityError("a mapping in a namespace has a name that is no str: use str names")
        return [[name, _plain(value[name])] for name in sorted(value)]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _facts(
    extras: Extras,
) -> tuple[bytes | None, bytes | None, list[tuple[bytes, int, int]]]:
    if not isinstance(extras, Extras):
        raise ArgumentError(f"extras is a {type(extras).__name__}: pass keepwarm.Extras")
    salt = extras.cache_salt.encode() if isinstance(extras.cache_salt, str) else extras.cache_salt
    for name, fact in (("lora", extras.lora), ("cache_salt", salt)):
        if fact is not None and not isinstance(fact, bytes):
            raise IdentityError(f"{name} is a {type(fact).__name__}: give bytes", name)
    items = []
    for place, (digest, first_token, tokens) in enumerate(map(_item, extras.multimodal)):
        if first_token < 0 or tokens < 1 or max(first_token, tokens) > 1 << 62:
            raise IdentityError(
                f"multimodal[{place}] has {tokens} tokens from token {first_token}: an item has "
                "1 token or more, from token 0 on",
                "multimodal",
            )
        items.append((digest, first_token, tokens))
    return extras.lora, salt, items


def _item(item: MultimodalItem | tuple[bytes, int, int]) -> tuple[bytes, int, int]:
    try:
        digest, first_token, tokens = item
        return bytes(memoryview(digest)), operator.index(first_token), operator.index(tokens)
    except (TypeError, ValueError):
        raise IdentityError(
            f"multimodal has {item!r}: an item is (hash as bytes, first token, tokens)",
            "multimodal",
        ) from None
