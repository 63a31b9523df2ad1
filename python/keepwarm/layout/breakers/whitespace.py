"""7: white space, line ends and Unicode forms that differ while the words do not."""

from __future__ import annotations

import re
import unicodedata

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.spans import agrees
from keepwarm.layout.canonical import clean_text
from keepwarm.layout.divergence import Divergence, Spot, Verdict
from keepwarm.layout.findings import Breaker
from keepwarm.layout.rendering import Segment

ABOUT = About(
    Breaker.WHITESPACE,
    "the same text comes with other white space, line ends or another Unicode form than before",
    "normalise the text of templates: line feeds, NFC, no white space at the ends of lines",
)
_SPACE = re.compile("[\\s\u200b\ufeff\u2060]+")
_COMBINED_MAX = 4
_NEAR = 256
_FIELD_CHARACTERS_MAX = 1 << 19


def rule(found: Divergence) -> Verdict | None:
    """The whole rest of the field but for its form; else a run of white space or one letter."""
    if not (found.segment.pointer and found.their_segment.pointer):
        return _around_field(found)
    if not (found.is_in_text and found.is_shared_ground):
        return None
    mine, theirs = found.segment.text, found.their_segment.text
    c, d = found.spot.character, found.their_spot.character
    ends = None
    recovered = 0
    if _is_same_form(mine[max(0, c - 1) :], theirs[max(0, d - 1) :]):
        ends = (len(mine), len(theirs))
        recovered = len(mine) - c
    ends = ends or _space(mine, c, theirs, d) or _letter(mine, c, theirs, d)
    if ends is None:
        return None
    # With a character on either side: it is the ends of lines that `fix` cleans, not their middle.
    one = mine[max(0, c - 1) : ends[0] + 1]
    other = theirs[max(0, d - 1) : ends[1] + 1]
    is_last = ends[0] >= len(mine)
    is_fixable = found.segment.role == "system" and (
        clean_text(one, is_last) == clean_text(other, is_last)
    )
    return Verdict(Breaker.WHITESPACE, found.skip(*ends), recovered, is_fixable=is_fixable)


def _around_field(found: Divergence) -> Verdict | None:
    """White space at a field's ends, which stands between fields where a template writes it.

    One template writes the same between the same fields: what differs there came with a field.
    """
    here = found.spot.segment
    segments = found.mine.segments
    near = (here - 1, here, here + 1)  # in front or, where that is none, behind
    blamed = next((k for k in near if 0 <= k < len(segments) and segments[k].pointer), None)
    c, d = found.spot.character, found.their_spot.character
    one, other = _space_end(found.segment, c), _space_end(found.their_segment, d)
    if blamed is None or (one, other) == (c, d) or found.is_in_reply:
        return None
    field = segments[blamed]
    if not (found.is_same_session or field.role in ("system", "tools")):
        return None
    resume = (
        _behind(found.spot, found.segment, one),
        _behind(found.their_spot, found.their_segment, other),
    )
    offset = field.offset + len(field.text) if blamed < here else 0
    return Verdict(Breaker.WHITESPACE, resume, 0, field.pointer, offset)


def _space_end(segment: Segment, at: int) -> int:
    """Behind white space that no field holds."""
    match = None if segment.pointer else _SPACE.match(segment.text, at)
    return at if match is None else match.end()


def _behind(spot: Spot, segment: Segment, end: int) -> Spot:
    is_all = not segment.pointer and end == len(segment.text)
    return Spot(spot.segment + 1) if is_all else Spot(spot.segment, end)


def _is_same_form(one: str, other: str) -> bool:
    """Whether only the form differs; what is near is looked at first, since most differ there."""
    if max(len(one), len(other)) > _FIELD_CHARACTERS_MAX:
        return False
    near = [_normal(text[:_NEAR])[: _NEAR // 4] for text in (one, other)]
    return near[0] == near[1] and _normal(one) == _normal(other)


def _normal(text: str) -> str:
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def _space(mine: str, c: int, theirs: str, d: int) -> tuple[int, int] | None:
    one, other = _SPACE.match(mine, c), _SPACE.match(theirs, d)
    if one is None and other is None:
        return None
    end, their_end = one.end() if one else c, other.end() if other else d
    return (end, their_end) if agrees(mine, end, theirs, their_end) else None


def _letter(mine: str, c: int, theirs: str, d: int) -> tuple[int, int] | None:
    """One letter in two forms; its base may lie before the difference."""
    if mine[c : c + 1].isascii() and theirs[d : d + 1].isascii():
        return None
    back = min(1, c, d)
    for end in range(c, c + _COMBINED_MAX):
        for their_end in range(d, d + _COMBINED_MAX):
            one, other = mine[c - back : end], theirs[d - back : their_end]
            is_same = unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
            if (end > c or their_end > d) and is_same and agrees(mine, end, theirs, their_end):
                return end, their_end
    return None
