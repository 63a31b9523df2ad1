"""9: `cache_control` markers that move on each turn, sent to an engine that renders them."""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.layout.breakers.about import About
from keepwarm.layout.divergence import Divergence, Spot, Verdict
from keepwarm.layout.fields import Kind
from keepwarm.layout.findings import Breaker
from keepwarm.layout.rendering import Segment

ABOUT = About(
    Breaker.CACHE_MARKERS,
    "a cache_control marker moved on; this model's API does not know markers, and they become "
    "part of the prompt",
    "strip cache_control from requests to engines and to providers that do not read it",
)


def rule(found: Divergence) -> Verdict | None:
    """The difference is a marker, or where one was."""
    mine = _behind(found.mine.segments, found.spot)
    theirs = _behind(found.their_segments, found.their_spot)
    if (mine is None and theirs is None) or found.is_in_reply:
        return None
    pointer = mine[1] if mine is not None else theirs[1] if theirs is not None else ""
    # What follows may begin as a marker does, and so much is already known to be equal.
    resume = (
        Spot(mine[0].segment, found.spot.character) if mine is not None else found.spot,
        Spot(theirs[0].segment, found.their_spot.character)
        if theirs is not None
        else found.their_spot,
    )
    return Verdict(Breaker.CACHE_MARKERS, resume, 0, pointer, 0, is_fixable=True)


def _behind(segments: Sequence[Segment], spot: Spot) -> tuple[Spot, str] | None:
    """Behind the marker that begins here, and its field."""
    place, pointer = spot.segment, ""
    while place < len(segments) and segments[place].kind is Kind.MARKER:
        pointer = pointer or segments[place].pointer
        place += 1
    return (Spot(place), pointer) if pointer else None
