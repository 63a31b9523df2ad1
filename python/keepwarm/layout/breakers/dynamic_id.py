"""4: ids that are new with each request."""

from __future__ import annotations

import re

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.spans import spans_at
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.DYNAMIC_ID,
    "an id that changes between requests stands in front of text that does not",
    "send ids in headers or metadata, not in the prompt; or move it behind what repeats",
)
_WORD = re.compile(r"(?<![A-Za-z0-9_\-])[A-Za-z0-9][A-Za-z0-9_\-]{2,}")
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:\b|_|[a-z])(?:id|ids|uuid|guid|request|req|trace|span|session|run|nonce|correlation|"
    r"conversation|thread|hash|token|key|build|ref)\W{1,6}$",
    re.IGNORECASE,
)
_PREFIXED = re.compile(
    r"(?:req|request|trace|span|run|sess|session|conv|thread|msg|call|id|job|task|tmp)[_-]"
)
_LABEL_CHARACTERS = 24


def rule(found: Divergence) -> Verdict | None:
    """The difference lies within an id on both sides."""
    if not (found.is_in_text and found.is_shared_ground):
        return None
    spans = spans_at(_WORD, found)
    if spans is None:
        return None
    (begin, end), (their_begin, their_end) = spans
    mine = found.segment.text
    before = mine[max(0, begin - _LABEL_CHARACTERS) : begin]
    is_labelled = _LABEL.search(before) is not None
    words = (mine[begin:end], found.their_segment.text[their_begin:their_end])
    if not all(_is_id(word, is_labelled) for word in words):
        return None
    return Verdict(Breaker.DYNAMIC_ID, found.skip(end, their_end))


def _is_id(word: str, is_labelled: bool) -> bool:
    """Whether a word has the shape of something that a program made up."""
    if _UUID.search(word):
        return True
    digits = sum(character.isdigit() for character in word)
    if not digits:
        return len(word) >= 16 and is_labelled and not word.islower()
    if is_labelled or _PREFIXED.match(word.lower()):
        return True
    return any(_is_made_up(part) for part in re.split(r"[_\-]", word))


def _is_made_up(part: str) -> bool:
    digits = sum(character.isdigit() for character in part)
    if part.isdigit():
        return len(part) >= 6
    if re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", part):
        return len(part) >= 8 and digits >= 2
    return len(part) >= 10 and digits >= 2
