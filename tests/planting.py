"""Breakers planted in conversations: the corpus of the lint's tests.

Each plant takes requests in order of time and gives them back with one habit that breaks prefixes,
and says in which field, and where in it, the habit shows.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from keepwarm.layout.findings import Breaker
from keepwarm.layout.requests import LoggedRequest
from keepwarm.testing.conversations import Conversation, interleaved

DATED_TEMPLATE = (
    "{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "Today is {{ strftime_now('%d %B %Y') }}.\n"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|end|>\n{% endfor %}<|go|>"
)
_WORDS = [f"{'bdfgklmnprst'[k % 12]}{'aeiou'[k % 5]}{'lmnrs'[k % 7 % 5]}{k}" for k in range(240)]


@dataclass(frozen=True, slots=True)
class Planted:
    """Requests with a habit. `pointer` is where it shows; `offsets` bound the place, by request."""

    breaker: Breaker
    requests: list[LoggedRequest]
    pointer: re.Pattern[str]
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict)
    template: str | None = None
    fewest: int = 5  # requests that it must be found in


Plant = Callable[[list[Conversation], random.Random], Planted]
_Change = Callable[[dict[str, Any], LoggedRequest], tuple[int, int] | None]


def _changed(
    breaker: Breaker, requests: Iterable[LoggedRequest], pointer: str, change: _Change, **more: Any
) -> Planted:
    """Each request with its own copy of the body, changed in place."""
    made, offsets = [], {}
    for request in requests:
        body = copy.deepcopy(dict(request.body))
        where = change(body, request)
        if where is not None:
            offsets[request.where] = where
        made.append(replace(request, body=body))
    return Planted(breaker, made, re.compile(pointer), offsets, **more)


def _in_front(body: dict[str, Any], text: str, behind: str) -> tuple[int, int]:
    """Puts text before the system prompt; answers where its varying part may begin and end."""
    message = body["messages"][0]
    message["content"] = text + str(message["content"])
    return text.index(behind) + len(behind), len(text)


def _prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words)).capitalize() + "."


def _tools(rng: random.Random, count: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{_WORDS[k]}",
                "description": _prose(rng, 30),
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string", "description": _prose(rng, 8)},
                        "limit": {"type": "integer", "default": 10},
                    },
                    "required": ["query"],
                },
            },
        }
        for k in range(count)
    ]


SYSTEM = r"/messages/0/content"


def pseudo_header(conversations: list[Conversation], rng: random.Random) -> Planted:
    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        line = f"x-anthropic-billing-header: cc_version=2.1.7; cch={rng.getrandbits(20):05x};\n"
        return _in_front(body, line, "cch=")

    return _changed(Breaker.PSEUDO_HEADER, interleaved(conversations), SYSTEM, change)


def date_at_front(conversations: list[Conversation], _: random.Random) -> Planted:
    clock = itertools.count(1_780_000_000, 7)

    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        now = datetime.fromtimestamp(next(clock), UTC)
        return _in_front(body, f"The current time is {now:%Y-%m-%d %H:%M:%S} UTC.\n\n", "time is ")

    return _changed(Breaker.DATE_AT_FRONT, interleaved(conversations), SYSTEM, change)


def date_in_words(conversations: list[Conversation], _: random.Random) -> Planted:
    clock = itertools.count(1_780_000_000, 4_021)

    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        now = datetime.fromtimestamp(next(clock), UTC)
        return _in_front(body, f"Today: {now:%A, %d %B %Y, %I:%M %p}\n", "Today: ")

    return _changed(Breaker.DATE_AT_FRONT, interleaved(conversations), SYSTEM, change)


def template_date(conversations: list[Conversation], _: random.Random) -> Planted:
    requests = interleaved(conversations, stagger_s=40_007.0, turn_s=20_011.0)
    return Planted(
        Breaker.TEMPLATE_DATE, requests, re.compile("^$"), template=DATED_TEMPLATE, fewest=3
    )


def dynamic_id(conversations: list[Conversation], rng: random.Random) -> Planted:
    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        made = uuid.UUID(int=rng.getrandbits(128), version=4)
        return _in_front(body, f"You serve request {made}.\n", "request ")

    return _changed(Breaker.DYNAMIC_ID, interleaved(conversations), SYSTEM, change)


def dynamic_id_short(conversations: list[Conversation], rng: random.Random) -> Planted:
    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        line = f"[trace_id={rng.getrandbits(40):010x}] Follow the policy.\n"
        return _in_front(body, line, "trace_id=")

    return _changed(Breaker.DYNAMIC_ID, interleaved(conversations), SYSTEM, change)


def tool_order(conversations: list[Conversation], rng: random.Random) -> Planted:
    tools = _tools(rng)

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        body["tools"] = rng.sample(tools, len(tools))

    return _changed(Breaker.TOOL_ORDER, interleaved(conversations), r"/tools/\d", change)


def key_order(conversations: list[Conversation], rng: random.Random) -> Planted:
    tools = _tools(rng)

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        body["tools"] = copy.deepcopy(tools)
        function = body["tools"][2]["function"]
        properties = list(function["parameters"]["properties"].items())
        rng.shuffle(properties)
        function["parameters"]["properties"] = dict(properties)
        parameters = list(function["parameters"].items())
        rng.shuffle(parameters)
        function["parameters"] = dict(parameters)

    pointer = r"/tools/2/function/parameters(/properties(/(query|limit))?)?"
    return _changed(Breaker.KEY_ORDER, interleaved(conversations), pointer, change)


def key_order_embedded(conversations: list[Conversation], rng: random.Random) -> Planted:
    """JSON within the system prompt, written anew with each request."""
    facts = {f"{_WORDS[k]}": rng.randint(1, 99) + 0.0 for k in range(12)}

    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        shuffled = dict(rng.sample(list(facts.items()), len(facts)))
        text = json.dumps({"facts": shuffled}, indent=rng.choice((None, 1, 2)))
        return _in_front(body, f"Settings: {text}\n", "Settings: {")

    return _changed(Breaker.KEY_ORDER, interleaved(conversations), SYSTEM, change)


def whitespace(conversations: list[Conversation], rng: random.Random) -> Planted:
    """Line ends and a Unicode form, each request's its own."""

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        form: Literal["NFC", "NFD"] = rng.choice(("NFC", "NFD"))
        text = "Résumé der Regeln für Gäste.  \n" + str(body["messages"][0]["content"])
        text = unicodedata.normalize(form, text)
        body["messages"][0]["content"] = text.replace("\n", rng.choice(("\n", "\r\n", " \n")))

    return _changed(Breaker.WHITESPACE, interleaved(conversations), SYSTEM, change)


