"""A model's own chat template from a local folder, and which field each stretch of its output is.

A template is a program: it may trim, drop and reorder what it gets. It is run twice, once as is,
once with every field between two private-use characters. Where the marked output without the marks
equals the plain one, the marks say exactly where each field went; where a template's logic reacts
to the marks, fields are looked for by their text, in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepwarm.errors import ArgumentError
from keepwarm.layout.fields import Conversation, Kind, Piece, Turn
from keepwarm.layout.rendering import Rendered, Segment
from keepwarm.layout.requests import LoggedRequest

if TYPE_CHECKING:
    import jinja2

    from keepwarm.layout.jinja import Budget

_OPEN, _CLOSE = 0xF0000, 0x100000
_FIELDS_MAX = 0xFFFD
_MARKS = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_PARTS_LOOP = re.compile(r"\bfor\s+\w+\s+in\s+[\w.\[\]'\"]*content\b")
_DATE_CALLS = re.compile(r"\bstrftime_now\s*\(")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that the template was given, and who gave it."""

    piece: Piece
    role: str
    text: str
    lead: int = 0  # characters of leading white space, which a template may trim


@dataclass(frozen=True, slots=True)
class _Span:
    begin: int
    end: int
    pointer: str
    offset: int
    kind: Kind
    role: str
    media_tokens: int = 0


