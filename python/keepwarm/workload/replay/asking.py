"""One request and its answer: streamed, timed, never without an end, its text never kept.

    TTFT        from the intended send time to the first chunk with content
    gap         between two chunks with content, as they were read
    total       from the intended send time to the end of the stream

An answer that failed says how: `Failure`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from keepwarm.errors import KeepwarmError

if TYPE_CHECKING:
    import aiohttp

LINE_BYTES_MAX = 4 << 20
MODELS_BYTES_MAX = 4 << 20

CONNECT = "connect"  # no connection could be made
TIMEOUT = "timeout"  # the request's own deadline passed
CUT = "cut"  # the connection ended before the answer did
MALFORMED = "malformed"  # no HTTP, no stream of events, or one that says that it failed
EMPTY = "empty"  # it ended well, without any content
CANCELLED = "cancelled"  # the replay was interrupted meanwhile
NOT_SENT = "not sent"  # too many were under way at its time


def http_failure(status: int) -> str:
    """The kind of a failure by status."""
    return f"http {status}"


@dataclass(slots=True)
class Answer:
    """What came of one request. Times are the loop's; `failure` is None where all went well."""

    due_s: float
    begun_s: float
    first_s: float | None = None
    ended_s: float = 0.0
    failure: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    digest: bytes | None = None  # of all that was said, where something was


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    delta: _Delta | None = None
    finish_reason: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder(order="sorted").encode
# No event, nothing in UTF-8, a token id that is none, brackets without an end.
_UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)


class _MalformedError(Exception):
    """The stream is not what it should be; what it was stays here."""


@dataclass(slots=True)
class _Stream:
    """Server-sent events out of pieces of bytes."""

    answer: Answer
    gap: Callable[[float], None]
    rest: bytearray = field(default_factory=bytearray)
    text: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    tokens: Any = None  # a hash of token ids, where they are told
    last_s: float = 0.0
    finished: bool = False

    def feed(self, piece: bytes, now_s: float) -> None:
        """Takes what was read at a time."""
        self.rest += piece
        for data in self._lines():
            if data == b"[DONE]":
                self.finished = True
                continue
            try:
                event = _decode(data)
                if event.error is not None:
                    raise _MalformedError
                self._take(event, now_s)
            except _UNREADABLE:
                raise _MalformedError from None

    def _lines(self) -> Iterator[bytes]:
        if b"\n" not in self.rest:
            if len(self.rest) > LINE_BYTES_MAX:
                raise _MalformedError
            return
        *lines, rest = bytes(self.rest).split(b"\n")
        self.rest = bytearray(rest)
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()

    def _take(self, event: _Event, now_s: float) -> None:
        content = False
        for choice in event.choices:
            content |= self._content(choice)
            self.finished |= choice.finish_reason is not None
        if content and self.answer.first_s is None:
            self.answer.first_s = now_s
        elif content:
            self.gap(now_s - self.last_s)
        if content:
            self.last_s = now_s
        usage = event.usage
        if usage is not None:
            self.answer.prompt_tokens = usage.prompt_tokens
            self.answer.output_tokens = usage.completion_tokens
            details = usage.prompt_tokens_details
            self.answer.cached_tokens = details.cached_tokens if details else None

    def _content(self, choice: _Choice) -> bool:
        delta = choice.delta or _Delta()
        parts = [choice.text, delta.content, delta.reasoning, delta.reasoning_content]
        tokens = choice.token_ids or ()
        # A token may be no whole letter yet: a completion's chunk is one although it is empty. The
        # last one may only say that it is the last.
        empty = choice.text is not None and choice.finish_reason is None
        if not any(parts) and not tokens and not delta.tool_calls:
            return empty
        # Chunks may be cut differently each time: what counts is what they say together.
        if tokens:
            self.tokens = self.tokens or hashlib.blake2b(digest_size=8)
            self.tokens.update(b"".join(int(each).to_bytes(8, "little") for each in tokens))
        for part in parts:
            if part:
                text = part if isinstance(part, str) else _encode(part).decode()
                self.text.update(text.encode("utf-8", "surrogatepass"))
        # Ids of tool calls are drawn at random; what is called is not.
        for called in delta.tool_calls or ():
            function = called.get("function") if isinstance(called, dict) else None
            for name in ("name", "arguments"):
                value = function.get(name) if isinstance(function, dict) else None
                self.text.update(value.encode() if isinstance(value, str) else b"")
        return True


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    data: bytes,
    answer: Answer,
    timeout_s: float,
    gap: Callable[[float], None],
) -> None:
    """Sends one request and fills in its answer; raises only CancelledError."""
    import aiohttp

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            await _stream(session, url, data, answer, gap)
    except TimeoutError:
        answer.failure = TIMEOUT
    except asyncio.CancelledError:
        answer.failure = CANCELLED
        raise
    except aiohttp.ClientConnectorError:
        answer.failure = CONNECT
    except aiohttp.ClientResponseError:
        answer.failure = MALFORMED
    except (aiohttp.ClientError, OSError):
        # A request that a pooled connection's end met, a stream that ended early: all one to us.
        answer.failure = CUT
    except _MalformedError:
        answer.failure = MALFORMED
    finally:
        answer.ended_s = loop.time()


async def _stream(
    session: aiohttp.ClientSession,
    url: str,
    data: bytes,
    answer: Answer,
    gap: Callable[[float], None],
) -> None:
    loop = asyncio.get_running_loop()
    async with session.post(url, data=data, allow_redirects=False) as response:
        if response.status != 200:
            answer.failure = http_failure(response.status)
            return
        stream = _Stream(answer, gap)
        async for piece in response.content.iter_any():
            stream.feed(piece, loop.time())
        stream.feed(b"\n", loop.time())
    if not stream.finished:
        answer.failure = CUT
    elif answer.first_s is None:
        answer.failure = EMPTY
    else:
        answer.digest = (stream.tokens or stream.text).digest()


async def first_model(session: aiohttp.ClientSession, url: str, timeout_s: float) -> str:
    """The first model that an endpoint serves. KeepwarmError where it does not say."""
    import aiohttp

    try:
        async with asyncio.timeout(timeout_s), session.get(f"{url}/v1/models") as response:
            if response.status != 200:
                raise KeepwarmError(
                    f"{url}/v1/models answers {response.status}: name the model with --model"
                )
            said = bytearray()
            while len(said) < MODELS_BYTES_MAX and (piece := await response.content.readany()):
                said += piece
            return str(msgspec.json.decode(said)["data"][0]["id"])
    except (KeyError, IndexError, TypeError, *_UNREADABLE):
        raise KeepwarmError(f"{url}/v1/models names no model: name it with --model") from None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise ConnectionError(f"{url} does not answer: {why}") from None
