"""A request as an application sent it, with its text. Held in memory only, never written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Family(StrEnum):
    """Whose shape a request's body has."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_COMPLETIONS = "openai-completions"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint reported them; None where it did not."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One record of a request log. `body` is what was sent, unknown fields included."""

    where: str  # "file.jsonl:17"
    family: Family
    body: Mapping[str, Any]
    time_s: float | None = None  # Unix time of its arrival
    session: str | None = None
    tenant: str | None = None
    usage: Usage = Usage()
    reply: Mapping[str, Any] | None = None  # the assistant's message, where it was logged

    def model(self) -> str:
        """The model that was asked for, or nothing."""
        named = self.body.get("model")
        return named if isinstance(named, str) else ""