class ChatTemplate:
    """One model's template. `source` is its text, `name` the folder it came from."""

    def __init__(self, source: str, name: str, special: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.name = name
        self._special = dict(special or {})
        self._template, self._budget = _compile(source, name)
        #: Whether the template goes through lists of parts by itself. All others get one text, as
        #: engines do: one that only asks whether content is a string writes nothing of a list.
        self.takes_parts = _PARTS_LOOP.search(source) is not None

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Reads `chat_template.jinja`, else `tokenizer_config.json`, of a model's folder."""
        special: dict[str, str] = {}
        config = folder / "tokenizer_config.json"
        named: Any = {}
        if config.is_file():
            try:
                named = json.loads(config.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ArgumentError(f"{config} cannot be read: {error}") from error
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = named.get(key) if isinstance(named, dict) else None
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                special[key] = token
        file = folder if folder.is_file() else folder / "chat_template.jinja"
        if file.is_file():
            return cls(file.read_text(encoding="utf-8"), file.parent.name, special)
        source = named.get("chat_template") if isinstance(named, dict) else None
        if isinstance(source, list):  # several, by name
            by_name = {each.get("name"): each.get("template") for each in source}
            source = by_name.get("default") or next(iter(by_name.values()), None)
        if not isinstance(source, str):
            raise ArgumentError(
                f"no chat template in {folder}: it has neither chat_template.jinja nor a "
                "chat_template in tokenizer_config.json"
            )
        return cls(source, folder.name, special)

    def asks_for_date(self) -> bool:
        """Whether the template calls for the present date."""
        return bool(_DATE_CALLS.search(self.source))

    def render(
        self, request: LoggedRequest, parts: Conversation, pinned_date: datetime
    ) -> Rendered:
        """The prompt, attributed. Raises ArgumentError where the template refuses the request."""
        now = pinned_date
        if request.time_s is not None:
            now = datetime.fromtimestamp(request.time_s, UTC)
        fields: list[_Field] = []
        plain = self._run(request, parts, now, _unmarked)

        def marked(piece: Piece, role: str, text: str, lead: int = 0) -> str:
            core = text.strip()
            if not core or len(fields) >= _FIELDS_MAX:
                return text
            before = text.index(core)
            number = len(fields)
            fields.append(_Field(piece, role, core, lead + before))
            wrapped = f"{chr(_OPEN + number)}{core}{chr(_CLOSE + number)}"
            return text[:before] + wrapped + text[before + len(core) :]

        with_marks = self._run(request, parts, now, marked)
        spans = None
        if not _MARKS.search(plain):
            spans = _from_marks(with_marks, plain, fields)
        if spans is None:
            spans = list(_from_texts(plain, fields))
        spans = _whole_tools(plain, spans, parts.tools)
        notes: tuple[str, ...] = ()
        if self.asks_for_date() and request.time_s is None:
            notes = (f"the template asks for the date; {pinned_date:%Y-%m-%d} was given",)
        return Rendered(list(_segments(plain, spans)), notes)

    def _run(
        self,
        request: LoggedRequest,
        parts: Conversation,
        now: datetime,
        mark: Callable[..., str],
    ) -> str:
        extra = request.body.get("chat_template_kwargs")
        context: dict[str, Any] = {
            "messages": [_message(turn, mark, self.takes_parts) for turn in _merged(parts.turns)],
            "tools": [_tool(tool, mark) for tool in parts.tools] or None,
            "documents": None,
            "add_generation_prompt": True,
            "strftime_now": now.strftime,
            **self._special,
            **(extra if isinstance(extra, Mapping) else {}),
        }
        self._budget.refill()
        try:
            return self._template.render(context)
        except Exception as error:  # a template is a program: it may fail in any way
            raise ArgumentError(
                f"{request.where}: the chat template {self.name} refuses this request: "
                f"{type(error).__name__}"
            ) from None


def _unmarked(_piece: Piece, _role: str, text: str, _lead: int = 0) -> str:
    return text


def _compile(source: str, name: str) -> tuple[jinja2.Template, Budget]:
    try:
        import jinja2

        from keepwarm.layout.jinja import TemplateEnvironment
    except ImportError as error:
        raise ArgumentError(
            'rendering a chat template needs more packages: pip install "keepwarm[workload]"'
        ) from error
    environment = TemplateEnvironment()
    try:
        return environment.from_string(source), environment.budget
    except jinja2.TemplateSyntaxError as error:
        raise ArgumentError(
            f"the chat template of {name} is no template: line {error.lineno}: {error.message}"
        ) from error


def _merged(turns: list[Turn]) -> Iterator[Turn]:
    """Assistant items that follow each other (Responses) are one message to a template."""
    last: Turn | None = None
    for turn in turns:
        if last and last.role == turn.role == "assistant" and turn.pointer.startswith("/input/"):
            last = replace(last, pieces=[*last.pieces, *turn.pieces])
            continue
        if last:
            yield last
        last = turn
    if last:
        yield last


def _message(turn: Turn, mark: Callable[..., str], takes_parts: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role}
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for piece in turn.pieces:
        if piece.kind is Kind.REASONING:
            message["reasoning_content"] = mark(piece, turn.role, piece.text)
        elif piece.kind is Kind.CALL_NAME:
            function = {"name": mark(piece, turn.role, piece.text), "arguments": {}}
            number = f"call{len(calls):05d}"
            calls.append({"type": "function", "id": number, "function": function})
        elif piece.kind is Kind.CALL_ARGUMENTS and calls:
            calls[-1]["function"]["arguments"] = _arguments(piece, turn.role, mark)
        elif piece.kind is Kind.MEDIA:
            kind = "image" if "image" in str(piece.value.get("type")) else "audio"
            parts.append({"type": kind, "text": mark(piece, turn.role, piece.text)})
        elif piece.kind is Kind.MARKER and parts:
            parts[-1]["cache_control"] = piece.value
        elif piece.kind is Kind.TEXT:
            parts.append({"type": "text", "text": mark(piece, turn.role, piece.text)})
    only_texts = [part["text"] for part in parts]
    is_list = takes_parts and (len(parts) > 1 or any(part["type"] != "text" for part in parts))
    message["content"] = parts if is_list else "\n".join(only_texts)
    if calls:
        message["tool_calls"] = calls
    return message


def _arguments(piece: Piece, role: str, mark: Callable[..., str]) -> Any:
    """Arguments as engines hand them to templates: parsed where they are an object."""
    value = piece.value
    if value is None:
        try:
            value = json.loads(piece.text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            return mark(piece, role, piece.text)
    cursor = 0

    def leaf(text: str) -> str:
        nonlocal cursor
        found = piece.text.find(text, cursor)
        cursor = found + len(text) if found >= 0 else cursor
        return mark(piece, role, text, max(found, 0))

    return _map_strings(value, leaf)


def _tool(tool: Piece, mark: Callable[..., str]) -> Any:
    return _map_strings(tool.value, lambda text: mark(tool, "tools", text))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_strings(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_map_strings(each, change) for each in value]
    return value


def _from_marks(marked: str, plain: str, fields: list[_Field]) -> list[_Span] | None:
    """Spans of the plain text; None where the template did something else with marked fields."""
    spans: list[_Span] = []
    pieces: list[str] = []
    at, cursor = 0, 0
    opened: dict[int, int] = {}
    for match in _MARKS.finditer(marked):
        pieces.append(marked[cursor : match.start()])
        at += match.start() - cursor
        cursor = match.end()
        code = ord(match[0])
        if code < _CLOSE:
            opened[code - _OPEN] = at
            continue
        number = code - _CLOSE
        begin = opened.pop(number, None)
        if begin is not None and number < len(fields) and begin < at:
            spans.append(_span(begin, at, fields[number]))
    pieces.append(marked[cursor:])
    return _apart(spans) if "".join(pieces) == plain else None


def _span(begin: int, end: int, field: _Field) -> _Span:
    piece = field.piece
    return _Span(begin, end, piece.pointer, field.lead, piece.kind, field.role, piece.media_tokens)


def _from_texts(plain: str, fields: list[_Field]) -> Iterator[_Span]:
    """Fields where their text occurs, in order; one that does not occur was left out."""
    cursor = 0
    for field in sorted(fields, key=lambda each: each.role not in ("tools", "system")):
        found = plain.find(field.text, cursor)
        if found >= 0:
            cursor = found + len(field.text)
            yield _span(found, cursor, field)


def _apart(spans: list[_Span]) -> list[_Span]:
    """Spans in order of place; where two overlap the first one stays."""
    kept: list[_Span] = []
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        if not kept or span.begin >= kept[-1].end:
            kept.append(span)
    return kept


def _whole_tools(plain: str, spans: list[_Span], tools: list[Piece]) -> list[_Span]:
    """One span a tool: its whole JSON where the template writes that, else from first to last."""
    cursor = 0
    for tool in tools:
        inside = [span for span in spans if span.pointer == tool.pointer]
        begin = min((span.begin for span in inside), default=-1)
        end = max((span.end for span in inside), default=-1)
        for text in _json_forms(tool.value):
            found = plain.find(text, cursor)
            if found >= 0:
                begin, end = found, found + len(text)
                break
        if begin >= 0:
            cursor = end
            outside = [span for span in spans if span.end <= begin or span.begin >= end]
            spans = [*outside, _Span(begin, end, tool.pointer, 0, Kind.TEXT, "tools")]
    return _apart(spans)


def _json_forms(value: Any) -> Iterator[str]:
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False, indent=4)
    yield json.dumps(value, ensure_ascii=False, indent=2)
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _segments(plain: str, spans: list[_Span]) -> Iterator[Segment]:
    at = 0
    for span in spans:
        if at < span.begin:
            yield Segment(plain[at : span.begin], role=span.role)
        text = plain[span.begin : span.end]
        yield Segment(text, span.pointer, span.offset, span.kind, span.role, span.media_tokens)
        at = span.end
    if at < len(plain):
        yield Segment(plain[at:])
