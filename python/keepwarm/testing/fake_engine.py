"""An OpenAI-compatible endpoint without a model: a prefix cache, a prefill rate, faults.

    GET  /health, /v1/models
    POST /v1/completions         text or token ids; streamed or whole
    POST /v1/chat/completions    the same for messages

Times are those of the event loop it runs in, so that under `keepwarm.testing.virtual_time` a test
can say to the microsecond when a token must come:

    first token = wait for a turn + start_s + computed tokens / prefill_tokens_per_s
    each next   = token_s

At most `prefills_at_once` prompts are computed at a time, first come, first served. Text counts as
a token every four characters. Answers depend on the prompt and on `answers` alone.

>>> async def main() -> int:
...     import aiohttp
...     engine = FakeEngine(block_tokens=4)
...     asked = {"model": "fake", "prompt": list(range(16)), "max_tokens": 2}
...     async with engine.listening() as url, aiohttp.ClientSession() as session:
...         for _ in range(2):
...             async with session.post(f"{url}/v1/completions", json=asked) as answer:
...                 usage = (await answer.json())["usage"]
...     return usage["prompt_tokens_details"]["cached_tokens"]
>>> asyncio.run(main())
12
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["EngineFaults", "FakeEngine"]

CHARACTERS_A_TOKEN = 4
ARRIVALS_KEPT = 1 << 17
BODY_BYTES_MAX = 64 << 20
START_S_MAX = 10.0


@dataclass(slots=True)
class EngineFaults:
    """What goes wrong, from now on, with each `every`-th request."""

    status: int | None = None  # answered at once, with an error
    cut_after: int | None = None  # the connection ends after so many chunks of an answer
    silent: bool = False  # accepted, and never answered
    garbage: bool = False  # a stream that is none
    slow_start_s: float = 0.0  # more to the first token
    every: int = 1


@dataclass(slots=True)
class _Prompt:
    """What is to be computed: names of its blocks, each a hash of all up to its end."""

    tokens: int
    blocks: list[bytes]
    digest: bytes

    @classmethod
    def of(cls, units: Sequence[int], block_tokens: int) -> _Prompt:
        packed = struct.pack(f"<{len(units)}q", *units)
        chain, blocks, step = b"", [], 8 * block_tokens
        for at in range(0, len(units) // block_tokens * step, step):
            chain = hashlib.blake2b(chain + packed[at : at + step], digest_size=16).digest()
            blocks.append(chain)
        return cls(len(units), blocks, hashlib.blake2b(packed, digest_size=16).digest())


@dataclass
class FakeEngine:
    """See the module. Without `capacity_blocks` the cache is unbounded; with it, an LRU."""

    model: str = "fake"
    block_tokens: int = 16
    capacity_blocks: int | None = None
    prefill_tokens_per_s: float = 100_000.0
    start_s: float = 0.0
    token_s: float = 0.0
    prefills_at_once: int = 1
    tells_cached: bool = True
    answers: str = ""
    faults: EngineFaults = field(default_factory=EngineFaults)

    def __post_init__(self) -> None:
        self.requests = 0
        self.answered = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.under_way = 0
        self.under_way_max = 0
        #: Loop times at which requests came, the last so many.
        self.arrivals: deque[float] = deque(maxlen=ARRIVALS_KEPT)
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        self._stalled_until = 0.0
        self._turns: asyncio.Semaphore | None = None

    def stall(self, seconds: float) -> None:
        """From now on nothing is computed or said for so long; call it in the engine's loop."""
        self._stalled_until = asyncio.get_running_loop().time() + seconds

    def forget(self) -> None:
        """Empties the prefix cache."""
        self._cache.clear()

    @asynccontextmanager
    async def listening(self, socket: str | None = None) -> AsyncIterator[str]:
        """Serves in the running loop, at a port of loopback or at a Unix socket.

        Gives a URL, or `unix:` and the path.
        """
        from aiohttp import web

        self._turns = asyncio.Semaphore(self.prefills_at_once)
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._complete),
                web.post("/v1/chat/completions", self._complete),
            ]
        )
        # A client that leaves ends its request, as it does at an engine.
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            if socket is not None:
                await web.UnixSite(runner, socket).start()
                yield f"unix:{socket}"
            else:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    @contextmanager
    def serving(self, socket: str | None = None) -> Iterator[str]:
        """Serves in a thread with a loop of its own, in real time; gives the address."""
        ready, address = threading.Event(), ""
        loop = asyncio.new_event_loop()
        ended = asyncio.Event()

        async def serve() -> None:
            nonlocal address
            async with self.listening(socket) as address:
                ready.set()
                await ended.wait()

        thread = threading.Thread(
            target=loop.run_until_complete, args=(serve(),), name="fake-engine", daemon=True
        )
        thread.start()
        try:
            if not ready.wait(START_S_MAX):
                raise RuntimeError(f"the engine did not listen within {START_S_MAX:.0f} s")
            yield address
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()

    async def _health(self, _: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        from aiohttp import web

        models = [{"id": self.model, "object": "model"}]
        return web.json_response({"object": "list", "data": models})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.arrivals.append(asyncio.get_running_loop().time())
        self.requests += 1
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            return await self._answer(request)
        finally:
            self.under_way -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        struck = self.requests % self.faults.every == 0
        faults = self.faults if struck else EngineFaults()
        asked = json.loads(await request.read())
        if faults.status is not None:
            return web.json_response({"error": {"message": "told to"}}, status=faults.status)
        if faults.silent:
            await asyncio.Event().wait()
        chat = request.path.endswith("/chat/completions")
        prompt = _Prompt.of(
            _units(asked["messages"] if chat else asked["prompt"]), self.block_tokens
        )
        if prompt.tokens == 0:
            return web.json_response({"error": {"message": "an empty prompt"}}, status=400)
        cached = await self._prefill(prompt, faults.slow_start_s)
        count = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        answer = _Answer(self, asked, chat, prompt, count, cached)
        if not asked.get("stream"):
            await self._pause(self.token_s * (count - 1))
            return web.json_response(answer.whole())
        return await self._stream(request, answer, faults)

    async def _prefill(self, prompt: _Prompt, more_s: float) -> int:
        """Waits as long as computing takes; returns how many tokens were cached."""
        assert self._turns is not None
        async with self._turns:
            most = (prompt.tokens - 1) // self.block_tokens  # one token at least is computed
            hits = 0
            while hits < min(most, len(prompt.blocks)) and prompt.blocks[hits] in self._cache:
                hits += 1
            cached = hits * self.block_tokens
            await self._pause(
                self.start_s + more_s + (prompt.tokens - cached) / self.prefill_tokens_per_s
            )
            self._keep(prompt)
        self.prompt_tokens += prompt.tokens
        self.cached_tokens += cached
        return cached

    def _keep(self, prompt: _Prompt) -> None:
        for block in reversed(prompt.blocks):
            self._cache[block] = None
            self._cache.move_to_end(block)
        while self.capacity_blocks is not None and len(self._cache) > self.capacity_blocks:
            self._cache.popitem(last=False)

    async def _pause(self, seconds: float) -> None:
        """Lets time pass. During a stall nothing begins, and nothing comes to its end."""
        loop = asyncio.get_running_loop()
        until = max(loop.time(), self._stalled_until) + seconds
        while loop.time() < (end := max(until, self._stalled_until)):
            await asyncio.sleep(end - loop.time())

    async def _stream(
        self, request: web.Request, answer: _Answer, faults: EngineFaults
    ) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if faults.garbage:
            await response.write(b"data: {no\n\n")
            return response
        for at, event in enumerate(answer.events()):
            if faults.cut_after is not None and at >= faults.cut_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if at:
                await self._pause(self.token_s)
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        usage = answer.usage()
        if (answer.asked.get("stream_options") or {}).get("include_usage"):
            told = {**answer.head(), "choices": [], "usage": usage}
            await response.write(b"data: " + json.dumps(told).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        self.answered += 1
        return response


@dataclass(slots=True)
class _Answer:
    """What is said, the same each time."""

    engine: FakeEngine
    asked: dict[str, Any]
    chat: bool
    prompt: _Prompt
    count: int
    cached: int

    def head(self) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": f"fake-{self.engine.requests}",
            "object": f"{kind}.chunk" if self.chat else kind,
            "model": self.engine.model,
        }

    def tokens(self) -> list[int]:
        """As many as were asked for, from the prompt."""
        seed = self.prompt.digest + self.engine.answers.encode()
        return [
            int.from_bytes(hashlib.blake2b(seed + at.to_bytes(4, "little")).digest()[:2], "little")
            for at in range(self.count)
        ]

    def events(self) -> Iterator[dict[str, Any]]:
        """One token each; the last says why it is the last."""
        tokens = self.tokens()
        for at, token in enumerate(tokens):
            finish = "length" if at == len(tokens) - 1 else None
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
            if self.chat:
                choice["delta"] = {"content": f" {token}"} | ({} if at else {"role": "assistant"})
            else:
                choice["text"] = f" {token}"
            if self.asked.get("return_token_ids"):
                choice["token_ids"] = [token]
            yield {**self.head(), "choices": [choice]}

    def whole(self) -> dict[str, Any]:
        """Not streamed."""
        text = "".join(f" {token}" for token in self.tokens())
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        self.engine.answered += 1
        return {**self.head(), "choices": [choice], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "prompt_tokens": self.prompt.tokens,
            "completion_tokens": self.count,
            "total_tokens": self.prompt.tokens + self.count,
        }
        if self.engine.tells_cached:
            made["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return made


def _units(prompt: Any) -> list[int]:
    """Token ids as they are; text four characters a token."""
    if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        return prompt
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    step = CHARACTERS_A_TOKEN
    pieces = (text[at : at + step] for at in range(0, len(text), step))
    return [int.from_bytes(piece.encode()[:7], "little") for piece in pieces]
