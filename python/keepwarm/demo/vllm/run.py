"""The run: the same prompts cold, warm, restored on the other replica, after a restart, alone.

    each conversation │ its home (cold) │ its home again (same) │ the other one (other)
    one that grows    │ turn by turn to A, B, A …, each asked again where it was
    restart B         │ each conversation at B (after restart)
    kill -9 the node  │ unseen conversations of the same lengths, each asked again where it was

A prompt asked again where it was is served from that engine's own prefix cache: the reference for
its answer, token by token. One request at a time: what is measured is not a queue.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from keepwarm.demo.vllm.accounts import Accounts
from keepwarm.demo.vllm.fleet import REPLICAS, Fleet
from keepwarm.demo.vllm.plan import Plan, Sizes, make
from keepwarm.engines.asking import Completion

COUNTED_S_MAX = 10.0


class Kind(StrEnum):
    """Where a request finds its prompt."""

    COLD = "cold"
    SAME_REPLICA = "same_replica"
    OTHER_REPLICA = "other_replica"
    AFTER_RESTART = "after_restart"
    NODE_DOWN = "node_down"
    TURN = "turn"
    AGAIN = "again"


TOLD = (
    Kind.COLD,
    Kind.SAME_REPLICA,
    Kind.OTHER_REPLICA,
    Kind.AFTER_RESTART,
    Kind.NODE_DOWN,
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what, where, how long until its first token, and where its prompt came from."""

    kind: Kind
    name: str
    replica: str
    prompt_tokens: int
    completion: Completion
    accounts: Accounts


@dataclass(slots=True)
class Record:
    """Everything that was seen."""

    sizes: Sizes
    asked: list[Asked] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    restart_s: float = 0.0

    def of(self, *kinds: Kind) -> list[Asked]:
        """In the order in which they were asked."""
        return [each for each in self.asked if each.kind in kinds]


class Run:
    """One run; `go` may be called once."""

    def __init__(self, fleet: Fleet, sizes: Sizes, progress: Progress) -> None:
        self._fleet = fleet
        self._sizes = sizes
        self._progress = progress
        self._record = Record(sizes)
        self._counted: dict[str, Accounts] = {}
        self._model = ""
        self._ours = True
        self._total = 6 * sizes.conversations + 2 * sizes.turns

    def go(self) -> Record:
        """All of it. Raises EngineError when a replica fails."""
        begun, record = time.monotonic(), self._record
        record.about = self._fleet.about()
        plan = self._plan()
        for replica in REPLICAS:
            self._warm_up(replica, plan)
        self._known(plan)
        self._growing(plan)
        self._say("restarting replica B")
        restarted = time.monotonic()
        self._fleet.restart("B")
        record.restart_s = time.monotonic() - restarted
        self._warm_up("B", plan)
        for conversation in plan.known:
            self._ask(Kind.AFTER_RESTART, conversation.name, "B", conversation.tokens)
        self._say("kill -9 of the node")
        self._fleet.kill_node()
        for at, conversation in enumerate(plan.unseen):
            home = REPLICAS[at % 2]
            self._ask(Kind.NODE_DOWN, conversation.name, home, conversation.tokens)
            self._ask(Kind.AGAIN, conversation.name, home, conversation.tokens)
        load = os.getloadavg()
        record.machine = {"cores": os.cpu_count() or 1, "load_1m": load[0], "load_5m": load[1]}
        record.seconds = time.monotonic() - begun
        return record

    def _plan(self) -> Plan:
        client = self._fleet.client("A")
        models = client.models()
        self._model = str(models[0]["id"]) if models else ""
        return make(self._sizes, lambda text: client.tokenize(text, self._model))

    def _warm_up(self, replica: str, plan: Plan) -> None:
        """The first request of an engine pays for what it does once; it is not counted.

        It also shows whether the connector has figures of its own: they come a step later.
        """
        self._fleet.client(replica).complete(plan.warm_up, 2, self._model)
        self._counted[replica] = self._read(replica, len(plan.warm_up))
        if self._counted[replica].prompt == 0 and self._ours:
            self._ours = False
            self._counted[replica] = self._read(replica, len(plan.warm_up))

    def _known(self, plan: Plan) -> None:
        for at, conversation in enumerate(plan.known):
            home, other = REPLICAS[at % 2], REPLICAS[1 - at % 2]
            self._ask(Kind.COLD, conversation.name, home, conversation.tokens)
            self._ask(Kind.SAME_REPLICA, conversation.name, home, conversation.tokens)
            self._fleet.settle()
            self._ask(Kind.OTHER_REPLICA, conversation.name, other, conversation.tokens)

    def _growing(self, plan: Plan) -> None:
        prompt = plan.growing.tokens
        for turn in range(self._sizes.turns):
            home, name = REPLICAS[turn % 2], f"{plan.growing.name} turn {turn + 1}"
            answer = self._ask(Kind.TURN, name, home, prompt)
            self._ask(Kind.AGAIN, name, home, prompt)
            self._fleet.settle()
            if turn < len(plan.additions):
                prompt = (*prompt, *answer.completion.tokens, *plan.additions[turn])

    def _ask(self, kind: Kind, name: str, replica: str, prompt: tuple[int, ...]) -> Asked:
        before = self._counted[replica]
        client = self._fleet.client(replica)
        completion = client.complete(prompt, self._sizes.answer_tokens, self._model)
        counted = self._read(replica, before.prompt + len(prompt))
        self._counted[replica] = counted
        made = Asked(kind, name, replica, len(prompt), completion, counted.since(before))
        self._record.asked.append(made)
        self._say(_told(made))
        return made

    def _read(self, replica: str, wanted: int) -> Accounts:
        """The replica's counters once they hold all that was asked; they lag by a step."""
        until, pause = time.monotonic() + COUNTED_S_MAX, threading.Event()
        client = self._fleet.client(replica)
        while True:
            found = Accounts.read(client.figures(), self._ours)
            if found.prompt >= wanted or time.monotonic() > until:
                return found
            pause.wait(0.05)

    def _say(self, doing: str) -> None:
        self._progress(len(self._record.asked), self._total, doing)


def _told(asked: Asked) -> str:
    accounts = asked.accounts
    sources = {"restored": accounts.restored.total(), "own cache": accounts.device + accounts.host}
    warm = "".join(f", {tokens:,} {source}" for source, tokens in sources.items() if tokens)
    first_ms = asked.completion.first_token_s * 1e3
    return (
        f"{asked.kind.replace('_', ' ')}, {asked.name} at {asked.replica}: first token after "
        f"{first_ms:,.0f} ms; {asked.prompt_tokens:,} tokens{warm}"
    )


def run(fleet: Fleet, sizes: Sizes, progress: Progress) -> Record:
    """Asks everything of a fleet that is up."""
    return Run(fleet, sizes, progress).go()
