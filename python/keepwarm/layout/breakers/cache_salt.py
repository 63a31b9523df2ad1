"""15: a salt or an adapter that changes while the prompt does not."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import Prompt

ABOUT = About(
    Breaker.CACHE_SALT,
    "the cache salt or adapter changes while the prompt stays the same",
    "use one salt for each tenant or trust group, not one for each request; keep an adapter "
    "within a session",
)
_SALTS_REMEMBERED = 1024
_SALTS_MIN = 16


class Salts:
    """One tenant's salts: whether each request comes with a new one."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._requests = 0

    def observe(self, prompt: Prompt) -> None:
        """Counts one request; forgets half when there are many."""
        if prompt.identity.salt:
            self._requests += 1
            self._seen.add(hash(prompt.identity.salt))
            if self._requests > _SALTS_REMEMBERED:
                self._seen = set(list(self._seen)[: len(self._seen) // 2])
                self._requests //= 2

    def are_per_request(self) -> bool:
        """Whether nearly every salted request has a salt of its own."""
        return len(self._seen) >= _SALTS_MIN and len(self._seen) * 10 >= self._requests * 9


def differs(mine: Prompt, theirs: Prompt) -> bool:
    """Whether only salt or adapter keep both from sharing."""
    return mine.identity != theirs.identity and mine.identity.model == theirs.identity.model


def pointer(mine: Prompt, theirs: Prompt) -> tuple[str, str]:
    """The field to blame, and what to say of it."""
    if mine.identity.salt != theirs.identity.salt:
        return mine.salt_field or theirs.salt_field, "the salt changed"
    return mine.adapter_field or theirs.adapter_field, "the adapter changed"