def reasoning_stripped(conversations: list[Conversation], rng: random.Random) -> Planted:
    """Only the latest answer's reasoning is sent back."""
    thoughts: dict[tuple[str | None, int], str] = {}

    def change(body: dict[str, Any], request: LoggedRequest) -> None:
        answers = [k for k, m in enumerate(body["messages"]) if m["role"] == "assistant"]
        for place in answers[-1:]:
            key = (request.session, place)
            body["messages"][place]["reasoning_content"] = thoughts.setdefault(key, _prose(rng, 40))

    pointer = r"/messages/\d+/reasoning_content"
    return _changed(Breaker.REASONING_STRIPPED, interleaved(conversations), pointer, change)


def think_tags_stripped(conversations: list[Conversation], rng: random.Random) -> Planted:
    """The same with the reasoning in the text, and an empty pair of tags left behind."""
    thoughts: dict[tuple[str | None, int], str] = {}

    def change(body: dict[str, Any], request: LoggedRequest) -> None:
        answers = [k for k, m in enumerate(body["messages"]) if m["role"] == "assistant"]
        for place in answers:
            key = (request.session, place)
            thought = thoughts.setdefault(key, _prose(rng, 40)) if place == answers[-1] else ""
            message = body["messages"][place]
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content'] or ''}"

    pointer = r"/messages/\d+/content"
    return _changed(Breaker.REASONING_STRIPPED, interleaved(conversations), pointer, change)


def cache_markers(conversations: list[Conversation], _: random.Random) -> Planted:
    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        for message in body["messages"]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
        for message in [m for m in body["messages"] if m["role"] in ("user", "tool")][-2:]:
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}

    pointer = r"/messages/\d+/content/0/cache_control"
    return _changed(Breaker.CACHE_MARKERS, interleaved(conversations), pointer, change)


def tool_set(conversations: list[Conversation], rng: random.Random) -> Planted:
    tools = _tools(rng, 8)

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        absent = rng.sample(range(8), rng.randint(1, 3))
        body["tools"] = [tool for k, tool in enumerate(tools) if k not in absent]

    return _changed(Breaker.TOOL_SET, interleaved(conversations), r"/tools/\d", change)


