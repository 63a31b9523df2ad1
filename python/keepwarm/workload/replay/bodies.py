"""What is sent: a completion of synthesised tokens, or a logged request's own body, streamed.

Bodies live in memory until they are sent; nothing of them is written anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from keepwarm.errors import ArgumentError
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.workload.replay.prompts import Vocabulary
from keepwarm.workload.replay.schedule import Arrival

_encode = msgspec.json.Encoder().encode
ECHOED_TOKENS_MAX = 8192
#: A log that says more has it wrong; a body of as many takes tens of megabytes.
PROMPT_TOKENS_MAX = 1 << 22
PATHS = {
    Family.OPENAI_CHAT: "/v1/chat/completions",
    Family.OPENAI_COMPLETIONS: "/v1/completions",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens of a prompt and of an answer beyond which they are cut; None: as the trace says."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            if value is not None and value < 1:
                raise ArgumentError(f"the {name}'s limit is {value} tokens: give 1 or more")


@dataclass(frozen=True, slots=True)
class Body:
    """A request, encoded."""

    arrival: Arrival
    path: str
    data: bytes
    comparable: bool  # temperature 0, so that the same prompt should get the same answer
    cut: bool = False  # the trace's prompt was longer


class TokenBodies:
    """Completions of token ids, with exactly the trace's output length and temperature 0.

    Token ids are asked back of short prompts only, because vLLM gives the prompt's back with the
    answer's first ones, which takes a long prompt milliseconds. Of others the text is compared.

    `ignore_eos`, `min_tokens` and `return_token_ids` are what engines add to OpenAI's fields:
    without them an answer would end where the model likes, and two runs would do different work.
    """

    def __init__(self, model: str, vocabulary: Vocabulary, limits: Limits) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.limits = limits

    def body(self, arrival: Arrival) -> Body | None:
        """One request's; None where it would be longer than any model's."""
        wanted = max(arrival.input_tokens, 1)
        most = self.limits.prompt_tokens
        count = wanted if most is None else min(wanted, most)
        if count > PROMPT_TOKENS_MAX:
            return None
        output = max(arrival.output_tokens, 1)
        if self.limits.output_tokens is not None:
            output = min(output, self.limits.output_tokens)
        tokens = self.vocabulary.tokens(
            arrival.block_ids, arrival.block_tokens, count, arrival.number
        )
        asked = {
            "model": self.model,
            "prompt": tokens.tolist(),
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": count <= ECHOED_TOKENS_MAX,
            **_STREAMED,
        }
        path = PATHS[Family.OPENAI_COMPLETIONS]
        return Body(arrival, path, _encode(asked), comparable=True, cut=count < wanted)

    def plain(self) -> dict[str, Any]:
        """How prompts were made, for JSON."""
        return {
            "from": "block ids",
            "model": self.model,
            "vocabulary": self.vocabulary.size,
            "first_token": self.vocabulary.first,
            "prompt_tokens_max": self.limits.prompt_tokens,
            "output_tokens_max": self.limits.output_tokens,
        }


class TextBodies:
    """Logged bodies as they are, except that they are streamed and may name another model."""

    def __init__(self, model: str | None, limits: Limits) -> None:
        if limits.prompt_tokens is not None:
            raise ArgumentError("a logged text is sent whole: leave the prompt's limit out")
        self.model = model
        self.limits = limits

    def body(self, arrival: Arrival) -> Body | None:
        """One request's; None where its family is not OpenAI's chat or completions."""
        logged = arrival.logged
        assert logged is not None
        path = PATHS.get(logged.family)
        if path is None:
            return None
        asked = {**logged.body, **_STREAMED, **self._changes(logged)}
        return Body(arrival, path, _encode(asked), asked.get("temperature") == 0)

    def _changes(self, logged: LoggedRequest) -> dict[str, Any]:
        changes: dict[str, Any] = {} if self.model is None else {"model": self.model}
        most = self.limits.output_tokens
        if most is not None:
            named = "max_completion_tokens"
            if named not in logged.body or logged.family is not Family.OPENAI_CHAT:
                named = "max_tokens"
            given = logged.body.get(named)
            changes[named] = min(given, most) if isinstance(given, int) else most
        return changes

    def plain(self) -> dict[str, Any]:
        """How prompts were made, for JSON."""
        return {
            "from": "logged text",
            "model": self.model,
            "output_tokens_max": self.limits.output_tokens,
        }


_STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
