"""13: retrieved documents that come in another order."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.blocks import blocks_in_text, fields_reordered
from keepwarm.layout.breakers.few_shot import looks_like_examples
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.CHUNK_ORDER,
    "the same retrieved passages come in another order than before",
    "sort passages by document id within stable classes of rank, and put them behind what repeats",
)
#: With less in common it was another search, and no order would have helped.
_OVERLAP_MIN = 0.8


def rule(found: Divergence) -> Verdict | None:
    """Reordered blocks of one field, or parts of one message, that are no examples."""
    parts = fields_reordered(found) if found.is_shared_ground else None
    reordered = parts if parts is not None and not parts.is_messages else blocks_in_text(found)
    if reordered is None or not reordered.is_permuted or reordered.overlap < _OVERLAP_MIN:
        return None
    if looks_like_examples(reordered.text):
        return None
    return Verdict(Breaker.CHUNK_ORDER, reordered.resume, reordered.recovered)
