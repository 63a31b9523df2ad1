"""What applications do all day, and what is no breaker; and the other APIs' shapes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import planting
import pytest
from keepwarm.layout.findings import Breaker, Finding
from keepwarm.layout.lint import Lint, Settings
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.layout.tokens import LocalTokens
from keepwarm.testing import conversations

_Message = dict[str, Any]
WORDS = [f"{a}{b}{c}{d}" for a in "bdfgklmn" for b in "aeiou" for c in "lmnrst" for d in "aeiou"]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count)).capitalize() + "."


def chat(number: int, session: str, messages: list[_Message], **body: Any) -> LoggedRequest:
    whole = {"model": "m", "messages": messages, **body}
    return LoggedRequest(f"log:{number}", Family.OPENAI_CHAT, whole, number * 30.0, session)


def said(role: str, text: str) -> _Message:
    return {"role": role, "content": text}


def retrieval(rng: random.Random) -> Iterator[LoggedRequest]:
    """One question each, with what a search of its own found among 200 passages."""
    passages = [words(rng, 50) for _ in range(200)]
    system = said("system", words(rng, 300))
    for number in range(80):
        found = "\n\n".join(rng.sample(passages, 6))
        question = said("user", f"Context:\n\n{found}\n\nQuestion: {words(rng, 15)}")
        yield chat(number, f"s{number}", [system, question])


def edits_and_branches(rng: random.Random) -> Iterator[LoggedRequest]:
    """Users who ask again in other words, and go back to an earlier turn."""
    system = said("system", words(rng, 200))
    number = 0
    for session in range(10):
        history = [system]
        for _ in range(6):
            history = [*history, said("user", words(rng, 60))]
            yield chat(number := number + 1, f"s{session}", history)
            asked_again = [*history[:-1], said("user", words(rng, 60))]
            yield chat(number := number + 1, f"s{session}", asked_again)
            history = [*asked_again, said("assistant", words(rng, 80))]
        yield chat(number := number + 1, f"s{session}", [*history[:5], said("user", words(rng, 9))])


def volatile_last_turn(rng: random.Random) -> Iterator[LoggedRequest]:
    """Date, id and fresh facts in the last user turn, where they belong."""
    system = said("system", words(rng, 200))
    for session in range(8):
        history = [system]
        for turn in range(6):
            now = f"2026-05-{session + 1:02} 1{turn}:20:33"
            fresh = f"{words(rng, 30)}\n\nTime: {now}. Request {rng.getrandbits(64):016x}."
            yield chat(session * 10 + turn, f"s{session}", [*history, said("user", fresh)])
            history += [said("user", fresh), said("assistant", words(rng, 40))]


def roles_of_one_tenant(rng: random.Random) -> Iterator[LoggedRequest]:
    """Three agents with texts and tools of their own, and small side calls."""
    agents = [(words(rng, 250), planting._tools(rng, k + 3)[k:]) for k in range(3)]
    for number in range(90):
        system, tools = agents[number % 3]
        messages = [said("system", system), said("user", words(rng, 40))]
        yield chat(number, f"s{number}", messages, tools=tools)
        title = [said("system", "Give a title."), said("user", words(rng, 40))]
        yield chat(number, f"s{number}", title, model="small")


def templates_filled_in(rng: random.Random) -> Iterator[LoggedRequest]:
    """One user text for all, with a different document in the middle of it."""
    system = said("system", words(rng, 100))
    before, after = words(rng, 80), words(rng, 120)
    for number in range(60):
        text = f"{before}\n\n<document>\n{words(rng, 200)}\n</document>\n\n{after}"
        yield chat(number, f"s{number}", [system, said("user", text)])


def agents_with_results(rng: random.Random) -> Iterator[LoggedRequest]:
    """Tool calls whose results hold dates and ids, in parallel sessions that do the same."""
    system = said("system", words(rng, 200))
    task = said("user", words(rng, 60))
    for session in range(10):
        history = [system, task]
        for turn in range(5):
            yield chat(session * 10 + turn, f"s{session}", list(history))
            arguments = json.dumps({"order": f"A{rng.randint(1000, 9999)}", "page": turn})
            called = {"name": "look_up", "arguments": arguments}
            call = {"id": f"c{rng.getrandbits(40):x}", "type": "function", "function": called}
            history.append({"role": "assistant", "content": None, "tool_calls": [call]})
            result = {"at": f"2026-05-04T10:{rng.randint(10, 59)}:00Z", "text": words(rng, 60)}
            result["trace"] = f"{rng.getrandbits(64):016x}"
            history.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})


ORDINARY = (
    *(retrieval, edits_and_branches, volatile_last_turn, roles_of_one_tenant),
    *(templates_filled_in, agents_with_results),
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("traffic", ORDINARY, ids=lambda each: each.__name__)
@pytest.mark.parametrize("is_named", [True, False], ids=["sessions", "no-sessions"])
def test_ordinary_traffic_raises_no_finding(
    traffic: Callable[[random.Random], Iterator[LoggedRequest]], is_named: bool, seed: int
) -> None:
    requests = list(traffic(random.Random(seed)))
    found = observed(requests if is_named else [replace(each, session=None) for each in requests])
    assert len({each.place.where for each in found}) <= 0.02 * len(requests), found


def observed(requests: list[LoggedRequest], settings: Settings | None = None) -> list[Finding]:
    running = Lint(settings or Settings())
    found: list[Finding] = []
    for request in requests:
        seen = running.add(request)
        assert seen is not None
        found += seen.findings
    return found


def as_anthropic(request: LoggedRequest) -> LoggedRequest:
    """The same request as Anthropic's API takes it."""
    body = dict(request.body)
    system = body["messages"][0]["content"]
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in body.get("tools", []))
    ]
    messages = [_anthropic(each) for each in body["messages"][1:]]
    whole = {"model": "claude-x", "system": system, "tools": tools, "messages": messages}
    return replace(request, family=Family.ANTHROPIC, body=whole, reply=None)


