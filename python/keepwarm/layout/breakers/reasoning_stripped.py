"""8: reasoning that was in the prompt, or in the answer, and is gone from the history."""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.spans import agrees, next_equal_fields
from keepwarm.layout.divergence import Divergence, Spot, Verdict
from keepwarm.layout.fields import Kind
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import message_of
from keepwarm.layout.rendering import Segment

ABOUT = About(
    Breaker.REASONING_STRIPPED,
    "reasoning of an earlier turn is missing from the history, or is rendered empty",
    "send reasoning back as it came (reasoning_content, thinking blocks), where the template "
    "keeps it",
)
_OPEN, _CLOSE = "<think>", "</think>"
_LOOK_AHEAD = 4


def rule(found: Divergence) -> Verdict | None:
    """Reasoning on one side only, in a field of its own or in the text itself."""
    if not found.is_same_session:
        return None
    return _field(found) or _inline(found)


def _field(found: Divergence) -> Verdict | None:
    mine = _reasoning_from(found.mine.segments, found.spot.segment)
    theirs = _reasoning_from(found.their_segments, found.their_spot.segment)
    if mine is None and theirs is None:
        return None
    resume = next_equal_fields(found)
    if resume is None:
        return None
    blamed = theirs if theirs is not None else mine
    assert blamed is not None
    # Where theirs is a logged reply the field's name tells which one is missing from mine.
    owner = _owner(found, resume[0])
    pointer = owner + "/" + blamed.rsplit("/", 1)[-1] if blamed.startswith("/reply") else blamed
    is_expected = pointer in found.mine.reasoning_sent and mine is None
    detail = "the chat template drops it although the request has it" if is_expected else ""
    return Verdict(
        Breaker.REASONING_STRIPPED, resume, 0, pointer, 0, detail, is_expected=is_expected
    )


def _reasoning_from(segments: Sequence[Segment], at: int) -> str | None:
    """The pointer of a reasoning field near by, before any other field begins."""
    for segment in segments[at : at + _LOOK_AHEAD]:
        if segment.pointer and segment.kind is Kind.REASONING:
            return segment.pointer
        if segment.pointer:
            return None
    return None


def _owner(found: Divergence, spot: Spot) -> str:
    return message_of(found.mine.segments[spot.segment].pointer)


def _inline(found: Divergence) -> Verdict | None:
    """`<think>…</think>` within the assistant's text."""
    mine, theirs = found.segment, found.their_segment
    if mine.role != "assistant" or theirs.role != "assistant":
        return None
    c, d = found.spot.character, found.their_spot.character
    end, their_end = _behind(mine.text, c), _behind(theirs.text, d)
    if end is None and their_end is None:
        return None
    c = _without_space(mine.text, c if end is None else end)
    d = _without_space(theirs.text, d if their_end is None else their_end)
    if not agrees(mine.text, c, theirs.text, d):
        return None
    return Verdict(Breaker.REASONING_STRIPPED, found.skip(c, d))


def _behind(text: str, at: int) -> int | None:
    """Behind the thinking that `at` is in, or that begins at it."""
    close = text.find(_CLOSE, at)
    opened = text.rfind(_OPEN, 0, at + len(_OPEN))
    if close < 0 or opened < 0 or text.rfind(_CLOSE, 0, at) > opened:
        return None
    return close + len(_CLOSE)


def _without_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
