"""From a request to its prompt, each stretch of which knows the field that it came from.

With a `ChatTemplate` (a local folder of the model) the prompt is the model's own. Without one it is
the generic rendering: tools, then system, then messages, as most templates and Anthropic's API
have it, with `<|role|>` before and `<|end|>` after each message; reasoning wherever the request has
it; JSON values compact, keys in the order sent; `cache_control` shown to models whose API does not
know it; ids of tool calls not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from keepwarm.layout.fields import Conversation, Kind, Piece, Turn, conversation, reply_turns
from keepwarm.layout.requests import LoggedRequest

if TYPE_CHECKING:
    from keepwarm.layout.chat_template import ChatTemplate


class Segment(NamedTuple):
    """A stretch of a prompt. `pointer` is empty where the template wrote it."""

    text: str
    pointer: str = ""
    offset: int = 0  # characters into the field's text
    kind: Kind | None = None
    role: str = ""
    media_tokens: int = 0


@dataclass(frozen=True)
class Rendered:
    """A prompt as segments in order."""

    segments: list[Segment]
    notes: tuple[str, ...] = ()  # dates that were pinned, fields whose place is not known

    @cached_property
    def text(self) -> str:
        """The whole prompt."""
        return "".join([segment.text for segment in self.segments])

    @cached_property
    def starts(self) -> list[int]:
        """Where each segment begins in `text`, and, last, where the text ends."""
        at, starts = 0, [0]
        for segment in self.segments:
            at += len(segment.text)
            starts.append(at)
        return starts


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """How prompts are rendered.

    `pinned_date` is what a template that asks for the date gets where a request has no time of its
    own; requests that have one get their own day (UTC).
    """

    template: ChatTemplate | None = None
    pinned_date: datetime = field(default_factory=lambda: datetime(2024, 7, 26))


def render(request: LoggedRequest, settings: RenderSettings | None = None) -> Rendered:
    """The prompt that the model gets for a request."""
    settings = settings or RenderSettings()
    parts = conversation(request)
    if parts.is_raw:
        return Rendered([_segment(piece, "user") for piece in parts.turns[0].pieces])
    if settings.template is not None:
        return settings.template.render(request, parts, settings.pinned_date)
    return Rendered(list(_generic(parts)))


def render_reply(request: LoggedRequest) -> list[Segment]:
    """The logged answer, rendered generically as it would follow the prompt."""
    segments: list[Segment] = []
    for turn in reply_turns(request):
        segments.extend(_turn(turn))
    return segments[1:]  # the prompt ends with the assistant's header


def _generic(parts: Conversation) -> Iterator[Segment]:
    if parts.tools:
        yield Segment("<|tools|>\n", role="tools")
        for tool in parts.tools:
            yield _segment(tool, "tools")
            yield Segment("\n", role="tools")
        yield Segment("<|end|>\n", role="tools")
    for is_front in (True, False):
        for turn in parts.turns:
            if (turn.role == "system") is is_front:
                yield from _turn(turn)
    yield Segment("<|assistant|>\n", role="assistant")


def _segment(piece: Piece, role: str) -> Segment:
    return Segment(piece.text, piece.pointer, 0, piece.kind, role, piece.media_tokens)


_BEFORE = {
    Kind.REASONING: "<think>\n",
    Kind.CALL_NAME: "<tool_call>\n",
    Kind.CALL_ARGUMENTS: "\n",
    Kind.MARKER: "<cache_control>",
}
_AFTER = {
    Kind.REASONING: "\n</think>\n\n",
    Kind.CALL_ARGUMENTS: "\n</tool_call>\n",
    Kind.MARKER: "</cache_control>",
}


def _turn(turn: Turn) -> Iterator[Segment]:
    role = turn.role
    yield Segment(f"<|{role}|>\n", role=role)
    for piece in turn.pieces:
        before, after = _BEFORE.get(piece.kind), _AFTER.get(piece.kind)
        if before:
            yield Segment(before, kind=piece.kind, role=role)
        yield _segment(piece, role)
        if after:
            yield Segment(after, kind=piece.kind, role=role)
    yield Segment("<|end|>\n", role=role)