def _anthropic(message: _Message) -> _Message:
    if message["role"] == "tool":
        part = {"type": "tool_result", "tool_use_id": "x", "content": message["content"]}
        return {"role": "user", "content": [part]}
    parts: list[_Message] = []
    if message.get("content"):
        parts.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        value = json.loads(call["function"]["arguments"])
        parts.append({"type": "tool_use", "name": call["function"]["name"], "input": value})
    return {"role": message["role"], "content": parts}


def as_responses(request: LoggedRequest) -> LoggedRequest:
    """The same request as the Responses API takes it."""
    body = dict(request.body)
    items: list[_Message] = []
    for message in body["messages"][1:]:
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "output": message["content"]})
            continue
        if message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls") or ():
            items.append({"type": "function_call", **call["function"]})
    whole = {"model": "m", "instructions": body["messages"][0]["content"], "input": items}
    whole["tools"] = body.get("tools", [])
    return replace(request, family=Family.OPENAI_RESPONSES, body=whole, reply=None)


def as_completion(request: LoggedRequest) -> LoggedRequest:
    """The same words as one prompt for a model without a chat template."""
    texts = [f"{m['role']}: {m.get('content') or ''}\n" for m in request.body["messages"]]
    body = {"model": "m", "prompt": "".join(texts) + "assistant:"}
    return replace(request, family=Family.OPENAI_COMPLETIONS, body=body, reply=None)


@pytest.mark.parametrize(
    "plant", [planting.date_at_front, planting.dynamic_id, planting.whitespace, planting.few_shot]
)
@pytest.mark.parametrize("is_named", [True, False], ids=["sessions", "no-sessions"])
def test_breakers_are_found_in_plain_prompts(plant: planting.Plant, is_named: bool) -> None:
    planted = plant(conversations.generated(10, 78), random.Random(2))
    requests = [as_completion(each) for each in planted.requests]
    if not is_named:
        requests = [replace(each, session=None) for each in requests]
    found = observed(requests)
    right = {each.place.where for each in found if each.breaker is planted.breaker}
    assert len(right) >= planted.fewest
    assert {each.place.pointer for each in found} == {"/prompt"}
    wrong = {each.place.where for each in found} - right
    assert len(wrong) <= 0.02 * len(requests)
    clean = [as_completion(each) for each in conversations.interleaved(conversations.public())]
    assert (
        observed(clean[:300] if is_named else [replace(e, session=None) for e in clean[:300]]) == []
    )


@pytest.mark.parametrize(
    ("convert", "system"),
    [(as_anthropic, "/system"), (as_responses, "/instructions")],
    ids=["anthropic", "responses"],
)
@pytest.mark.parametrize(
    ("plant", "pointer"),
    [
        (planting.date_at_front, None),
        (planting.dynamic_id, None),
        (planting.pseudo_header, None),
        (planting.whitespace, None),
        (planting.few_shot, None),
        (planting.tool_order, "/tools/"),
        (planting.tool_set, "/tools/"),
        (planting.key_order, "/tools/2/"),
        (planting.results_cleared, "/"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_breakers_are_found_in_the_other_apis_shapes(
    convert: Callable[[LoggedRequest], LoggedRequest],
    system: str,
    plant: planting.Plant,
    pointer: str | None,
) -> None:
    planted = plant(conversations.generated(10, 77), random.Random(1))
    found = observed([convert(each) for each in planted.requests])
    right = [each for each in found if each.breaker is planted.breaker]
    assert len(right) >= planted.fewest
    assert all(each.place.pointer.startswith(pointer or system) for each in right)
    wrong = {each.place.where for each in found} - {each.place.where for each in right}
    assert len(wrong) <= 0.02 * len(planted.requests)


def test_with_a_real_tokenizer_places_are_its_tokens(tmp_path: Path) -> None:
    known = ["[UNK]", *WORDS, *(f"0{k}" for k in range(9))]
    vocab = {word: k for k, word in enumerate(known)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    whole: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": model}
    whole["pre_tokenizer"] = {"type": "Whitespace"}
    whole |= dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    rng = random.Random(6)
    text = words(rng, 200)
    requests = [
        chat(k, f"s{k}", [said("system", f"{words(rng, 1)} {text}"), said("user", words(rng, 8))])
        for k in range(6)
    ]
    dated = [
        chat(k, f"s{k}", [said("system", f"alpha beta 2026-05-0{k + 1} {text}")]) for k in range(6)
    ]
    found = observed(dated, Settings(tokens=LocalTokens(tmp_path)))
    assert {each.breaker for each in found} == {Breaker.DATE_AT_FRONT}
    # Before the day: "<|", "system", "|>", "alpha", "beta", "2026", "-", "05", "-".
    assert {each.place.token for each in found} == {9}
    named = observed(requests, Settings(tokens=LocalTokens(tmp_path)))
    assert {each.breaker for each in named} <= {Breaker.USER_IN_SYSTEM}
    assert {each.place.token for each in named} == {3}
