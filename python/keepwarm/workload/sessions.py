"""Finds sessions where a log names none: a conversation goes on where a request extends another.

Messages tell it exactly: a request whose messages begin with all those of an earlier one continues
it. Raw prompts are told by their blocks: one that goes on where another's last whole block ended.
Conversations that are equal so far are taken on one each by the requests that extend them, the
first begun first; while equal they may be exchanged for each other, and none becomes two. What is
remembered is bounded: a conversation that rests for `_REMEMBERED` others is taken for a new one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Generic, TypeVar

_REMEMBERED = 200_000
#: Conversations that are equal so far, and wait to be taken on.
_EQUAL_MAX = 64
_COMMON = 0  # where several conversations begin: no session of its own

K = TypeVar("K")
V = TypeVar("V")


class _Ends(Generic[K, V]):
    """The latest ends of prompts, and whose they are."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[K, V] = OrderedDict()

    def get(self, end: K) -> V | None:
        return self._sessions.get(end)

    def set(self, end: K, session: V) -> None:
        self._sessions[end] = session
        self._sessions.move_to_end(end)
        if len(self._sessions) > _REMEMBERED:
            self._sessions.popitem(last=False)


class Sessions:
    """Numbers sessions from 1 in order of appearance."""

    def __init__(self) -> None:
        self._by_turns: _Ends[bytes, tuple[int, ...]] = _Ends()
        self._by_blocks: _Ends[tuple[int, int], int] = _Ends()
        self._count = 0

    def of_turns(self, digests: list[bytes]) -> int:
        """The session of a request by the digests after each of its messages."""
        session = 0
        for digest in reversed(digests[:-1]):
            if waiting := self._by_turns.get(digest):
                session, *others = waiting
                # The last one stays: whoever asks again from there is the same conversation.
                self._by_turns.set(digest, tuple(others) or waiting)
                break
        session = session or self._new()
        equal = self._by_turns.get(digests[-1]) or ()
        self._by_turns.set(digests[-1], (*equal, session)[-_EQUAL_MAX:])
        return session

    def of_blocks(self, tenant: int, block_ids: array[int], whole_blocks: int) -> int:
        """The session of a tenant's raw prompt by its whole blocks; 0: too short to tell."""
        if not whole_blocks:
            return 0
        end = (tenant, block_ids[whole_blocks - 1])
        session = 0
        for block in reversed(block_ids[: whole_blocks - 1]):
            session = self._by_blocks.get((tenant, block)) or 0
            if session:
                break
        session = session or self._new()
        self._by_blocks.set(end, _COMMON if self._by_blocks.get(end) is not None else session)
        return session

    def _new(self) -> int:
        self._count += 1
        return self._count
