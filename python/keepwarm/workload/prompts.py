"""From a request with its text to block ids and token counts; nothing of the text stays.

    prompt -> tokens    the model's own tokenizer and template where given, token ids where the log
                        has them, else pieces cut by fixed rules (`layout.tokens`)
           -> block ids chained keyed hashes of `block_tokens` tokens each (`hashing`)

An approximate trace counts in pieces: `pieces_per_block` of them stand for a block, set so that
counts agree with what endpoints reported where the log says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keepwarm.errors import ArgumentError
from keepwarm.layout.fields import Kind, conversation
from keepwarm.layout.rendering import RenderSettings, render, render_reply
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.layout.tokens import ApproximateTokens, LocalTokens, Tokens, tokenise
from keepwarm.workload.hashing import Hasher

#: Fields of a body that keep equal prompts of different ones apart.
_FACTS = ("lora", "lora_path", "lora_id", "adapter", "adapter_id", "cache_salt", "extra_key")
_NO_IDS: array[int] = array("Q")
_TOKEN_MAX = 1 << 32


class UnrenderableError(ValueError):
    """A request that has no prompt; its text is the reason, in fixed words."""


class Blocks(NamedTuple):
    """What becomes of one prompt."""

    input_tokens: int
    output_tokens: int
    block_ids: array[int]


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt before it is cut: as many token ids as are known."""

    tokens: np.ndarray[Any, np.dtype[np.uint64]]
    is_exact: bool


def token_source(tokenizer: Path | None) -> Tokens:
    """The model's own tokens, or the approximation. Raises ArgumentError."""
    return ApproximateTokens() if tokenizer is None else LocalTokens(tokenizer)


def render_settings(tokenizer: Path | None, chat_template: Path | None) -> RenderSettings:
    """The chat template: the one named, else the one beside the tokenizer, else a generic one."""
    from keepwarm.layout.chat_template import ChatTemplate

    if chat_template is not None:
        return RenderSettings(ChatTemplate.from_folder(chat_template))
    if tokenizer is None:
        return RenderSettings()
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    try:
        return RenderSettings(ChatTemplate.from_folder(folder))
    except ArgumentError:
        return RenderSettings()


class Prompts:
    """Turns requests into blocks, all in the same way."""

    def __init__(
        self,
        hasher: Hasher,
        tokens: Tokens,
        settings: RenderSettings,
        block_tokens: int,
        pieces_per_block: int | None = None,
    ) -> None:
        self._hasher = hasher
        self._tokens = tokens
        self._settings = settings
        self._block_tokens = block_tokens
        self._pieces = pieces_per_block or block_tokens

    @property
    def is_exact(self) -> bool:
        """Whether messages become the model's own tokens: by its tokenizer and its template."""
        return self._tokens.is_exact and self._settings.template is not None

    @property
    def description(self) -> str:
        """Where tokens come from, in words that name nothing of the caller's."""
        if self._tokens.is_exact:
            return "the model's own tokenizer, on messages laid out in a generic form: no template"
        return ApproximateTokens.description

    def measure(self, request: LoggedRequest) -> list[Measured]:
        """A request's prompts as tokens; none where the log left them out."""
        body = request.body
        prompt = body.get("prompt")
        if isinstance(prompt, list) and "messages" not in body:
            return [self._raw(request, each) for each in _several(prompt)]
        if not any(body.get(name) for name in ("messages", "prompt", "input")):
            return []
        return [self._rendered(request)]

    def blocks(self, request: LoggedRequest) -> Iterator[Blocks]:
        """A request's prompts as block ids. Raises UnrenderableError."""
        measured = self.measure(request)
        usage = request.usage
        output = self._output(request) if usage.output_tokens is None else usage.output_tokens
        if not measured:
            if usage.input_tokens is None:
                raise UnrenderableError("it has neither a prompt nor a count of tokens")
            yield Blocks(usage.input_tokens, output, _NO_IDS)
            return
        seed = self._seed(request.body)
        for each in measured:
            # Some logs have zeros where nothing was counted.
            reported = usage.input_tokens or None if len(measured) == 1 else None
            yield self._cut(each, seed, reported, output // len(measured))

    def _cut(self, prompt: Measured, seed: bytes, reported: int | None, output: int) -> Blocks:
        size = self._block_tokens if prompt.is_exact else self._pieces
        data = prompt.tokens.tobytes()
        count = len(prompt.tokens)
        known = count if prompt.is_exact else -(-count * self._block_tokens // size)
        if prompt.is_exact and reported is not None and reported > count:
            data = data[: 8 * (count - count % size)]  # how its last block goes on is not known
        ids = self._hasher.blocks(seed, data, 8 * size)
        total = known if reported is None else reported
        return Blocks(total, output, ids[: -(-total // self._block_tokens)])

    def _output(self, request: LoggedRequest) -> int:
        """Tokens of the logged answer, where the endpoint's count of them was not logged."""
        if request.reply is None:
            return 0
        try:
            texts = [segment.text for segment in render_reply(request)]
            count = sum(len(self._tokens.encode(text)[0]) for text in texts if text)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            return 0
        return count if self.is_exact else -(-count * self._block_tokens // self._pieces)

    def _seed(self, body: Mapping[str, Any]) -> bytes:
        model = body.get("model")
        facts = [f"{name}={body[name]}" for name in _FACTS if body.get(name)]
        return self._hasher.seed(model if isinstance(model, str) else "", *facts)

    def _raw(self, request: LoggedRequest, prompt: object) -> Measured:
        if isinstance(prompt, str):
            body = {**request.body, "prompt": prompt}
            one = LoggedRequest(request.where, request.family, body, request.time_s)
            return self._rendered(one)
        if not isinstance(prompt, list) or not all(type(each) is int for each in prompt):
            raise UnrenderableError("its prompt is neither text nor token ids")
        if not all(0 <= each < _TOKEN_MAX for each in prompt):
            raise UnrenderableError("its token ids are out of range")
        return Measured(np.array(prompt, dtype=np.uint64), is_exact=True)

    def _rendered(self, request: LoggedRequest) -> Measured:
        try:
            ids, _ = tokenise(render(request, self._settings), self._tokens)
        except ArgumentError:
            raise UnrenderableError("the chat template refuses it") from None
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            # A log may hold anything where an API wants a message; tokenizers take no surrogates.
            raise UnrenderableError("its messages have a form that is not known") from None
        is_raw = request.family is Family.OPENAI_COMPLETIONS
        return Measured(ids, self._tokens.is_exact if is_raw else self.is_exact)


def _several(prompt: list[Any]) -> list[Any]:
    """A completion's prompts: one of token ids, or several of either kind."""
    if all(type(each) is int for each in prompt):
        return [prompt]
    return prompt


def turn_digests(request: LoggedRequest, hasher: Hasher) -> list[bytes]:
    """After each message the digest of all so far: what a tenant's conversation is recognised by.

    Reasoning and cache markers are left out, since clients drop and move them between turns.
    """
    parts = conversation(request)
    if parts.is_raw:
        return []
    tools = (tool.text for tool in parts.tools)
    last = hasher.seed(request.tenant or "", request.model(), *tools)
    digests = []
    for turn in parts.turns:
        texts = [
            piece.text for piece in turn.pieces if piece.kind not in (Kind.REASONING, Kind.MARKER)
        ]
        content = "\0".join((turn.role, *texts)).encode("utf-8", "surrogatepass")
        last = hasher.extend(last, content)
        digests.append(last)
    return digests
