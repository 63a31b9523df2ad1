"""Where two prompts part, why, and where they would have gone on together.

Two prompts are walked along, segment by segment. At each difference the breakers' rules are asked
in turn. One that knows the cause says where both prompts agree again, and the walk goes on from
there; what then is equal would have been reused but for this cause. Where no rule knows, the
difference is ordinary new content, and the walk ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keepwarm.layout.fields import Kind
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import Message, Prompt
from keepwarm.layout.rendering import Segment
from keepwarm.layout.window import common_length

#: Differences explained in one request; what lies behind more of them is not counted.
STEPS_MAX = 128
#: Characters that agree behind an explanation which needs no comparing with others.
_CLEAR = 256
_NOTHING = Segment("")


class Spot(NamedTuple):
    """A place in a prompt."""

    segment: int
    character: int = 0


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two prompts at a difference: `mine` is the later one, `spot` and `their_spot` where."""

    mine: Prompt
    theirs: Prompt
    spot: Spot
    their_spot: Spot
    is_same_session: bool
    their_segments: Sequence[Segment]  # with the logged reply behind the prompt's own

    @property
    def segment(self) -> Segment:
        """The differing segment of `mine`."""
        return self.mine.segments[self.spot.segment]

    @property
    def their_segment(self) -> Segment:
        """The differing segment of `theirs`; an empty one behind its end."""
        place = self.their_spot.segment
        return self.their_segments[place] if place < len(self.their_segments) else _NOTHING

    @property
    def is_in_text(self) -> bool:
        """Whether both differ within fields of one kind."""
        mine, theirs = self.segment, self.their_segment
        return (
            bool(mine.pointer)
            and bool(theirs.pointer)
            and mine.role == theirs.role
            and Kind.MEDIA not in (mine.kind, theirs.kind)
        )

    @property
    def is_front(self) -> bool:
        """Whether this is in the tools or the system prompt."""
        return self.segment.role in ("tools", "system") and self.their_segment.role in (
            "tools",
            "system",
        )

    @property
    def is_in_reply(self) -> bool:
        """Whether `theirs` is at its end, or in the reply that followed it."""
        return self.their_spot.segment >= len(self.theirs.segments)

    @property
    def is_shared_ground(self) -> bool:
        """Whether both requests were meant to say the same here.

        Sessions share tools, system prompt and how the user's first message is made; what follows
        is each one's own. Within a session all that was said before is meant to stay.
        """
        if not self.segment.pointer or not self.their_segment.pointer or self.is_in_reply:
            return False
        if self.is_front or self.is_same_session:
            return True
        said = self.mine.segments[: self.spot.segment + 1]
        return self.segment.role == "user" and all(
            each.role in ("tools", "system", "user") for each in said
        )

    def skip(self, mine: int, theirs: int) -> tuple[Spot, Spot]:
        """Spots so many characters on from where the segments begin."""
        return Spot(self.spot.segment, mine), Spot(self.their_spot.segment, theirs)

    def message_at(self) -> tuple[int, int] | None:
        """Which message of each history the difference is in; None where it is in none."""
        mine = _message_index(self.mine.messages, self.spot.segment)
        theirs = _message_index(self.theirs.messages, self.their_spot.segment)
        return None if mine is None or theirs is None else (mine, theirs)


