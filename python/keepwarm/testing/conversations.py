"""Whole conversations with their text, as the requests that an application would have sent.

    read_tau_bench, read_swe_agent    public files, where they are (`traces.find`)
    generated                         made up from a seed, for tests that run without these
    requests_of                       one request per answer of the assistant
    interleaved                       many conversations at once, in order of time

Text is held in memory only, as everywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.testing.traces import TraceError, traces_root

TAU_BENCH_FILE = Path("tau-bench/airline-120.json")
SWE_AGENT_FOLDER = Path("swe-agent")
_KEPT = ("role", "content", "name", "tool_calls", "tool_call_id")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in OpenAI's chat form, from the system's to the assistant's last."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)

    def answers(self) -> list[int]:
        """Where the assistant's messages are; before each of them a request was sent."""
        return [
            at
            for at, message in enumerate(self.messages)
            if at and message.get("role") == "assistant"
        ]


def read_tau_bench(path: Path) -> list[Conversation]:
    """Reads a results file of tau-bench: a list of tasks, each with its `traj`."""
    return [
        Conversation(f"{path.stem}-{place}", [_message(each) for each in task["traj"]])
        for place, task in enumerate(_document(path, list))
        if isinstance(task, dict) and isinstance(task.get("traj"), list)
    ]


def read_swe_agent(path: Path) -> Conversation:
    """Reads a trajectory of SWE-agent: the `history` of its first agent."""
    history = [each for each in _document(path, dict).get("history", []) if "role" in each]
    if not history:
        raise TraceError(f"{path}: has no history")
    agent = history[0].get("agent")
    return Conversation(
        path.stem, [_message(each) for each in history if each.get("agent") == agent]
    )


def public() -> list[Conversation]:
    """All public conversations that are here; none where `traces.traces_root` is None."""
    root = traces_root()
    if root is None:
        return []
    tau = root / TAU_BENCH_FILE
    found = read_tau_bench(tau) if tau.is_file() else []
    trajectories = sorted((root / SWE_AGENT_FOLDER).glob("*.traj"))
    return found + [read_swe_agent(path) for path in trajectories]


def requests_of(
    conversation: Conversation,
    *,
    start_s: float = 0.0,
    turn_s: float = 10.0,
    model: str = "example-model",
) -> Iterator[LoggedRequest]:
    """A request per answer: all messages before it, and the answer as the reply.

    The first is sent at `start_s`, each following one `turn_s` later.
    """
    for turn, at in enumerate(conversation.answers()):
        body: dict[str, Any] = {"model": model, "messages": conversation.messages[:at]}
        if conversation.tools:
            body["tools"] = conversation.tools
        yield LoggedRequest(
            where=f"{conversation.name}:{turn + 1}",
            family=Family.OPENAI_CHAT,
            body=body,
            time_s=start_s + turn * turn_s,
            session=conversation.name,
            reply=conversation.messages[at],
        )


def interleaved(
    conversations: Iterable[Conversation], *, stagger_s: float = 7.0, turn_s: float = 10.0
) -> list[LoggedRequest]:
    """Requests of all, in order of time; one conversation begins every `stagger_s`."""
    requests = [
        request
        for place, conversation in enumerate(conversations)
        for request in requests_of(conversation, start_s=place * stagger_s, turn_s=turn_s)
    ]
    return sorted(requests, key=lambda request: request.time_s or 0.0)


def json_line(request: LoggedRequest) -> str:
    """A request as a line of a log that a proxy might write."""
    line: dict[str, Any] = {
        "timestamp": request.time_s,
        "session_id": request.session,
        "request": request.body,
    }
    if request.reply is not None:
        line["response"] = {"choices": [{"index": 0, "message": request.reply}]}
    return json.dumps(line, ensure_ascii=False)


def generated(count: int, seed: int, turns: int = 6) -> list[Conversation]:
    """Conversations of tool-using agents under one system prompt, made of random words."""
    rng = random.Random(seed)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(800)
    ]

    def text(length: int) -> str:
        return " ".join(rng.choices(words, k=length)).capitalize() + "."

    system = "\n".join(text(rng.randint(20, 60)) for _ in range(20))
    tools = [_tool(name, text(12)) for name in ("find_order", "read_page", "send_mail")]
    made = []
    for place in range(count):
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": text(rng.randint(10, 60))},
        ]
        for turn in range(turns):
            messages += _turn(rng, f"call_{place}_{turn}", text)
        made.append(Conversation(f"generated-{seed}-{place}", messages, tools))
    return made


def _turn(rng: random.Random, call: str, text: Any) -> Sequence[dict[str, Any]]:
    """An answer of the assistant, and what it is told next."""
    if rng.random() < 0.5:
        return (
            {"role": "assistant", "content": text(rng.randint(5, 40))},
            {"role": "user", "content": text(rng.randint(5, 40))},
        )
    arguments = json.dumps({"query": text(3), "limit": rng.randint(1, 9)})
    function = {
        "name": rng.choice(("find_order", "read_page", "send_mail")),
        "arguments": arguments,
    }
    return (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call, "content": text(rng.randint(30, 200))},
    )


def _tool(name: str, description: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _message(logged: dict[str, Any]) -> dict[str, Any]:
    """A message without what its file adds; SWE-agent lists the one call that a result is of."""
    message = {key: logged[key] for key in _KEPT if logged.get(key) is not None}
    message.setdefault("content", None)
    calls = logged.get("tool_call_ids")
    if calls and logged.get("role") == "tool":
        message["tool_call_id"] = calls[0]
    return message


def _document(path: Path, kind: type) -> Any:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: is not read: {error}") from error
    if not isinstance(document, kind):
        raise TraceError(f"{path}: is no {kind.__name__} of conversations")
    return document
