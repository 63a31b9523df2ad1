"""1: a header of the request itself, written into the system prompt by the client."""

from __future__ import annotations

import re

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.spans import agrees, line_end, line_start
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker
from keepwarm.layout.fix import PSEUDO_HEADERS

ABOUT = About(
    Breaker.PSEUDO_HEADER,
    "the system prompt begins with a header line whose value changes from request to request",
    "remove the line for every model but the one whose provider reads it, or turn it off in the "
    "client",
)
_HEADER = re.compile(r"[ \t]*[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)+:[^\n]*")
_LINES_MAX = 4


def rule(found: Divergence) -> Verdict | None:
    """Header-shaped lines at the system prompt's front: both differ, or only one has it."""
    if not (found.is_in_text and found.segment.role == "system"):
        return None
    mine, theirs = found.segment.text, found.their_segment.text
    begin = line_start(mine, found.spot.character)
    their_begin = line_start(theirs, found.their_spot.character)
    if mine.count("\n", 0, begin) >= _LINES_MAX:
        return None
    one, other = _HEADER.match(mine, begin), _HEADER.match(theirs, their_begin)
    end = line_end(mine, begin) if one else begin
    their_end = line_end(theirs, their_begin) if other else their_begin
    if end < found.spot.character or their_end < found.their_spot.character:
        return None
    if (one or other) is None or not agrees(mine, end, theirs, their_end):
        return None
    header = one or other
    is_known = header is not None and header[0].strip().lower().startswith(PSEUDO_HEADERS)
    is_front = begin == their_begin == 0  # where `fix` looks for it
    return Verdict(
        Breaker.PSEUDO_HEADER, found.skip(end, their_end), is_fixable=is_known and is_front
    )
