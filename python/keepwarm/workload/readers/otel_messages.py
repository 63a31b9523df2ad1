"""Messages as spans have them, as OpenAI's chat messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NUMBERED_MAX = 10_000


def as_chat(found: Any) -> list[dict[str, Any]]:
    """Messages of `parts` (the conventions' form) or of `content`; a text is one of the user."""
    if isinstance(found, str) and found:
        return [{"role": "user", "content": found}]
    if isinstance(found, Mapping) and isinstance(found.get("messages"), list):
        found = found["messages"]
    messages: list[dict[str, Any]] = []
    for message in found if isinstance(found, list) else ():
        if isinstance(message, str):
            messages.append({"role": "user", "content": message})
        elif isinstance(message, Mapping) and isinstance(message.get("parts"), list):
            messages += _of_parts(str(message.get("role", "user")), message["parts"])
        elif isinstance(message, Mapping):
            messages.append({str(name): value for name, value in message.items()})
    return messages


def text_of(found: Any) -> str:
    """The text of system instructions: a text, or parts of it."""
    if isinstance(found, str):
        return found
    texts = [
        each if isinstance(each, str) else str(each.get("content", each.get("text", "")) or "")
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, str | Mapping)
    ]
    return "\n".join(text for text in texts if text)


def _of_parts(role: str, parts: list[Any]) -> list[dict[str, Any]]:
    """One message of the conventions; answers of tools become messages of their own."""
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if kind == "text":
            content.append({"type": "text", "text": str(part.get("content", ""))})
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments")}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            answers.append(
                {"role": "tool", "tool_call_id": part.get("id"), "content": _text(result)}
            )
        elif kind in ("reasoning", "thinking"):
            reasoning.append(str(part.get("content", "")))
        else:
            content.append({**part, "type": _media_type(part)})
    message: dict[str, Any] = {"role": role, "content": _joined(content)}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    return answers if answers and not content and not calls else [message, *answers]


def _joined(content: list[dict[str, Any]]) -> Any:
    """One text as a text; several parts, or media, as they are."""
    if not content:
        return None
    is_text = len(content) == 1 and content[0]["type"] == "text"
    return content[0]["text"] if is_text else content


def _media_type(part: Mapping[str, Any]) -> str:
    kind = f"{part.get('modality', '')} {part.get('mime_type', '')}"
    return next((each for each in ("image", "audio", "video") if each in kind), "file")


def _text(value: Any) -> Any:
    """A tool's answer: text as it is, anything else as parts that are hashed whole."""
    return value if isinstance(value, str) else [{"type": "text", "text": repr(value)}]


def numbered(facts: Mapping[str, Any], prefix: str, inner: str) -> list[dict[str, Any]]:
    """Messages whose fields are attributes of their own, `PREFIX0.INNERrole` and so on."""
    if f"{prefix}0.{inner}role" not in facts and f"{prefix}0.{inner}content" not in facts:
        return []
    shape = re.compile(rf"{re.escape(prefix)}(\d{{1,5}})\.{re.escape(inner)}(.+)")
    by_number: dict[int, dict[str, Any]] = {}
    for name, value in facts.items():
        if found := shape.fullmatch(name):
            by_number.setdefault(int(found[1]), {})[found[2]] = value
    messages = []
    for number in sorted(by_number)[:_NUMBERED_MAX]:
        fields = by_number[number]
        message = {"role": str(fields.get("role", "user")), "content": fields.get("content")}
        calls = _calls(fields)
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _calls(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = []
    for place in range(_NUMBERED_MAX):
        at = f"tool_calls.{place}."
        name = fields.get(f"{at}name", fields.get(f"{at}tool_call.function.name"))
        arguments = fields.get(f"{at}arguments", fields.get(f"{at}tool_call.function.arguments"))
        if name is None and arguments is None:
            break
        calls.append({"type": "function", "function": {"name": name, "arguments": arguments}})
    return calls
