"""Logs may hold anything: no body makes the lint raise, hang or grow."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from keepwarm.layout.breakers.dates import DATE
from keepwarm.layout.lint import Lint, Settings
from keepwarm.layout.rendering import RenderSettings, render
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.layout.tokens import ApproximateTokens, tokenise

KEYS = (
    *("messages", "input", "prompt", "tools", "system", "instructions", "role", "content", "type"),
    *("text", "tool_calls", "function", "name", "arguments", "cache_control", "image_url", "url"),
    *("detail", "reasoning_content", "thinking", "model", "output", "summary", "cache_salt"),
    *("extra_body", "lora_path", "functions", "function_call", "source", "input_audio", "file"),
)
VALUES: tuple[Any, ...] = (
    *("user", "assistant", "system", "tool", "text", "image_url", "tool_use", "tool_result"),
    *("thinking", "reasoning", "function_call", "<|end|>", "\ud83d", "\x00", "e\u0301", "", "{[{"),
    *(None, True, 0, -1, 1.5, 10**30, float("nan"), [], {}),
)


def anything(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth <= 0 or kind < 0.3:
        return rng.choice(VALUES)
    if kind < 0.6:
        return [anything(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return {rng.choice(KEYS): anything(rng, depth - 1) for _ in range(rng.randint(0, 6))}


def a_body(rng: random.Random) -> dict[str, Any]:
    body = {rng.choice(KEYS): anything(rng, 5) for _ in range(5)}
    listed = [
        {"role": rng.choice(VALUES), "content": anything(rng, 3), "tool_calls": anything(rng, 3)}
        for _ in range(rng.randint(0, 5))
    ]
    body[rng.choice(("messages", "input", "tools"))] = listed
    return body


@pytest.mark.parametrize("seed", range(40))
def test_no_body_raises(seed: int) -> None:
    rng = random.Random(seed)
    running = Lint()
    for number in range(60):
        family = rng.choice(list(Family))
        request = LoggedRequest(
            f"log:{number}",
            family,
            a_body(rng),
            rng.choice((None, -5.0, 1e12)),
            rng.choice((None, "s")),
            reply=rng.choice((None, {}, {"content": anything(rng, 2)})),
        )
        seen = running.add(request)
        assert seen is not None
        assert 0 <= seen.reused_tokens <= seen.tokens
        assert seen.lost_tokens >= 0
        rendered = render(request)
        _, offsets = tokenise(rendered, ApproximateTokens())
        assert (offsets[1:] >= offsets[:-1]).all()


def test_nesting_without_end_is_no_error() -> None:
    nested: Any = "x"
    for _ in range(3_000):
        nested = [nested]
    body = {"tools": [nested], "messages": [{"role": "user", "content": "[" * 5_000}]}
    other = {**body, "messages": [{"role": "user", "content": "[" * 4_000 + "{" * 900}]}
    running = Lint(Settings(rendering=RenderSettings()))
    for number, each in enumerate((body, other, body)):
        running.add(LoggedRequest(f"log:{number}", Family.OPENAI_CHAT, each, session="s"))
    assert running.report().requests == 3


HARD = ("1 " * 300, "May " * 200, "12:3" * 200, "2026-01-" * 100, "1," * 400, "Sat," * 200)


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_dates_are_looked_for_in_linear_time(text: str) -> None:
    began = time.process_time()
    list(DATE.finditer(text * 4))
    assert time.process_time() - began < 1.0


def test_a_megabyte_that_differs_everywhere_takes_seconds_at_most() -> None:
    rng = random.Random(9)
    lines = [f'{{"k": {rng.random()}, "d": "2026-05-04"}} {rng.random()}' for _ in range(20_000)]
    texts = [
        "\n".join(lines),
        "\r\n".join(lines),
        "\n".join(rng.sample(lines, len(lines))),
        "\n".join(line.replace("05-04", "06-05") for line in lines),
    ]
    running = Lint()
    began = time.process_time()
    for number, text in enumerate(texts):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "go"}]
        body = {"messages": messages}
        running.add(LoggedRequest(f"log:{number}", Family.OPENAI_CHAT, body, session="s"))
    assert time.process_time() - began < 20.0
    assert running.report().requests == 4
