"""Prompts made of block ids: equal ids give equal tokens, in every run and on every replica.

Nobody's text is in them, and a model's answer to them means nothing; what they share with each
other, and how long they are, is what the trace says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import ArgumentError

FIRST_TOKEN = 1000
VOCABULARY = 32_000
VOCABULARY_MIN = 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_UNKNOWN = np.uint64(0xD6E8FEB86659FD93)


class Vocabulary:
    """Which token ids may be used: from a first one, so that special tokens stay out, to `size`.

    Tokenizers have their special tokens among the first few or above 32,000. A smaller model's
    vocabulary begins at a quarter of its size.
    """

    def __init__(self, size: int = VOCABULARY) -> None:
        if size < VOCABULARY_MIN:
            raise ArgumentError(
                f"vocabulary is {size}: give the model's vocab_size, at least {VOCABULARY_MIN}"
            )
        self.size = size
        self.first = min(FIRST_TOKEN, size // 4)

    def tokens(
        self, block_ids: NDArray[np.uint64], block_tokens: int, count: int, request: int
    ) -> NDArray[np.uint32]:
        """`count` token ids. Those behind the last known block are the request's own."""
        ids = block_ids[: -(-count // block_tokens)].astype(np.uint64)
        short = count - len(ids) * block_tokens
        if short > 0:
            more = np.arange(-(-short // block_tokens), dtype=np.uint64)
            own = _mixed(_mixed(np.array([request], np.uint64)) ^ _UNKNOWN)
            ids = np.concatenate([ids, _mixed(own + more)])
        place = np.arange(block_tokens, dtype=np.uint64)
        # The id is mixed first, so that neighbours' ids and neighbouring places never meet.
        drawn = _mixed(_mixed(ids)[:, None] + place[None, :]).reshape(-1)[:count]
        # Multiply and shift: even over the range, without a division for each token.
        span = np.uint64(self.size - self.first)
        return (((drawn >> np.uint64(32)) * span) >> np.uint64(32)).astype(np.uint32) + np.uint32(
            self.first
        )


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (public domain, Vigna): every bit of the input moves every output."""
    values = values + _ODD  # arrays of numpy wrap round, as is wanted
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
