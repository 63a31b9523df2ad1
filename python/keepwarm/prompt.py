"""Keys that know where they stand in their prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

from keepwarm.errors import ArgumentError

if TYPE_CHECKING:
    from keepwarm.identity import BufferLike, Namespace

KEY_BYTES = 16
_POSITION_MAX = 1 << 63


class Prompt:
    """Keys of a prompt's blocks, or of a neighbouring part of them, with their places.

    Made by `Namespace.prompt` or `Namespace.place`. A memory of several nodes places blocks by
    where they stand in their prompt; a `Prompt` takes that along through every slice, so that a put
    and a get cannot say different things. `len` counts blocks, and slices are prompts:
    `prompt[found.prefix:]` is what to compute and put.
    """

    __slots__ = ("_first", "_heads", "_keys", "_namespace")

    def __init__(self, namespace: Namespace, keys: bytes, first: int, heads: bytes) -> None:
        self._namespace = namespace
        self._keys = keys
        self._first = first
        self._heads = heads

    @property
    def namespace(self) -> Namespace:
        """Whose keys these are."""
        return self._namespace

    @property
    def keys(self) -> bytes:
        """The keys, 16 bytes each."""
        return self._keys

    @property
    def first_position(self) -> int:
        """Where the first key stands in its prompt, in blocks."""
        return self._first

    @property
    def run_heads(self) -> bytes:
        """The first keys of the runs that these keys lie in, in order."""
        return self._heads

    def __len__(self) -> int:
        return len(self._keys) // KEY_BYTES

    def __getitem__(self, place: slice) -> Prompt:
        if not isinstance(place, slice):
            raise ArgumentError(f"prompt[{place!r}]: take a slice, such as prompt[:8]")
        start, stop, step = place.indices(len(self))
        if step != 1:
            raise ArgumentError(f"prompt[::{step}]: blocks of a prompt stay neighbours, step is 1")
        keys = self._keys[KEY_BYTES * start : KEY_BYTES * max(start, stop)]
        first, length = self._first + start, self._namespace.run_blocks
        skipped = first // length - self._first // length
        runs = (first + len(keys) // KEY_BYTES - 1) // length - first // length + 1 if keys else 0
        heads = self._heads[KEY_BYTES * skipped : KEY_BYTES * (skipped + runs)]
        return Prompt(self._namespace, keys, first, heads)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prompt):
            return NotImplemented
        mine = (self._keys, self._first, self._heads)
        return mine == (other._keys, other._first, other._heads)

    def __hash__(self) -> int:
        return hash((self._keys, self._first))

    def __repr__(self) -> str:
        return f"<keepwarm.Prompt {len(self)} blocks from position {self._first}>"


Keys: TypeAlias = Union["BufferLike", Prompt]
"""Keys as one buffer, or with their places."""

At: TypeAlias = tuple[int, bytes] | None


def placed(namespace: Namespace, keys: BufferLike, first: int, heads: BufferLike) -> Prompt:
    """Keys from position `first` on; `heads` as in `Namespace.place`."""
    own, given = _plain("keys", keys), _plain("run_heads", heads)
    if not 0 <= first < _POSITION_MAX:
        raise ArgumentError(f"first_position is {first}: give the first key's place, from 0 on")
    length, count = namespace.run_blocks, len(own) // KEY_BYTES
    if not count:
        return Prompt(namespace, own, first, b"")
    found = []
    for number, run in enumerate(range(first // length, (first + count - 1) // length + 1)):
        head = given[KEY_BYTES * number : KEY_BYTES * (number + 1)]
        at = run * length - first
        if at >= 0:
            here = own[KEY_BYTES * at : KEY_BYTES * (at + 1)]
            if head and head != here:
                raise ArgumentError(
                    f"run_heads[{number}] is not the key at position {run * length}: the positions "
                    "are wrong"
                )
            head = here
        if not head:
            raise ArgumentError(
                f"first_position is {first}, within a run of {length} blocks: give the key at "
                f"position {run * length} as run_heads"
            )
        found.append(head)
    if len(given) > KEY_BYTES * len(found):
        raise ArgumentError(
            f"run_heads has {len(given) // KEY_BYTES} keys, and the keys lie in {len(found)} runs"
        )
    return Prompt(namespace, own, first, b"".join(found))


def _plain(name: str, keys: BufferLike) -> bytes:
    try:
        view = memoryview(keys)  # type: ignore[arg-type]  # an array's is known at run time alone
        plain = bytes(view.cast("B")) if view.nbytes else b""
    except TypeError:
        raise ArgumentError(
            f"{name} is {type(keys).__name__}: pass one buffer with 16 bytes per key"
        ) from None
    if len(plain) % KEY_BYTES:
        raise ArgumentError(f"{name} has {len(plain)} bytes, which is no multiple of 16")
    return plain


def unpack(keys: Keys, namespace: Namespace) -> tuple[Any, At]:
    """The buffer, and where it stands, if that is known. A prompt must be of `namespace`."""
    if not isinstance(keys, Prompt):
        return keys, None
    if keys.namespace is not namespace and keys.namespace != namespace:
        fields = "; ".join(namespace.differences(keys.namespace)) or "the tenant's secret"
        raise ArgumentError(f"the prompt is of another namespace, which differs in {fields}")
    return keys.keys, (keys.first_position, keys.run_heads)
