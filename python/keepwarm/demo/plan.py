"""What the demo asks: requests, who serves which, and a memory too small for all of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from keepwarm.testing import synthetic, traces
from keepwarm.testing.traces import Request, Trace

REPLICAS = ("A", "B")
MIB = 1 << 20
SESSION_TURNS_MIN = 12

Source = Literal["auto", "recorded", "generated"]


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What may be chosen. Defaults end well below three minutes on two cores."""

    out: Path = Path("out")
    source: Source = "auto"
    sessions: int = 12
    turns: int = 30
    prompt_tokens_max: int = 80_000
    block_bytes: int = 128 * 1024
    arena_share: float = 0.3
    policy: str = "default"
    deadline_s: float = 1.0
    down_turns_max: int = 8
    seed: int = 20261201


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and the replica that serves it; a session's turns alternate between the two."""

    number: int
    replica: int
    request: Request


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before the first process starts."""

    config: DemoConfig
    trace: Trace
    turns: list[Turn]
    arena_bytes: int
    working_set_bytes: int

    def kill_after(self) -> int:
        """Turns served before the kill: early enough that much is left to recover in."""
        return len(self.turns) * 2 // 5

    def down_turns(self) -> int:
        """Turns to be served, without any help, while the node is down."""
        return max(1, min(self.config.down_turns_max, len(self.turns) // 24))

    def flash_bytes(self) -> int:
        """Room for all of it, and for what is written again."""
        return max(self.working_set_bytes * 3 // 2 // MIB, 128) * MIB

    def blocks_max(self) -> int:
        """Whole blocks of the longest prompt."""
        return max(turn.request.whole_blocks() for turn in self.turns)


def make(config: DemoConfig) -> Plan:
    """Chooses the trace and sizes the memory to a share of its working set."""
    trace = choose_trace(config)
    turn_of: Counter[int] = Counter()
    turns = []
    for number, request in enumerate(trace.requests):
        replica = (request.session + turn_of[request.session]) % len(REPLICAS)
        turn_of[request.session] += 1
        turns.append(Turn(number, replica, request))
    working_set = trace.distinct_blocks() * config.block_bytes
    arena = max(int(working_set * config.arena_share) // MIB, 1) * MIB
    return Plan(config, trace, turns, arena, working_set)


def choose_trace(config: DemoConfig) -> Trace:
    """Recorded sessions where they are present, else generated ones; `describe` says which."""
    path = None if config.source == "generated" else traces.find(traces.WEKA_FILE)
    if path is not None:
        return _recorded(config, path)
    if config.source == "recorded":
        raise traces.TraceError(
            f"no recorded sessions: {traces.WEKA_FILE} is not under the folder that "
            f"{traces.TRACES_VARIABLE} names, nor in ../shared/traces"
        )
    return synthetic.coding_agents(config.sessions, config.turns, config.seed)


def _recorded(config: DemoConfig, path: Path) -> Trace:
    """The first turns of the first sessions that are long enough and whose prompts are not huge.

    Sessions start staggered and keep their own pauses, so that they interleave as recorded.
    """
    read = traces.read_weka(path, sessions=8 * config.sessions, stagger_s=0.0)
    by_session: dict[int, list[Request]] = {}
    for request in read.requests:
        mine = by_session.setdefault(request.session, [])
        if len(mine) < config.turns:
            mine.append(request)
    fit = [
        mine
        for mine in by_session.values()
        if len(mine) >= min(SESSION_TURNS_MIN, config.turns)
        and all(request.input_tokens <= config.prompt_tokens_max for request in mine)
    ]
    chosen: list[Request] = []
    for number, mine in enumerate(fit[: config.sessions]):
        chosen += _staggered(mine, number)
    chosen.sort(key=lambda request: request.arrival_s)
    source = (
        f"{read.source}, the first {config.turns} requests of sessions whose prompts stay "
        f"below {config.prompt_tokens_max:,} tokens"
    )
    return dataclasses.replace(read, requests=chosen, source=source)


def _staggered(requests: list[Request], number: int) -> list[Request]:
    return [
        dataclasses.replace(r, session=number, arrival_s=r.arrival_s + 45.0 * number)
        for r in requests
    ]
