"""14: a picture or sound that is the same to people but not to a cache."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.divergence import Divergence, Spot, Verdict
from keepwarm.layout.fields import Kind
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.MEDIA,
    "a picture, sound or file of the history is not byte for byte what it was",
    "send media by content: the same bytes and the same detail each time, and no signed URLs whose "
    "query changes",
)


def rule(found: Divergence) -> Verdict | None:
    """Media on both sides; across sessions only what is known to be the same thing."""
    mine, theirs = found.segment, found.their_segment
    if mine.kind is not Kind.MEDIA or theirs.kind is not Kind.MEDIA or found.is_in_reply:
        return None
    one = found.mine.media.get(mine.pointer)
    other = found.theirs.media.get(theirs.pointer)
    if one is None or other is None:
        return None
    if one.address == other.address and one.whole != other.whole:
        detail = "the URL's query changed (a signature, an expiry)"
    elif one.whole == other.whole and one.detail != other.detail:
        detail = "the detail setting changed"
    elif found.is_same_session and one.is_data == other.is_data:
        detail = "the bytes changed" if one.is_data else "the address changed"
    elif found.is_same_session or one.whole == other.whole:
        detail = "it is sent in another form"
    else:
        return None
    resume = (Spot(found.spot.segment + 1), Spot(found.their_spot.segment + 1))
    return Verdict(Breaker.MEDIA, resume, 0, mine.pointer, 0, detail)