def user_in_system(conversations: list[Conversation], rng: random.Random) -> Planted:
    people: dict[str | None, str] = {}

    def change(body: dict[str, Any], request: LoggedRequest) -> tuple[int, int]:
        name = people.setdefault(request.session, _prose(rng, 2).strip("."))
        line = f"You talk to {name}, who lives in {name.split()[1]} and likes it there.\n"
        return _in_front(body, line, "talk to ")

    return _changed(Breaker.USER_IN_SYSTEM, interleaved(conversations), SYSTEM, change, fewest=1)


def few_shot(conversations: list[Conversation], rng: random.Random) -> Planted:
    shots = [f"Input: {_prose(rng, 20)}\nOutput: {_prose(rng, 12)}" for _ in range(6)]

    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        chosen = rng.sample(shots, len(shots))
        lines = [f"Example {k}:\n{shot}\n\n" for k, shot in enumerate(chosen, 1)]
        return _in_front(body, "Learn from these.\n\n" + "".join(lines), "these.\n\n")

    return _changed(Breaker.FEW_SHOT, interleaved(conversations), SYSTEM, change)


def few_shot_turns(conversations: list[Conversation], rng: random.Random) -> Planted:
    """Examples as turns, drawn once for each session."""
    pairs = [(_prose(rng, 30), _prose(rng, 30)) for _ in range(5)]
    drawn: dict[str | None, list[tuple[str, str]]] = {}

    def change(body: dict[str, Any], request: LoggedRequest) -> None:
        chosen = drawn.setdefault(request.session, rng.sample(pairs, len(pairs)))
        turns = [
            {"role": role, "content": text}
            for pair in chosen
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        body["messages"][1:1] = turns

    pointer = r"/messages/\d+/content"
    return _changed(Breaker.FEW_SHOT, interleaved(conversations), pointer, change, fewest=1)


def chunk_order(conversations: list[Conversation], rng: random.Random) -> Planted:
    passages: dict[str | None, list[str]] = {}

    def change(body: dict[str, Any], request: LoggedRequest) -> tuple[int, int]:
        own = passages.setdefault(request.session, [_prose(rng, 40) for _ in range(6)])
        found = rng.sample(own, len(own))
        text = "".join(f"[{k}] {passage}\n\n" for k, passage in enumerate(found, 1))
        message = next(m for m in body["messages"] if m["role"] == "user")
        lead = "Use these passages.\n\n"
        message["content"] = lead + text + str(message["content"])
        return len(lead), len(lead + text)

    pointer = r"/messages/1/content"
    return _changed(Breaker.CHUNK_ORDER, interleaved(conversations), pointer, change)


def media(conversations: list[Conversation], rng: random.Random) -> Planted:
    """A picture by an address that is signed anew with each request."""

    def change(body: dict[str, Any], request: LoggedRequest) -> None:
        url = f"https://files.example/{request.session}.png?sig={rng.getrandbits(64):x}"
        message = next(m for m in body["messages"] if m["role"] == "user")
        picture = {"type": "image_url", "image_url": {"url": url}}
        message["content"] = [picture, {"type": "text", "text": message["content"]}]

    pointer = r"/messages/1/content/0"
    return _changed(Breaker.MEDIA, interleaved(conversations), pointer, change)


def media_bytes(conversations: list[Conversation], rng: random.Random) -> Planted:
    """A picture that is encoded anew with each request."""

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        url = f"data:image/jpeg;base64,{rng.getrandbits(512):x}"
        message = next(m for m in body["messages"] if m["role"] == "user")
        picture = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        message["content"] = [{"type": "text", "text": message["content"]}, picture]

    pointer = r"/messages/1/content/1"
    return _changed(Breaker.MEDIA, interleaved(conversations), pointer, change)


def cache_salt(conversations: list[Conversation], rng: random.Random) -> Planted:
    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        body["cache_salt"] = f"{rng.getrandbits(128):032x}"

    return _changed(Breaker.CACHE_SALT, interleaved(conversations), r"/cache_salt", change)


def adapter(conversations: list[Conversation], rng: random.Random) -> Planted:
    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        body["lora_path"] = f"adapter-{rng.randint(1, 1000)}"

    return _changed(Breaker.CACHE_SALT, interleaved(conversations), r"/lora_path", change)


def block_straddle(conversations: list[Conversation], _: random.Random) -> Planted:
    """Many short first requests under a system prompt of not quite two blocks."""
    system = "You are a careful assistant. Answer in one short sentence and never guess, please."

    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        body["messages"] = body["messages"][:2]
        body["messages"][0]["content"] = system
        body.pop("tools", None)
        return len(system), len(system)

    # A session whose first words were already said is a repetition, not another user.
    firsts = {str(c.messages[1]["content"]): c for c in conversations if len(c.messages) > 2}
    requests = [each for each in interleaved(firsts.values()) if each.where.endswith(":1")]
    return _changed(Breaker.BLOCK_STRADDLE, requests, SYSTEM, change, fewest=1)


def sliding_window(conversations: list[Conversation], _: random.Random) -> Planted:
    """Only the last eight messages are sent."""

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        body["messages"][1:] = body["messages"][1:][-8:]

    pointer = r"/messages/1/.+"
    return _changed(Breaker.HISTORY_REWRITTEN, interleaved(conversations), pointer, change)


def results_cleared(conversations: list[Conversation], _: random.Random) -> Planted:
    """What tools returned is cleared two answers later."""

    def change(body: dict[str, Any], _: LoggedRequest) -> None:
        answers = [k for k, m in enumerate(body["messages"]) if m["role"] == "assistant"]
        for place, message in enumerate(body["messages"][2:], 2):
            if message["role"] in ("tool", "user") and place < answers[-2:][0]:
                message["content"] = "[cleared]"

    def only_long(body: dict[str, Any], request: LoggedRequest) -> None:
        if sum(m["role"] == "assistant" for m in body["messages"]) >= 2:
            change(body, request)

    pointer = r"/messages/\d+/content"
    return _changed(Breaker.HISTORY_REWRITTEN, interleaved(conversations), pointer, only_long)


def placeholders(conversations: list[Conversation], rng: random.Random) -> Planted:
    """Mail addresses of the first message hidden behind random placeholders."""

    def change(body: dict[str, Any], _: LoggedRequest) -> tuple[int, int]:
        message = next(m for m in body["messages"] if m["role"] == "user")
        lead = "From <EMAIL_"
        front = f"{lead}{rng.getrandbits(32):08x}>: "
        message["content"] = front + str(message["content"])
        return len(lead), len(front)

    pointer = r"/messages/1/content"
    return _changed(Breaker.HISTORY_REWRITTEN, interleaved(conversations), pointer, change)


def model_switch(conversations: list[Conversation], _: random.Random) -> Planted:
    turns: dict[str | None, int] = {}

    def change(body: dict[str, Any], request: LoggedRequest) -> None:
        turn = turns[request.session] = turns.get(request.session, 0) + 1
        body["model"] = "large" if turn % 3 else "small"

    return _changed(Breaker.MODEL_SWITCH, interleaved(conversations), r"/model", change)


def cold_fan_out(conversations: list[Conversation], rng: random.Random) -> Planted:
    """Each first request is sent four times at once, with a long text of the session's own."""
    requests: list[LoggedRequest] = []
    for request in interleaved(conversations[:12], stagger_s=120.0):
        if request.where.endswith(":1"):
            document = _prose(rng, 300)
            for branch in range(4):
                body = copy.deepcopy(dict(request.body))
                body["messages"][0]["content"] = f"Report:\n{document}\n"
                body["messages"][1]["content"] = f"{_prose(rng, 9)} Branch {branch}."
                time_s = (request.time_s or 0.0) + branch * 0.004
                where = f"{request.where}.{branch}"
                session = f"{request.session}.{branch}"
                requests.append(
                    replace(request, body=body, time_s=time_s, where=where, session=session)
                )
    return Planted(Breaker.COLD_FAN_OUT, requests, re.compile(SYSTEM + "|/tools/0"))


PLANTS: tuple[Plant, ...] = (
    *(pseudo_header, date_at_front, date_in_words, template_date, dynamic_id, dynamic_id_short),
    *(tool_order, key_order, key_order_embedded, whitespace, reasoning_stripped),
    *(think_tags_stripped, cache_markers, tool_set, user_in_system, few_shot, few_shot_turns),
    *(chunk_order, media, media_bytes, cache_salt, adapter, block_straddle, sliding_window),
    *(results_cleared, placeholders, model_switch, cold_fan_out),
)
