"""6: one JSON value written in two ways: key order, white space, number format."""

from __future__ import annotations

import json
from collections.abc import Hashable

from keepwarm.errors import ArgumentError
from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.json_places import place_in
from keepwarm.layout.breakers.toolbox import freeze, toolbox
from keepwarm.layout.canonical import order_keys, parse, write
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import Prompt

ABOUT = About(
    Breaker.KEY_ORDER,
    "the same JSON value is written in another way than before: key order, white space or number "
    "format",
    "encode JSON in one canonical way: sorted keys, no extra white space, one number format",
)
_BACK_CHARACTERS = 16_384
_OPENERS_MAX = 24
_VALUE_CHARACTERS_MAX = 1 << 17
_decode = json.JSONDecoder().raw_decode


def rule(found: Divergence) -> Verdict | None:
    """In tools: equal values in equal order. In text: around the difference on both sides."""
    tools = toolbox(found)
    if tools is not None:
        if not tools.mine or tools.names != tools.their_names or tools.mine != tools.theirs:
            return None
        start = found.mine.starts
        here = start[found.spot.segment] + found.spot.character
        recovered = max(0, start[tools.resume[0].segment] - here)
        pointer, _ = place_in(found.segment.text, found.spot.character)
        pointer = found.segment.pointer + pointer
        is_fixable = _fixed(found.mine) == _fixed(found.theirs)
        return Verdict(
            Breaker.KEY_ORDER, tools.resume, recovered, pointer, 0, is_fixable=is_fixable
        )
    if not (found.is_in_text and found.is_shared_ground):
        return None
    ends = _embedded(found)
    if ends is None:
        return None
    recovered = max(0, ends[0] - found.spot.character)
    return Verdict(Breaker.KEY_ORDER, found.skip(*ends), recovered)


def _fixed(prompt: Prompt) -> list[str]:
    """The tools as `fix` writes them: not all that is equal becomes the same text."""
    tools = prompt.segments[prompt.tools.start : prompt.tools.stop]
    texts = [each.text for each in tools if each.pointer]
    try:
        return [write(order_keys(parse(text))) for text in texts]
    except (ArgumentError, ValueError, RecursionError):
        return texts


def _embedded(found: Divergence) -> tuple[int, int] | None:
    """Ends of the outermost JSON values around the difference, where these are equal."""
    mine, theirs = found.segment.text, found.their_segment.text
    c, d = found.spot.character, found.their_spot.character
    places: list[int] = []
    begin = max(0, c - _BACK_CHARACTERS, c - d)
    at = c
    while len(places) < _OPENERS_MAX:
        at = max(mine.rfind("{", begin, at), mine.rfind("[", begin, at))
        if at < 0:
            break
        places.append(at)
    for place in reversed(places):
        one, other = _value(mine, place), _value(theirs, place - c + d)
        if one and other and one[1] > c and other[1] > d and one[0] == other[0]:
            return one[1], other[1]
    return None


def _value(text: str, at: int) -> tuple[Hashable, int] | None:
    """The JSON value that begins here, if it is not too large, and where it ends."""
    try:
        value, length = _decode(text[at : at + _VALUE_CHARACTERS_MAX])
        return freeze(value), at + length
    except (ValueError, RecursionError):
        return None
