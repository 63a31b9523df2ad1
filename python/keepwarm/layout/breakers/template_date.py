"""3: a date that the chat template itself puts in."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.dates import DATE
from keepwarm.layout.breakers.spans import spans_at
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.TEMPLATE_DATE,
    "the chat template writes the present date into the prompt: every prefix is lost at midnight",
    "pin the date with chat_template_kwargs, or take the call out of the template; else expect "
    "one cold start a day",
)


def rule(found: Divergence) -> Verdict | None:
    """The difference lies within a date that no field of the request holds."""
    if found.segment.pointer or found.their_segment.pointer:
        return None
    spans = spans_at(DATE, found)
    if spans is None:
        return None
    return Verdict(Breaker.TEMPLATE_DATE, found.skip(spans[0][1], spans[1][1]))