def _message_index(messages: list[Message], segment: int) -> int | None:
    for place, message in enumerate(messages):
        if segment < message.end:
            return place
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A known cause of a difference."""

    breaker: Breaker
    resume: tuple[Spot, Spot]  # where both agree again, or may
    #: Characters of `mine` between here and `resume` that are in `theirs` as well.
    recovered: int = 0
    pointer: str | None = None  # where another field than the differing one is to blame
    offset: int | None = None
    detail: str = ""  # said in the explanation
    is_expected: bool = False
    is_fixable: bool = False
    #: For causes that only count once several values were seen: where, and both values.
    varying: tuple[int, int, int] | None = None


Rule = Callable[[Divergence], Verdict | None]


@dataclass(slots=True)
class Loss:
    """One explained difference, and the characters of `mine` that it cost, as ranges."""

    verdict: Verdict
    segment: Segment
    character: int  # into the segment
    at: int  # into the prompt
    ranges: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Walk:
    """A whole comparison: what was equal at first, and then each explained difference."""

    equal: int  # characters from the start
    losses: list[Loss]


def walk(mine: Prompt, theirs: Prompt, rules: Sequence[Rule], is_same_session: bool) -> Walk:
    """Compares two prompts from their beginnings until an ordinary difference or an end."""
    their_segments = [*theirs.segments, *theirs.reply] if is_same_session else theirs.segments
    spot, their_spot, equal = _agree(mine, their_segments, Spot(0), Spot(0))
    found = Walk(equal, [])
    for _ in range(STEPS_MAX):
        if spot.segment >= len(mine.segments) or their_spot.segment >= len(their_segments):
            break
        at = Divergence(mine, theirs, spot, their_spot, is_same_session, their_segments)
        verdict = _verdict(at, rules)
        if verdict is None:
            break
        begin = _place(mine, spot)
        loss = Loss(verdict, at.segment, spot.character, begin)
        if verdict.recovered:
            loss.ranges.append((begin, begin + verdict.recovered))
        resumed = _place(mine, verdict.resume[0])
        spot, their_spot, equal = _agree(mine, their_segments, *verdict.resume)
        if resumed + equal > begin:
            loss.ranges.append((max(begin, resumed), resumed + equal))
        found.losses.append(loss)
    return found


def _verdict(at: Divergence, rules: Sequence[Rule]) -> Verdict | None:
    """What the first rule says that knows the cause and a place to go on from.

    Within a history an explanation behind which next to nothing agrees gives way to one behind
    which more does: two calls of one tool differ in an id, but it is messages that are gone.
    """
    is_sure = at.is_front or not at.is_same_session
    best, most = None, -1
    for rule in rules:
        verdict = rule(at)
        if verdict is None or not _goes_on(at, verdict.resume):
            continue
        equal = _CLEAR if is_sure else _agree(at.mine, at.their_segments, *verdict.resume)[2]
        if equal > most:
            best, most = verdict, equal
        if equal >= _CLEAR:
            break
    return best


def _goes_on(at: Divergence, resume: tuple[Spot, Spot]) -> bool:
    """Whether the walk comes further in `mine`: each step does, so that it comes to an end.

    A message that began like another one is gone back to, if it is then equal for longer.
    """
    mine, theirs = resume
    if at.spot < mine or (at.spot == mine and at.their_spot < theirs):
        return True
    return at.their_spot < theirs and _agree(at.mine, at.their_segments, *resume)[0] > at.spot


def _agree(
    mine: Prompt, theirs: Sequence[Segment], spot: Spot, their_spot: Spot
) -> tuple[Spot, Spot, int]:
    """Goes on while both are equal: where they part, and how many characters were."""
    (i, c), (j, d), equal = spot, their_spot, 0
    segments = mine.segments
    while i < len(segments) and j < len(theirs):
        one, other = segments[i].text, theirs[j].text
        if c == d == 0 and one == other:
            equal += len(one)
            i, j = i + 1, j + 1
            continue
        length = common_length(one, c, other, d)
        equal += length
        c, d = c + length, d + length
        if c < len(one) and d < len(other):
            break
        # One segment is at its end: the texts go on in the next ones, if these are alike.
        if c == len(one) and d == len(other):
            i, c, j, d = i + 1, 0, j + 1, 0
        elif c == len(one) and not segments[i].pointer and not theirs[j].pointer:
            i, c = i + 1, 0
        elif d == len(other) and not segments[i].pointer and not theirs[j].pointer:
            j, d = j + 1, 0
        else:
            break
    return Spot(i, c), Spot(j, d), equal


def _place(prompt: Prompt, spot: Spot) -> int:
    return prompt.starts[spot.segment] + spot.character
