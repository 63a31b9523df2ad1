"""A request's body as the fields that a prompt is made of, whatever API it was sent to.

Each field knows its JSON pointer in the body. What a model does not see (ids of calls, signatures,
sampling settings) is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

from keepwarm.layout.requests import Family, LoggedRequest

#: Tokens that one part stands for, where only the model's processor knows the true number.
IMAGE_TOKENS = 765  # OpenAI's figure for 1024 x 1024 at high detail
IMAGE_TOKENS_LOW = 85  # and for low detail
MEDIA_TOKENS = 256  # sound, video, files

_REASONING_KEYS = ("reasoning_content", "reasoning")
_MEDIA_TYPES = {"audio", "audio_url", "document", "file", "image", "image_url", "input_audio"}
_MEDIA_TYPES |= {"input_file", "input_image", "video", "video_url"}
_ROLES = {"developer": "system", "function": "tool"}
#: Digits as letters that no number, date or id is written with.
_WORDS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")
_encode = msgspec.json.Encoder().encode


class Kind(Enum):
    """What a field is to the model."""

    TEXT = auto()
    REASONING = auto()
    CALL_NAME = auto()  # the name of a tool that the assistant called
    CALL_ARGUMENTS = auto()
    MEDIA = auto()
    MARKER = auto()  # `cache_control`, sent to a model whose API does not know it


class Piece(NamedTuple):
    """One field's text. For media: a name made of a hash of its content."""

    kind: Kind
    pointer: str
    text: str
    media_tokens: int = 0
    value: Any = None  # the JSON value, where `text` is its encoding


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: role (system, user, assistant, tool) and fields in order."""

    role: str
    pointer: str
    pieces: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything of a body that becomes prompt."""

    tools: list[Piece]
    turns: list[Turn]
    is_raw: bool = False  # a completion's prompt: no template applies


def knows_cache_control(model: str) -> bool:
    """Whether the model's own API takes `cache_control` as a setting, and not as prompt."""
    name = model.lower()
    return "claude" in name or "anthropic" in name


def json_text(value: Any) -> str:
    """A JSON value as the generic rendering writes it: compact, keys in the order sent."""
    try:
        return _encode(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return _shown(value)


def conversation(request: LoggedRequest) -> Conversation:
    """The fields of a request's body, in order: tools, then system, then the rest.

    Fields of a type that the API does not allow are left out: a log may hold anything.
    """
    body = request.body
    markers = not knows_cache_control(request.model())
    tools = list(_tools(body, markers))
    if request.family is Family.OPENAI_COMPLETIONS:
        return Conversation([], [_completion(body)], is_raw=True)
    if request.family is Family.OPENAI_RESPONSES:
        return Conversation(tools, list(_response_turns(body, markers)))
    turns: list[Turn] = []
    if request.family is Family.ANTHROPIC and body.get("system"):
        pieces = list(_content(body["system"], "/system", markers))
        turns.append(Turn("system", "/system", pieces))
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, Mapping):
            turns.extend(_message(message, f"/messages/{index}", markers))
    return Conversation(tools, turns)


def reply_turns(request: LoggedRequest) -> list[Turn]:
    """The assistant's logged answer as the next request's history would hold it."""
    if request.reply is None:
        return []
    message = {"role": "assistant", **request.reply}
    return list(_message(message, "/reply", markers=False))


def _tools(body: Mapping[str, Any], markers: bool) -> Iterator[Piece]:
    for name in ("tools", "functions"):
        listed = body.get(name)
        for index, tool in enumerate(listed if isinstance(listed, list) else ()):
            if not markers and isinstance(tool, Mapping) and "cache_control" in tool:
                tool = {key: value for key, value in tool.items() if key != "cache_control"}
            yield Piece(Kind.TEXT, f"/{name}/{index}", json_text(tool), 0, tool)


def _completion(body: Mapping[str, Any]) -> Turn:
    prompt = body.get("prompt")
    many = prompt if isinstance(prompt, list) else None
    if many and all(isinstance(each, int) for each in many):
        # Token ids: a stand-in in which equal ids are equal words, each of one piece.
        text = " ".join([f"{each:x}" for each in many]).translate(_WORDS)
        return Turn("user", "/prompt", [Piece(Kind.TEXT, "/prompt", text)])
    if many is not None:
        # Several prompts in one request are so many prompts; the first one stands for them.
        first = next((each for each in many if isinstance(each, str)), "")
        return Turn("user", "/prompt", [Piece(Kind.TEXT, "/prompt/0", first)])
    text = prompt if isinstance(prompt, str) else ""
    return Turn("user", "/prompt", [Piece(Kind.TEXT, "/prompt", text)])


def _message(message: Mapping[str, Any], pointer: str, markers: bool) -> Iterator[Turn]:
    """One message; Anthropic's tool results become turns of their own."""
    role = str(message.get("role"))
    role = _ROLES.get(role, role)
    turn = Turn(role, pointer)
    for key in _REASONING_KEYS:
        if isinstance(message.get(key), str) and message[key]:
            turn.pieces.append(Piece(Kind.REASONING, f"{pointer}/{key}", message[key]))
            break
    content = message.get("content")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, Mapping) and part.get("type") == "tool_result":
            at = f"{pointer}/content/{index}"
            result = Turn("tool", at)
            result.pieces.extend(_content(part.get("content"), f"{at}/content", markers))
            result.pieces.extend(_marker(part, at, markers))
            yield result
        else:
            turn.pieces.extend(_part(part, f"{pointer}/content/{index}", markers))
    if isinstance(content, str):
        turn.pieces.append(Piece(Kind.TEXT, f"{pointer}/content", content))
    turn.pieces.extend(_calls(message, pointer))
    turn.pieces.extend(_marker(message, pointer, markers))
    if turn.pieces or not isinstance(content, list):
        yield turn


