"""What an endpoint answered: the assistant's message and the tokens that it counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keepwarm.layout.requests import Usage
from keepwarm.workload.readers.rows import TOKENS_MAX


def usage_of(usage: object) -> Usage:
    """Token counts of any of the APIs; Anthropic's input is without what its cache had: added."""
    if not isinstance(usage, Mapping):
        return Usage()
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        read = _count(usage.get("cache_read_input_tokens")) or 0
        written = _count(usage.get("cache_creation_input_tokens")) or 0
        total = _count(usage.get("prompt_tokens"))  # a proxy's, which has added them already
        plain = _count(usage.get("input_tokens"))
        if total is None and plain is not None:
            total = plain + read + written
        return Usage(total, _first(usage, "output_tokens", "completion_tokens"), read, written)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return Usage(
        _first(usage, "prompt_tokens", "input_tokens"),
        _first(usage, "completion_tokens", "output_tokens"),
        _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None,
    )


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((found for name in names if (found := _count(usage.get(name))) is not None), None)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
        return None
    return value


def reply_of(answer: object) -> Mapping[str, Any] | None:
    """The assistant's message as a next request would have it in its history."""
    if not isinstance(answer, Mapping):
        return None
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        if isinstance(message, Mapping):
            return message
        text = choices[0].get("text")
        return {"role": "assistant", "content": text} if isinstance(text, str) else None
    if answer.get("role") == "assistant" and "content" in answer:
        kept = ("role", "content", "tool_calls", "reasoning_content")
        return {key: answer[key] for key in kept if key in answer}
    output = answer.get("output")
    return _of_items(output) if isinstance(output, list) else None


def _of_items(items: list[Any]) -> Mapping[str, Any]:
    """A Responses answer's items as one message."""
    parts: list[Any] = []
    calls: list[Any] = []
    for item in items:
        if not isinstance(item, Mapping):
            continue
        if item.get("type") == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
        elif isinstance(item.get("content"), list):
            parts += item["content"]
    message: dict[str, Any] = {"role": "assistant", "content": parts}
    if calls:
        message["tool_calls"] = calls
    return message
