"""What several breakers share: spans of text around a difference."""

from __future__ import annotations

import re

from keepwarm.layout.divergence import Divergence, Spot
from keepwarm.layout.window import common_length

_BEFORE, _AFTER = 96, 256
#: Characters that must agree behind a span before it counts as the only difference there.
AGREE_MIN = 4


def span_at(pattern: re.Pattern[str], text: str, at: int) -> tuple[int, int] | None:
    """The match that has `at` within it, or right behind it."""
    begin = max(0, at - _BEFORE)
    for match in pattern.finditer(text, begin, at + _AFTER):
        if match.start() <= at <= match.end() and match.start() < match.end():
            return match.span()
        if match.start() > at:
            break
    return None


def spans_at(
    pattern: re.Pattern[str], found: Divergence
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Spans of one pattern around the difference on both sides, begun at the same place."""
    mine, theirs = found.segment.text, found.their_segment.text
    c, d = found.spot.character, found.their_spot.character
    one, other = span_at(pattern, mine, c), span_at(pattern, theirs, d)
    if one is None or other is None or c - one[0] != d - other[0]:
        return None
    return (one, other) if agrees(mine, one[1], theirs, other[1]) else None


def agrees(mine: str, at: int, theirs: str, there: int) -> bool:
    """Whether both go on alike: some characters, or to the end of both."""
    length = common_length(mine, at, theirs, there)
    left = min(len(mine) - at, len(theirs) - there)
    return length >= min(AGREE_MIN, left) and (left > 0 or len(mine) - at == len(theirs) - there)


def line_end(text: str, at: int) -> int:
    """Where the line that has `at` ends, its line end included."""
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def line_start(text: str, at: int) -> int:
    """Where the line that has `at` begins."""
    return text.rfind("\n", 0, at) + 1


def next_equal_fields(found: Divergence, ahead: int = 8) -> tuple[Spot, Spot] | None:
    """The nearest fields from here on whose texts are equal, and whose roles are."""
    mine = [
        (place, segment)
        for place, segment in enumerate(
            found.mine.segments[found.spot.segment : found.spot.segment + ahead],
            found.spot.segment,
        )
        if segment.pointer
    ]
    start = found.their_spot.segment
    theirs = [
        (place, segment)
        for place, segment in enumerate(found.their_segments[start : start + ahead], start)
        if segment.pointer
    ]
    pairs = [
        (i + j, Spot(i), Spot(j))
        for i, one in mine
        for j, other in theirs
        if one.text == other.text and one.role == other.role and one.kind == other.kind
    ]
    best = min(pairs, default=None)
    return None if best is None else best[1:]
