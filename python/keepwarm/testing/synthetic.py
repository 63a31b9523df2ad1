"""Generated traces: seeded, and honest about being synthetic.

They imitate the shape of real traffic where that matters to a memory of prefixes: what is shared
between whom, how contexts grow, when they start over. Their rates are not evidence about anybody's
fleet; for that, replay recorded traffic.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from keepwarm.testing.traces import Request, Trace


@dataclass(slots=True)
class _Ids:
    """Hands out block ids that nobody had before."""

    following: int = 1

    def fresh(self, count: int) -> array[int]:
        first = self.following
        self.following += count
        return array("Q", range(first, first + count))


@dataclass(slots=True)
class _Context:
    """A growing prompt: whole blocks, then a tail of tokens that has no block yet."""

    ids: _Ids
    block_tokens: int
    blocks: array[int]
    tokens: int = field(default=0)

    def __post_init__(self) -> None:
        self.tokens = len(self.blocks) * self.block_tokens

    def grow(self, tokens: int) -> None:
        self.tokens += tokens
        missing = self.tokens // self.block_tokens - len(self.blocks)
        if missing > 0:
            self.blocks.extend(self.ids.fresh(missing))

    def request(self, session: int, arrival_s: float, output_tokens: int) -> Request:
        return Request(
            session, arrival_s, self.tokens, output_tokens, self.block_tokens, self.blocks[:]
        )


@dataclass(frozen=True, slots=True)
class AgentShape:
    """Token counts of generated coding-agent sessions; defaults follow published agent traces."""

    tools_tokens: int = 12_000
    system_tokens: int = 3_000
    task_tokens: tuple[int, int] = (500, 6_000)
    tool_result_tokens: tuple[int, int] = (200, 2_500)
    output_tokens: tuple[int, int] = (60, 600)
    context_tokens_max: int = 90_000
    sub_agent_share: float = 0.04
    sub_agent_turns: tuple[int, int] = (4, 12)
    sub_agent_prefix_tokens: int = 8_700
    think_s: tuple[float, float] = (1.0, 20.0)


def _between(rng: random.Random, limits: tuple[int, int]) -> int:
    # Long-tailed: most values near the lower end, as tool results are.
    low, high = limits
    return low + int((high - low) * rng.random() ** 2)


@dataclass(slots=True)
class _Agents:
    """State of one generation of coding-agent sessions."""

    rng: random.Random
    ids: _Ids
    shape: AgentShape
    block_tokens: int
    system: array[int]
    sub_agent_system: array[int]
    requests: list[Request] = field(default_factory=list)

    def session(self, session: int, start_s: float, turns: int) -> None:
        """One session: context grows by tool results and answers, compacted when it is full."""
        context = _Context(self.ids, self.block_tokens, self.system[:])
        context.grow(_between(self.rng, self.shape.task_tokens))
        at_s, made = start_s, 0
        while made < turns:
            at_s, used = self._turn(context, session, at_s)
            made += used
            if context.tokens > self.shape.context_tokens_max:
                context = self._compacted()
            if self.rng.random() < self.shape.sub_agent_share and made < turns:
                at_s, used = self._sub_agent(session, at_s, turns - made)
                made += used

    def _turn(self, context: _Context, session: int, at_s: float) -> tuple[float, int]:
        output = _between(self.rng, self.shape.output_tokens)
        self.requests.append(context.request(session, at_s, output))
        context.grow(output + _between(self.rng, self.shape.tool_result_tokens))
        return at_s + self.rng.uniform(*self.shape.think_s), 1

    def _compacted(self) -> _Context:
        # A summary replaces the conversation: only the system prefix stays the same.
        context = _Context(self.ids, self.block_tokens, self.system[:])
        context.grow(_between(self.rng, (2_000, 8_000)))
        return context

    def _sub_agent(self, session: int, at_s: float, room: int) -> tuple[float, int]:
        context = _Context(self.ids, self.block_tokens, self.sub_agent_system[:])
        context.grow(_between(self.rng, self.shape.task_tokens))
        turns = min(room, self.rng.randint(*self.shape.sub_agent_turns))
        for _ in range(turns):
            at_s, _ = self._turn(context, session, at_s)
        return at_s, turns


def coding_agents(
    sessions: int,
    turns: int,
    seed: int,
    *,
    block_tokens: int = 64,
    stagger_s: float = 30.0,
    shape: AgentShape | None = None,
) -> Trace:
    """Coding-agent sessions that share tools and system prompt, with sub-agents and compaction."""
    shape = shape or AgentShape()
    ids = _Ids()
    shared = (shape.tools_tokens + shape.system_tokens) // block_tokens
    agents = _Agents(
        rng=random.Random(seed),
        ids=ids,
        shape=shape,
        block_tokens=block_tokens,
        system=ids.fresh(shared),
        sub_agent_system=ids.fresh(shape.sub_agent_prefix_tokens // block_tokens),
    )
    for session in range(sessions):
        agents.session(session, session * stagger_s, turns)
    return _trace("coding agents", f"keepwarm, seed {seed}", block_tokens, agents.requests)


def chat(
    sessions: int,
    seed: int,
    *,
    block_tokens: int = 64,
    system_tokens: int = 800,
    turns_max: int = 8,
    stagger_s: float = 2.0,
) -> Trace:
    """Chats: a short shared system prompt, few turns, long pauses; many sessions never return."""
    rng, ids = random.Random(seed), _Ids()
    system = ids.fresh(system_tokens // block_tokens)
    requests = []
    for session in range(sessions):
        context = _Context(ids, block_tokens, system[:])
        at_s = session * stagger_s
        for _ in range(min(turns_max, 1 + int(rng.expovariate(0.7)))):
            context.grow(_between(rng, (20, 1_500)))
            output = _between(rng, (50, 800))
            requests.append(context.request(session, at_s, output))
            context.grow(output)
            at_s += rng.expovariate(1 / 90)
    return _trace("chat", f"keepwarm, seed {seed}", block_tokens, requests)


def rag(
    requests: int,
    seed: int,
    *,
    block_tokens: int = 64,
    documents: int = 200,
    document_tokens: int = 2_000,
    system_tokens: int = 400,
    every_s: float = 0.5,
) -> Trace:
    """Retrieval: a shared system prompt, then popular documents in changing order, then a question.

    Only the system prompt and the first document repeat as a prefix: after a different first
    document the same second document is a different block.
    """
    rng, ids = random.Random(seed), _Ids()
    system = ids.fresh(system_tokens // block_tokens)
    chains: dict[tuple[int, ...], array[int]] = {}
    weights = [1 / (rank + 1) for rank in range(documents)]
    made = []
    for number in range(requests):
        context = _Context(ids, block_tokens, system[:])
        chosen: tuple[int, ...] = ()
        while len(chosen) < min(3, documents):
            document = rng.choices(range(documents), weights)[0]
            if document in chosen:
                continue
            chosen = (*chosen, document)
            if chosen not in chains:
                chains[chosen] = ids.fresh(max(1, document_tokens // block_tokens))
            context.blocks.extend(chains[chosen])
        context.tokens = len(context.blocks) * block_tokens
        context.grow(_between(rng, (20, 200)))
        made.append(context.request(number, number * every_s, _between(rng, (50, 400))))
    return _trace("retrieval", f"keepwarm, seed {seed}", block_tokens, made)


GENERATORS: dict[str, Callable[[int], Trace]] = {
    "agents": lambda seed: coding_agents(sessions=8, turns=40, seed=seed),
    "chat": lambda seed: chat(sessions=200, seed=seed),
    "rag": lambda seed: rag(requests=300, seed=seed),
}


def _trace(name: str, source: str, block_tokens: int, requests: list[Request]) -> Trace:
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(name, True, source, block_tokens, requests)
