"""When each request of a trace is due, and what it asks.

An open loop: due times come from the trace alone, divided by the speed. Nothing that an endpoint
does moves them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import ArgumentError
from keepwarm.layout.requests import LoggedRequest
from keepwarm.workload.trace import TraceSource

_MASK = (1 << 64) - 1
_NO_IDS: NDArray[np.uint64] = np.empty(0, np.uint64)
OPENING_CHARACTERS = 1024
OPENING_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of a trace is replayed, and how fast.

    `limit` is a number of requests, `duration_s` seconds of the replay, `count_from_s` the replay's
    seconds that warm up: they are sent, and counted nowhere.
    """

    speed: float = 1.0
    limit: int | None = None
    duration_s: float | None = None
    count_from_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise ArgumentError(f"speed is {self.speed}: give a factor above 0, such as 2")
        if self.limit is not None and self.limit < 1:
            raise ArgumentError(f"limit is {self.limit}: give a number of requests from 1 on")
        if self.duration_s is not None and self.count_from_s >= self.duration_s:
            raise ArgumentError(
                f"counting from {self.count_from_s:g} s in a replay of {self.duration_s:g} s "
                "leaves nothing: give a smaller count-from or a longer duration"
            )


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: its number in the trace, when it is due, and what it asks.

    Either block ids and lengths, or `logged`, a request with its text.
    """

    number: int
    due_s: float
    counted: bool
    session: int  # 0: not known
    opening: int  # a hash of what the prompt begins with; 0: nothing known
    input_tokens: int = 0
    output_tokens: int = 0
    block_tokens: int = 1
    block_ids: NDArray[np.uint64] = field(default_factory=lambda: _NO_IDS)
    logged: LoggedRequest | None = None


def of_trace(source: TraceSource, pace: Pace) -> Iterator[Arrival]:
    """A trace's requests in order; reads it from its beginning."""
    number, block_tokens = 0, source.info.block_tokens
    first_blocks = max(1, OPENING_TOKENS // block_tokens)
    for batch in source.batches():
        for at in range(len(batch)):
            due_s = float(batch.times_s[at]) / pace.speed
            if _over(pace, number, due_s):
                return
            ids = batch.blocks(at)
            yield Arrival(
                number=number,
                due_s=due_s,
                counted=due_s >= pace.count_from_s,
                session=int(batch.sessions[at]),
                opening=opening(ids[:first_blocks]),
                input_tokens=int(batch.input_tokens[at]),
                output_tokens=int(batch.output_tokens[at]),
                block_tokens=block_tokens,
                block_ids=ids,
            )
            number += 1


def spread(number: int) -> int:
    """Spreads a 64-bit number's bits over all: SplitMix64's finaliser (public domain, Vigna)."""
    bits = (number + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def opening(first_ids: NDArray[np.uint64]) -> int:
    """A prompt's first blocks as one hash, as the simulator's router has it; 0: none is known."""
    found = 0
    for block in first_ids.tolist():
        found = spread(found ^ block)
    return found


def of_log(requests: Iterable[LoggedRequest], pace: Pace) -> Iterator[Arrival]:
    """A text log's requests in order of the log; a clock that ran back stands still."""
    first_s: float | None = None
    last_s = 0.0
    for number, logged in enumerate(requests):
        if logged.time_s is None:
            raise ArgumentError(
                f"{logged.where} has no time: an open loop needs arrival times in the log"
            )
        first_s = logged.time_s if first_s is None else first_s
        last_s = max(last_s, (logged.time_s - first_s) / pace.speed)
        if _over(pace, number, last_s):
            return
        yield Arrival(
            number=number,
            due_s=last_s,
            counted=last_s >= pace.count_from_s,
            session=_hash(logged.session) if logged.session else 0,
            opening=_hash(_opening(logged)),
            logged=logged,
        )


def _over(pace: Pace, number: int, due_s: float) -> bool:
    late = pace.duration_s is not None and due_s >= pace.duration_s
    return late or (pace.limit is not None and number >= pace.limit)


def _opening(logged: LoggedRequest) -> str:
    """What a prompt begins with: the first message, or the prompt itself."""
    body = logged.body
    messages = body.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else body.get("prompt", "")
    return json.dumps(first, sort_keys=True, default=str)[:OPENING_CHARACTERS]


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
