"""Endpoints that say anything at all: each answer ends, and what is none counts as none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from keepwarm.errors import KeepwarmError
from keepwarm.testing import virtual_time
from keepwarm.workload.replay import Sending, model_of, parse_targets, replay
from replays import plan, steady

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TIMEOUT_S = 5.0
#: The other side has had enough, or the test.
ENDED = (ConnectionError, asyncio.CancelledError)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**choice: Any) -> bytes:
    return chunk(b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n")


TEXT = event(text="a")
END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
DEEP = b'{"choices":[{"delta":{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
#: What is said, what is repeated after it without an end, and what the answer counts as.
CASES: dict[str, tuple[bytes, bytes, str | None]] = {
    "as it should be": (OK + TEXT + END, b"", None),
    "lines that end in two characters": (
        OK + chunk(b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: [DONE]\r\n\r\n') + b"0\r\n\r\n",
        b"",
        None,
    ),
    "half a header": (OK[:30], b"", "cut"),
    "a header too long": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, b"", "malformed"),
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"X: b\r\n" * 1000, "malformed"),
    "interim answers without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "timeout"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", b"", "malformed"),
    "tokens without end": (OK, TEXT, "timeout"),
    "comments without end": (OK, chunk(b": still there\n\n"), "timeout"),
    "comments after the end": (OK + TEXT + END[:-5], chunk(b": still there\n\n"), "timeout"),
    "a line without end": (OK, chunk(b"x" * (1 << 16)), "malformed"),
    "a body without end, refused": (b"HTTP/1.1 500 No\r\n\r\n", b"y" * 1000, "http 500"),
    "ended before it said so": (OK + TEXT + b"0\r\n\r\n", b"", "cut"),
    "cut after its reason to finish": (OK + event(text="a", finish_reason="length"), b"", "cut"),
    "a chunk of no length": (OK + b"zz\r\nabc", b"", "malformed"),
    "a negative token": (OK + event(text="a", token_ids=[-1]) + END, b"", "malformed"),
    "a token of 65 bits": (OK + event(text="a", token_ids=[2**64]) + END, b"", "malformed"),
    "half a letter": (
        OK + chunk(b'data: {"choices":[{"text":"\\ud83d"}]}\n') + END,
        b"",
        "malformed",
    ),
    "100,000 brackets": (OK + chunk(b"data: " + DEEP + b"\n\n") + END, b"", "malformed"),
    "no object": (OK + chunk(b"data: [1]\n\n") + END, b"", "malformed"),
    "nothing but the end": (OK + END, b"", "empty"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_counts_as_what_it_is(folder: Path, name: str) -> None:
    said, repeated, kind = CASES[name]
    result = against(folder, pieces(said, repeated), 0.01)
    told = result["targets"][0]
    assert told["failures"] == ({} if kind is None else {kind: 2})
    assert told["completed"] == (2 if kind is None else 0)
    assert told["seconds"] <= 1.0 + TIMEOUT_S + 0.1


def test_a_byte_a_second_ends_at_the_deadline(folder: Path) -> None:
    said = OK + TEXT * 1000
    told = against(folder, (said[at : at + 1] for at in range(len(said))), 1.0)["targets"][0]
    assert told["failures"] == {"timeout": 2}


async def pause(seconds: float) -> None:
    """Of the clock that jumps."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


def pieces(said: bytes, repeated: bytes) -> Iterator[bytes]:
    yield said
    while repeated:
        yield repeated


def against(folder: Path, said: Iterator[bytes], pause_s: float) -> dict[str, Any]:
    """Two requests to who says these pieces and then hangs up; each answer begins anew."""
    kept: list[bytes] = []

    def again() -> Iterator[bytes]:
        yield from kept
        for piece in said:
            kept.append(piece)
            yield piece

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*ENDED):
            await reader.readuntil(b"\r\n\r\n")
            for piece in again():
                writer.write(piece)
                await writer.drain()
                await pause(pause_s)
        writer.close()

    async def main() -> dict[str, Any]:
        path = f"{folder}/any.sock"
        async with await asyncio.start_unix_server(answer, path):
            sending = Sending(timeout_s=TIMEOUT_S)
            return await replay(plan(steady(2, 1.0), [f"any=unix:{path}"], sending=sending))

    return virtual_time.run(main())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b'{"data":[{"id":"m", "more":"' + b"y" * 50_000 + b'"}]}', None),
        (b'{"data":[]}', "names no model"),
        (b"[" * 50_000, "names no model"),
        (b"\xff", "names no model"),
    ],
)
def test_the_model_that_is_served(folder: Path, said: bytes, words: str | None) -> None:
    """Also where the answer comes in pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*ENDED):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said))
            for piece in (said[:20], said[20:]):
                await pause(0.1)
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def main() -> str:
        path = f"{folder}/models.sock"
        async with await asyncio.start_unix_server(answer, path):
            return await model_of(parse_targets([f"unix:{path}"])[0], {})

    if words is None:
        assert virtual_time.run(main()) == "m"
    else:
        with pytest.raises(KeepwarmError, match=words):
            virtual_time.run(main())
