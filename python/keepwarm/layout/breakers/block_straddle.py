"""16: many short shared prefixes that end within a block."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from keepwarm.layout.breakers.about import About
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.BLOCK_STRADDLE,
    "a short shared prefix ends within a block, and engines keep whole blocks only",
    "lengthen the shared part to a whole number of blocks, or leave it: this counts only for very "
    "many short prompts",
)
_REQUESTS_MIN = 20
_LOST_SHARE_MIN = 0.10
_PREFIXES_MAX = 1024


@dataclass(slots=True)
class _Prefix:
    requests: int = 0
    lost: int = 0
    shared: int = 0


class Straddles:
    """Shared prefixes by what they are, and what their last, partial blocks cost."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._prefixes: OrderedDict[int, _Prefix] = OrderedDict()

    def observe(self, prefix: int, shared_tokens: int) -> tuple[int, int] | None:
        """Requests and tokens to report now: all at once when the pattern is sure, then one each.

        `prefix` names the shared prefix, `shared_tokens` its length. One that does not fill a
        block is no prefix to an engine, and nothing is lost.
        """
        if shared_tokens < self._block:
            return None
        seen = self._prefixes.setdefault(prefix, _Prefix())
        self._prefixes.move_to_end(prefix)
        if len(self._prefixes) > _PREFIXES_MAX:
            self._prefixes.popitem(last=False)
        lost = shared_tokens % self._block
        seen.requests += 1
        seen.lost += lost
        seen.shared += shared_tokens
        if seen.requests < _REQUESTS_MIN or seen.lost < _LOST_SHARE_MIN * seen.shared or not lost:
            return None
        return (seen.requests, seen.lost) if seen.requests == _REQUESTS_MIN else (1, lost)
