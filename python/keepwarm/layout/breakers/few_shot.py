"""12: examples that are drawn or shuffled anew for each request."""

from __future__ import annotations

import re

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.blocks import blocks_in_text, fields_reordered
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.FEW_SHOT,
    "examples are drawn or shuffled anew for each request",
    "fix the examples and their order for each role, or put those that vary behind what does not",
)
_EXAMPLE = re.compile(r"\bexamples?\b", re.IGNORECASE)
_ASKED = re.compile(r"\b(?:input|question|query|q|user|human)\s?:", re.IGNORECASE)
_ANSWERED = re.compile(r"\b(?:output|answer|a|assistant|response|label)\s?:", re.IGNORECASE)


def rule(found: Divergence) -> Verdict | None:
    """Reordered blocks that look like examples, or reordered turns at the front."""
    turns = fields_reordered(found)
    if turns is not None and turns.is_messages:  # no conversation goes on in another order
        return Verdict(Breaker.FEW_SHOT, turns.resume, turns.recovered)
    if found.is_same_session and not found.is_front:
        return None
    reordered = blocks_in_text(found)
    if reordered is None or not (reordered.is_permuted or found.is_front):
        return None
    if not looks_like_examples(reordered.text):
        return None
    return Verdict(Breaker.FEW_SHOT, reordered.resume, reordered.recovered)


def looks_like_examples(text: str) -> bool:
    """Whether blocks are examples and not documents."""
    is_pair = _ASKED.search(text) is not None and _ANSWERED.search(text) is not None
    return is_pair or _EXAMPLE.search(text) is not None
