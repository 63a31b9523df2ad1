"""Keys whose load failed, which nobody should be promised again at once.

A store that says `hit` and then does not deliver would otherwise be asked in a circle: hit, failed
load, hit. An entry ends after a second, or when the block has been stored again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from keepwarm.adapter.reasons import Recomputed
from keepwarm.prompt import KEY_BYTES

HOLD_S = 1.0
LONG_HOLD_S = 60.0  # bytes of another length than ours do not get right by waiting
KEYS_MAX = 65_536


FEW = 64


def _key(keys: bytes, at: int) -> bytes:
    return keys[KEY_BYTES * at : KEY_BYTES * (at + 1)]


def _place(keys: bytes, key: bytes) -> int | None:
    """Which of the keys this one is."""
    found = keys.find(key)
    while found >= 0 and found % KEY_BYTES:
        found = keys.find(key, found + 1)
    return found // KEY_BYTES if found >= 0 else None


class FailedKeys:
    """Bounded; used from several threads: every step on the dictionary is atomic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[bytes, tuple[float, Recomputed]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key: bytes, reason: Recomputed) -> None:
        """This key's load has failed."""
        while len(self._until) >= KEYS_MAX:  # the oldest go first
            try:
                self._until.pop(next(iter(self._until)), None)
            except (StopIteration, RuntimeError):  # another thread was faster
                break
        hold_s = LONG_HOLD_S if reason is Recomputed.IDENTITY else HOLD_S
        self._until.pop(key, None)
        self._until[key] = (self._clock() + hold_s, reason)

    def reason(self, key: bytes) -> Recomputed | None:
        """Why not to try this key now; None: nothing is known against it."""
        found = self._until.get(key)
        if found is None:
            return None
        if self._clock() < found[0]:
            return found[1]
        self._until.pop(key, None)
        return None

    def first(self, keys: bytes) -> tuple[int, Recomputed] | None:
        """The first of these keys (16 bytes each) that is held, by place, and why."""
        held = list(self._until)
        if len(held) <= FEW:  # mostly none or those of one load: faster than slicing a long prompt
            places = sorted(at for key in held if (at := _place(keys, key)) is not None)
        else:
            known = set(held)
            places = [at for at in range(len(keys) // KEY_BYTES) if _key(keys, at) in known]
        for at in places:
            why = self.reason(_key(keys, at))
            if why is not None:
                return at, why
        return None

    def forget(self, keys: Iterable[bytes]) -> None:
        """These have been stored again."""
        if self._until:
            for key in keys:
                self._until.pop(key, None)

    def clear(self) -> None:
        """All of them: the namespace is another one."""
        self._until.clear()
