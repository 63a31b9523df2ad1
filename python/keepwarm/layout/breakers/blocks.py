"""Blocks of text in another order, as few-shot examples and retrieved documents are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from keepwarm.layout.breakers.spans import line_start
from keepwarm.layout.divergence import Divergence, Spot
from keepwarm.layout.rendering import Segment

_LABEL = re.compile(r"[^\w]*(?:[A-Za-z]{1,12}[ \t]*)?[#\[(]?\d{1,4}(?:\.\d{1,6}|%)?[\]).:]*[ \t]*")
_OBJECT_END = re.compile(r"\}[ \t]*,?\s*|\[(?=\s*\{)")
_GAP = re.compile(r"\n[ \t]*\n+")
_BLOCK_CHARACTERS_MIN = 12
_FIELDS_MAX = 48
_FIELD_CHARACTERS_MAX = 1 << 19
_Fields = list[tuple[int, Segment]]
_Split = Callable[[str, int], list[tuple[int, int, str]]]


@dataclass(frozen=True, slots=True)
class Reordered:
    """Blocks that both have, in another order or with other ones between them."""

    resume: tuple[Spot, Spot]
    recovered: int  # characters of the blocks that both have
    text: str  # the blocks of `mine`, to tell what they are
    is_permuted: bool
    overlap: float  # share of the blocks that both have, on the side that has less of it
    is_messages: bool = False


def blocks_in_text(found: Divergence) -> Reordered | None:
    """Paragraphs, else lines, else JSON objects of a list, of one field."""
    if not (found.is_in_text and found.is_shared_ground):
        return None
    if max(len(found.segment.text), len(found.their_segment.text)) > _FIELD_CHARACTERS_MAX:
        return None
    for split in (_paragraphs, _lines, _objects):
        reordered = _compare(found, split)
        if reordered is not None:
            return reordered
    return None


def _compare(found: Divergence, split: _Split) -> Reordered | None:
    mine, theirs = found.segment.text, found.their_segment.text
    shift = found.their_spot.character - found.spot.character
    one = split(mine, found.spot.character)
    begin = one[0][0] if one else 0
    other = split(theirs, found.spot.character + shift)
    if not one or not other or other[0][0] - shift != begin:
        return None
    while one and other and one[-1][2] == other[-1][2]:  # equal blocks at the end stay
        one, other = one[:-1], other[:-1]
    keys, their_keys = [key for _, _, key in one], [key for _, _, key in other]
    once = {key for key, times in (Counter(keys) + Counter(their_keys)).items() if times == 2}
    long = {key for key in once & set(keys) if len(key) >= _BLOCK_CHARACTERS_MIN}
    long &= set(their_keys)
    order = [key for key in keys if key in long]
    their_order = [key for key in their_keys if key in long]
    if not long or len(keys) < 2:
        return None
    shared = sum(end - at for at, end, key in one if key in long)
    whole = max(one[-1][1] - one[0][0], other[-1][1] - other[0][0])
    is_same_set = Counter(keys) == Counter(their_keys)
    if shared * 2 < whole:
        return None
    resume = found.skip(one[-1][1], other[-1][1])
    recovered = shared if not is_same_set else one[-1][1] - found.spot.character
    return Reordered(
        resume, recovered, mine[begin : one[-1][1]], order != their_order, shared / whole
    )


def _paragraphs(text: str, at: int) -> list[tuple[int, int, str]]:
    """From the paragraph that has `at`: begin, end with the gap behind it, and a key."""
    begin = 0
    for match in _GAP.finditer(text, 0, at):
        begin = match.end()
    return _cut(text, begin, [match.end() for match in _GAP.finditer(text, begin)])


def _lines(text: str, at: int) -> list[tuple[int, int, str]]:
    begin = line_start(text, at)
    return _cut(text, begin, [match.end() for match in re.finditer("\n", text[begin:])], begin)


def _objects(text: str, at: int) -> list[tuple[int, int, str]]:
    begin = 0
    for match in _OBJECT_END.finditer(text, 0, at):
        begin = match.end()
    return _cut(text, begin, [match.end() for match in _OBJECT_END.finditer(text, begin)])


def _cut(text: str, begin: int, ends: list[int], shift: int = 0) -> list[tuple[int, int, str]]:
    blocks = []
    for end in [*(each + shift for each in ends), len(text)]:
        if end > begin:
            label = _LABEL.match(text, begin, end)
            blocks.append(
                (begin, end, text[label.end() if label else begin : end].strip(" \t\r\n,"))
            )
            begin = end
    return blocks


def fields_reordered(found: Divergence) -> Reordered | None:
    """Whole fields in another order: parts of a message, or messages at the front."""
    here, there = found.spot.segment, found.their_spot.segment
    if found.is_in_reply or not (found.segment.pointer and found.their_segment.pointer):
        return None
    mine = [
        (place, segment)
        for place, segment in enumerate(found.mine.segments[here:], here)
        if segment.pointer
    ][:_FIELDS_MAX]
    theirs = [
        (place, segment)
        for place, segment in enumerate(found.theirs.segments[there:], there)
        if segment.pointer
    ][:_FIELDS_MAX]
    return _same_fields(found, mine, theirs)


def _same_fields(found: Divergence, mine: _Fields, theirs: _Fields) -> Reordered | None:
    """The shortest run of fields that is the same set on both sides."""
    missing: Counter[tuple[str, str]] = Counter()
    for size, ((_, one), (_, other)) in enumerate(zip(mine, theirs, strict=False), 1):
        missing[one.role, one.text] += 1
        missing[other.role, other.text] -= 1
        if size > 1 and not any(missing.values()):
            begin, end = mine[0][0], mine[size - 1][0] + 1
            there = theirs[size - 1][0] + 1
            run = [segment for _, segment in mine[:size]]
            if max(len(segment.text) for segment in run) < _BLOCK_CHARACTERS_MIN:
                return None
            starts = found.mine.starts
            recovered = starts[end] - starts[begin] - found.spot.character
            roles = {segment.role for segment in run}
            text = "\n".join(segment.text for segment in run)
            resume = (Spot(end), Spot(there))
            is_messages = roles == {"user", "assistant"}
            return Reordered(resume, recovered, text, True, 1.0, is_messages)
    return None
