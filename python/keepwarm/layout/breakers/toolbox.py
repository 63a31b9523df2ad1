"""Both requests' tools, compared as values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.layout.divergence import Divergence, Spot
from keepwarm.layout.rendering import Segment


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of `mine` and `theirs`, in order, as values that compare whatever the key order."""

    mine: list[Hashable]
    theirs: list[Hashable]
    names: list[str]
    their_names: list[str]
    index: int  # of the tool of `mine` in which the difference is, or which has no counterpart
    segment: int
    resume: tuple[Spot, Spot]

    def common(self) -> int:
        """How many tools both have."""
        return sum((Counter(self.mine) & Counter(self.theirs)).values())


def toolbox(found: Divergence) -> Toolbox | None:
    """The tools of both, where the difference is among them; None where it is not."""
    mine, theirs = found.mine.tools, found.theirs.tools
    here, there = found.spot.segment, found.their_spot.segment
    inside = (mine and mine[0] - 1 <= here <= mine[-1] + 1) or (
        theirs and theirs[0] - 1 <= there <= theirs[-1] + 1
    )
    is_past = (not mine or here > mine[-1]) and (not theirs or there > theirs[-1])
    if not inside or found.is_in_reply or (is_past and mine and theirs):
        return None
    ours = _fields(found.mine.segments, mine)
    others = _fields(found.theirs.segments, theirs)
    before = sum(1 for place, _ in ours if place < here)
    index = min(before, max(0, len(ours) - 1))
    resume = (
        Spot(mine[-1] + 1 if mine else here),
        Spot(theirs[-1] + 1 if theirs else there),
    )
    if not (mine and theirs):  # what a template writes around tools is gone with them
        resume = (
            Spot(_next_field(found.mine.segments, resume[0].segment)),
            Spot(_next_field(found.theirs.segments, resume[1].segment)),
        )
    return Toolbox(
        [frozen(each.text) for _, each in ours],
        [frozen(each.text) for _, each in others],
        [_name(each.text) for _, each in ours],
        [_name(each.text) for _, each in others],
        index,
        ours[index][0] if ours else here,
        resume,
    )


def _fields(segments: Sequence[Segment], places: range) -> list[tuple[int, Segment]]:
    return [(place, segments[place]) for place in places if segments[place].pointer]


def _next_field(segments: Sequence[Segment], at: int) -> int:
    fields = (k for k in range(at, len(segments)) if segments[k].pointer)
    return next(fields, at)


def frozen(text: str) -> Hashable:
    """A JSON text's value, equal whatever its key order, white space and number format."""
    try:
        return freeze(json.loads(text))
    except (ValueError, RecursionError):
        return text


def freeze(value: Any) -> Hashable:
    """A JSON value that can be compared and counted."""
    if isinstance(value, dict):
        return frozenset((key, freeze(each)) for key, each in value.items())
    if isinstance(value, list):
        return tuple(freeze(each) for each in value)
    return (type(value) is bool, value)


def _name(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    inner = value.get("function") if isinstance(value, dict) else None
    named = inner if isinstance(inner, dict) else value
    return str(named.get("name", text)) if isinstance(named, dict) else text
