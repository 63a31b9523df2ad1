"""A request as the lint keeps it: its prompt's stretches, shared by requests, and its facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from keepwarm.layout.fields import Kind, json_text
from keepwarm.layout.rendering import Segment
from keepwarm.layout.requests import LoggedRequest

_LINE_CHARACTERS_MIN = 16
_LINES_MAX = 256
_SALTS = ("cache_salt",)
_ADAPTERS = ("lora_path", "lora_request", "lora_id", "lora", "adapter_id")


@dataclass(slots=True, eq=False)
class Stretch:
    """A segment's text, held once for all requests in the window that have it."""

    text: str
    holders: int = 0
    last: Prompt | None = None  # the latest request that has it

    def lines(self) -> list[int]:
        """Hashes of its lines and clauses, by which similar texts find each other."""
        if len(self.text) < 2 * _LINE_CHARACTERS_MIN:
            return []
        parts = self.text.replace(". ", "\n").replace(", ", "\n").split("\n")
        lines = [part.strip() for part in parts[:_LINES_MAX]]
        return [hash(line) for line in lines if len(line) >= _LINE_CHARACTERS_MIN]


class Identity(NamedTuple):
    """What must be equal, besides the prompt, for a prefix to be shared."""

    model: str
    salt: str
    adapter: str


class Media(NamedTuple):
    """Facts of a part that is no text, as hashes."""

    address: int  # of the URL without its query, or of the data
    whole: int
    detail: str
    is_data: bool


class Message(NamedTuple):
    """One message of the history: its segments, and a hash of what it says."""

    first: int  # segment
    end: int
    key: int
    role: str


@dataclass(slots=True, eq=False)
class Path:
    """Where a prompt lies in the tree of all prompts; `nodes[k]` is reached by segment k."""

    nodes: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Prompt:
    """One request in the window."""

    where: str
    time_s: float | None
    session: str | None
    identity: Identity
    segments: list[Segment]
    starts: list[int]  # where each segment begins, and, last, the prompt's length
    stretches: list[Stretch]
    media: dict[str, Media]
    reasoning_sent: frozenset[str]  # pointers of reasoning that the body has
    reply: list[Segment] = field(default_factory=list)
    path: Path = field(default_factory=Path)
    new_lines: list[int] = field(default_factory=list)
    new_tokens: int = 0  # that no earlier request had in front
    is_alive: bool = True
    salt_field: str = ""  # pointers; empty where the body names none
    adapter_field: str = ""

    @cached_property
    def holds(self) -> frozenset[int]:
        """Its stretches, by identity."""
        return frozenset(map(id, self.stretches))

    @cached_property
    def messages(self) -> list[Message]:
        """The history's messages; tools and system are not among them."""
        return list(_messages(self.segments))

    @cached_property
    def tools(self) -> range:
        """From the first tool's segment to behind the last one's; may be empty."""
        places = [k for k, each in enumerate(self.segments) if each.role == "tools"]
        return range(places[0], places[-1] + 1) if places else range(0)

    def opening(self) -> Stretch | None:
        """The first thing that the user said."""
        for segment, stretch in zip(self.segments, self.stretches, strict=True):
            if segment.role == "user" and segment.pointer:
                return stretch
        return None

    def is_continued_by(self, later: Prompt) -> bool:
        """Whether both belong to one session: by name, else by what they say."""
        if self.session is not None and later.session is not None:
            return self.session == later.session
        mine, other = self.opening(), later.opening()
        if mine is not None and mine is other and len(mine.text) >= _LINE_CHARACTERS_MIN:
            return True
        said = [
            stretch
            for segment, stretch in zip(self.segments, self.stretches, strict=True)
            if segment.pointer and segment.role not in ("system", "tools")
        ]
        shared = sum(len(each.text) for each in said if id(each) in later.holds)
        return shared * 2 > sum(len(each.text) for each in said)


def message_of(pointer: str) -> str:
    """The message that a field belongs to: `/messages/3` of `/messages/3/content/0/text`."""
    parts = pointer.split("/", 3)
    return "/".join(parts[:3]) if parts[1:2] in (["messages"], ["input"]) else pointer


def _messages(segments: list[Segment]) -> Iterator[Message]:
    """From each message's first field to its last: what a template writes between is in none."""
    first, end, name, role = 0, 0, "", ""
    texts: list[str] = []
    for place, segment in enumerate(segments):
        if not segment.pointer or segment.role in ("system", "tools"):
            continue
        owner = message_of(segment.pointer)
        if owner != name:
            if texts:
                yield Message(first, end, hash(tuple(texts)), role)
            first, name, role, texts = place, owner, segment.role, []
        texts.append(segment.text)
        end = place + 1
    if texts:
        yield Message(first, end, hash(tuple(texts)), role)


def identity_of(request: LoggedRequest) -> Identity:
    """Model, salt and adapter, as vLLM's and SGLang's APIs name them."""
    (_, salt), (_, adapter) = _named(request, _SALTS), _named(request, _ADAPTERS)
    return Identity(request.model(), salt, adapter)


def identity_fields(request: LoggedRequest) -> tuple[str, str]:
    """Pointers to the salt and the adapter in the body; empty where there is none."""
    return _named(request, _SALTS)[0], _named(request, _ADAPTERS)[0]


def _named(request: LoggedRequest, names: tuple[str, ...]) -> tuple[str, str]:
    """The first of these fields that a body has: its pointer and its value as text."""
    extra = request.body.get("extra_body")
    bodies = [("", request.body)]
    if isinstance(extra, Mapping):
        bodies.append(("/extra_body", extra))
    for name in names:
        for at, body in bodies:
            value = body.get(name)
            if value:
                return f"{at}/{name}", value if isinstance(value, str) else json_text(value)
    return "", ""


def media_of(request: LoggedRequest, segments: list[Segment]) -> dict[str, Media]:
    """Facts of all media in a prompt."""
    return {
        segment.pointer: _media(_value_at(request.body, segment.pointer))
        for segment in segments
        if segment.kind is Kind.MEDIA
    }


def _media(part: Any) -> Media:
    inner: Any = part
    for key in ("image_url", "input_audio", "audio_url", "video_url", "source", "file"):
        if isinstance(part, Mapping) and key in part:
            inner = part[key]
            break
    url, detail = inner, part.get("detail", "") if isinstance(part, Mapping) else ""
    if isinstance(inner, Mapping):
        url = inner.get("url") or inner.get("data") or inner.get("file_data") or json_text(inner)
        detail = inner.get("detail") or detail
    text = str(url)
    is_data = text.startswith("data:") or "://" not in text[:16]
    return Media(hash(text if is_data else text.partition("?")[0]), hash(text), detail, is_data)


def _value_at(body: Any, pointer: str) -> Any:
    for key in pointer.split("/")[1:]:
        body = body[int(key)] if isinstance(body, list) else body[key]
    return body
