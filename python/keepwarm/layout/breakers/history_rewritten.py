"""17: a history that is not only added to: cut from the front, compacted, redacted at random."""

from __future__ import annotations

import re

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.spans import spans_at
from keepwarm.layout.divergence import Divergence, Spot, Verdict
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import Message

ABOUT = About(
    Breaker.HISTORY_REWRITTEN,
    "what was already said was changed: messages dropped or replaced in front of others that stay",
    "only append; compact in large, rare steps; make placeholders from a keyed hash of what they "
    "hide, so that they stay the same",
)
_ID = r"[0-9A-Za-z\-]{1,36}"
#: In brackets: a label in capitals, or any word with a number behind it. Without: both of these.
_PLACEHOLDER = re.compile(
    rf"[<\[{{(\u27e8]{{1,2}}\s?[A-Z][A-Z0-9_ ]{{1,24}}?[_:#\-]?\s?{_ID}\s?[>\]}})\u27e9]{{1,2}}"
    rf"|[<\[{{(\u27e8]{{1,2}}[a-z][a-z_]{{1,24}}[_:#\-](?=[^\W\d_]*\d){_ID}[>\]}})\u27e9]{{1,2}}"
    rf"|(__|[$%@#])[A-Z][A-Z_]{{1,24}}_(?=[^\W\d_]*\d){_ID}\1"
)
_MESSAGES_AHEAD = 256
_REPLACED_MAX = 3


def placeholder_rule(found: Divergence) -> Verdict | None:
    """Placeholders of one label that differ, in a session or in what all share."""
    if not (found.is_in_text and (found.is_same_session or found.is_front)) or found.is_in_reply:
        return None
    spans = spans_at(_PLACEHOLDER, found)
    if spans is None or min(found.spot.character - spans[0][0], 4) < 3:
        return None  # another label, or none in common: other data, not another placeholder
    detail = "placeholders of hidden values change from request to request"
    return Verdict(Breaker.HISTORY_REWRITTEN, found.skip(spans[0][1], spans[1][1]), detail=detail)


def moved_rule(found: Divergence) -> Verdict | None:
    """In a session: messages of `theirs` that come again in `mine`, up to their last one.

    Asked last: whatever changed within a message and has a better explanation has had it.
    """
    if not found.is_same_session or found.is_in_reply or found.is_front:
        return None
    at = found.message_at()
    if at is None:
        return None
    mine, theirs = found.mine.messages, found.theirs.messages
    last = theirs[-1].key
    if not any(message.key == last for message in mine[at[0] :]):
        return None  # not a continuation of this request
    for there in range(at[1], min(len(theirs), at[1] + _MESSAGES_AHEAD)):
        for here in range(at[0], min(len(mine), at[0] + _REPLACED_MAX + 1)):
            if (here, there) != at and _is_run(mine, here, theirs, there):
                is_tail = len(mine) - here == len(theirs) - there
                if there == at[1] and is_tail:
                    return None  # what each request ends with stands behind new messages again
                return _verdict(found, at, here, there)
    return None


def _is_run(mine: list[Message], here: int, theirs: list[Message], there: int) -> bool:
    """Whether both go on alike for two messages, or to the end of `theirs`."""
    size = min(2, len(theirs) - there)
    ours = [message.key for message in mine[here : here + size]]
    return ours == [message.key for message in theirs[there : there + size]]


def _verdict(found: Divergence, at: tuple[int, int], here: int, there: int) -> Verdict:
    mine, theirs = found.mine.messages, found.theirs.messages
    dropped, added = there - at[1], here - at[0]
    detail = f"{dropped} messages gone, {added} in their place"
    resume = (Spot(mine[here].first), Spot(theirs[there].first))
    blamed = found.segment.pointer or found.mine.segments[mine[at[0]].first].pointer
    offset = found.segment.offset + found.spot.character if found.segment.pointer else 0
    return Verdict(Breaker.HISTORY_REWRITTEN, resume, 0, blamed, offset, detail)