def _calls(message: Mapping[str, Any], pointer: str) -> Iterator[Piece]:
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else ()
    listed = [(f"{pointer}/tool_calls/{k}/function", call) for k, call in enumerate(calls)]
    if isinstance(message.get("function_call"), Mapping):
        listed.append((f"{pointer}/function_call", {"function": message["function_call"]}))
    for at, call in listed:
        called = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(called, Mapping):
            yield Piece(Kind.CALL_NAME, f"{at}/name", str(called.get("name", "")))
            yield _arguments(called.get("arguments"), f"{at}/arguments")


def _arguments(value: Any, pointer: str) -> Piece:
    if isinstance(value, str):
        return Piece(Kind.CALL_ARGUMENTS, pointer, value)
    return Piece(Kind.CALL_ARGUMENTS, pointer, json_text(value), 0, value)


def _marker(part: Mapping[str, Any], pointer: str, markers: bool) -> Iterator[Piece]:
    marker = part.get("cache_control")
    if markers and marker:
        yield Piece(Kind.MARKER, f"{pointer}/cache_control", json_text(marker), 0, marker)


def _content(content: Any, pointer: str, markers: bool) -> Iterator[Piece]:
    if isinstance(content, str):
        yield Piece(Kind.TEXT, pointer, content)
    for index, part in enumerate(content if isinstance(content, list) else ()):
        yield from _part(part, f"{pointer}/{index}", markers)


def _part(part: Any, pointer: str, markers: bool) -> Iterator[Piece]:
    """One part of a message's content, in any of the three APIs' shapes."""
    if isinstance(part, str):
        yield Piece(Kind.TEXT, pointer, part)
        return
    if not isinstance(part, Mapping):
        return
    kind = str(part.get("type"))
    if kind == "thinking" or kind == "reasoning":
        text = part.get("thinking") or part.get("text")
        if isinstance(text, str):
            key = "thinking" if "thinking" in part else "text"
            yield Piece(Kind.REASONING, f"{pointer}/{key}", text)
    elif kind == "redacted_thinking":
        yield Piece(Kind.REASONING, f"{pointer}/data", str(part.get("data", "")))
    elif kind == "tool_use":
        yield Piece(Kind.CALL_NAME, f"{pointer}/name", str(part.get("name", "")))
        yield _arguments(part.get("input"), f"{pointer}/input")
    elif kind in _MEDIA_TYPES:
        yield media(part, pointer)
    elif isinstance(part.get("text"), str):
        yield Piece(Kind.TEXT, f"{pointer}/text", part["text"])
    elif isinstance(part.get("refusal"), str):
        yield Piece(Kind.TEXT, f"{pointer}/refusal", part["refusal"])
    yield from _marker(part, pointer, markers)


def media(part: Mapping[str, Any], pointer: str) -> Piece:
    """A picture, sound or file: equal content (and detail) has an equal name."""
    shown = {key: value for key, value in part.items() if key != "cache_control"}
    digest = hashlib.blake2b(_encode_any(shown), digest_size=12).hexdigest()
    tokens = MEDIA_TOKENS
    if "image" in str(part.get("type")):
        inner = part.get("image_url")
        detail = part.get("detail") or (inner.get("detail") if isinstance(inner, Mapping) else None)
        tokens = IMAGE_TOKENS_LOW if detail == "low" else IMAGE_TOKENS
    return Piece(Kind.MEDIA, pointer, f"<|media {digest}|>", tokens, part)


def _encode_any(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return _shown(value).encode("utf-8", "surrogatepass")


def _shown(value: Any) -> str:
    """What stands for a value that no JSON can be made of: half a character, endless nesting."""
    try:
        return repr(value)
    except RecursionError:
        return "[nested too deeply]"


def _response_turns(body: Mapping[str, Any], markers: bool) -> Iterator[Turn]:
    """The items of a Responses request."""
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        piece = Piece(Kind.TEXT, "/instructions", instructions)
        yield Turn("system", "/instructions", [piece])
    items = body.get("input")
    if isinstance(items, str):
        yield Turn("user", "/input", [Piece(Kind.TEXT, "/input", items)])
        return
    for index, item in enumerate(items if isinstance(items, list) else ()):
        at = f"/input/{index}"
        if not isinstance(item, Mapping):
            continue
        kind = item.get("type")
        if kind == "function_call":
            name = Piece(Kind.CALL_NAME, f"{at}/name", str(item.get("name", "")))
            called = _arguments(item.get("arguments"), f"{at}/arguments")
            yield Turn("assistant", at, [name, called])
        elif kind == "function_call_output":
            yield Turn("tool", at, list(_content(item.get("output"), f"{at}/output", markers)))
        elif kind == "reasoning":
            yield Turn("assistant", at, list(_summary(item, at)))
        elif "role" in item or kind == "message":
            yield from _message(item, at, markers)


def _summary(item: Mapping[str, Any], pointer: str) -> Iterator[Piece]:
    """What a Responses reasoning item shows: its content, else its summary."""
    for key in ("content", "summary"):
        parts = item.get(key)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield Piece(Kind.REASONING, f"{pointer}/{key}/{index}/text", part["text"])
        if parts:
            return
