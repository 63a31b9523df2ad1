"""11: data of one user in the system prompt, in front of text that all share."""

from __future__ import annotations

from collections.abc import Iterator

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.spans import agrees, line_end, line_start
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker
from keepwarm.layout.window import common_length

ABOUT = About(
    Breaker.USER_IN_SYSTEM,
    "the system prompt holds values of one user or request in front of text that all share",
    "put what belongs to one user behind the shared system text, as a block of its own",
)
_LINES_MAX = 12
_SKIPPED_MAX = 600
_SHARED_MIN = 48


def rule(found: Divergence) -> Verdict | None:
    """Short values in the system text, after which both agree again. Counts from three values."""
    if not (found.is_in_text and found.segment.role == "system" and found.is_shared_ground):
        return None
    mine, theirs = found.segment.text, found.their_segment.text
    c, d = found.spot.character, found.their_spot.character
    ends = next(
        (each for each in _ends(mine, c, theirs, d) if _is_shared_behind(mine, theirs, each)), None
    )
    if ends is None or max(ends[0] - c, ends[1] - d) > _SKIPPED_MAX:
        return None
    line = mine.count("\n", 0, c)
    context = hash((found.segment.pointer, line, mine[ends[0] : line_end(mine, ends[0])]))
    begin, their_begin = line_start(mine, c), line_start(theirs, d)
    values = (hash(mine[begin : ends[0]]), hash(theirs[their_begin : ends[1]]))
    return Verdict(Breaker.USER_IN_SYSTEM, found.skip(*ends), varying=(context, *values))


def _is_shared_behind(mine: str, theirs: str, ends: tuple[int, int]) -> bool:
    """Whether text that all share follows, and not only some words in common."""
    shared = common_length(mine, ends[0], theirs, ends[1])
    return shared >= min(_SHARED_MIN, len(mine) - ends[0])


def _ends(mine: str, c: int, theirs: str, d: int) -> Iterator[tuple[int, int]]:
    """Where both may agree again: in the line that differs, else at lines below that both have."""
    same = _same_line(mine, c, theirs, d)
    if same is not None:
        yield same
    yield from _later_lines(mine, c, theirs, d)


def _same_line(mine: str, c: int, theirs: str, d: int) -> tuple[int, int] | None:
    """Both lines end alike: behind the values that differ in them."""
    end, their_end = line_end(mine, c), line_end(theirs, d)
    tail, their_tail = mine[c:end], theirs[d:their_end]
    most = min(len(tail), len(their_tail))
    same = next((k for k in range(most) if tail[-1 - k] != their_tail[-1 - k]), most)
    at, there = end - same, their_end - same
    if same and agrees(mine, at, theirs, there):
        return at, there
    return (end, their_end) if agrees(mine, end, theirs, their_end) else None


def _later_lines(mine: str, c: int, theirs: str, d: int) -> Iterator[tuple[int, int]]:
    """The lines below that both have, from the first on."""
    places: dict[str, int] = {}
    at = d
    for _ in range(_LINES_MAX):
        at = line_end(theirs, at)
        line = theirs[at : line_end(theirs, at)]
        if line.strip():
            places.setdefault(line, at)
    at = c
    for _ in range(_LINES_MAX):
        at = line_end(mine, at)
        line = mine[at : line_end(mine, at)]
        if line in places:
            yield at, places[line]
