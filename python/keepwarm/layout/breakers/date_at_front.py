"""2: a date or a time in front of text that repeats."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.dates import DATE
from keepwarm.layout.breakers.spans import spans_at
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.DATE_AT_FRONT,
    "a date or time that changes between requests stands in front of text that does not",
    "state the day only, or move the exact time to the last user turn, or give the model a tool "
    "that tells it",
)


def rule(found: Divergence) -> Verdict | None:
    """The difference lies within a date on both sides."""
    if not (found.is_in_text and found.is_shared_ground):
        return None
    spans = spans_at(DATE, found)
    if spans is None:
        return None
    return Verdict(Breaker.DATE_AT_FRONT, found.skip(spans[0][1], spans[1][1]))
