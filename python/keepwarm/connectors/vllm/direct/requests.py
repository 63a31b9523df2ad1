"""One request as the scheduler side sees it.

    ask ──► waiting ──► answered ──plan──► loading ──► ended        a prompt that hits
                           │                  └─failed─► no more loads, the rest is computed
                           └─► declined                             one that does not

After a preemption it asks anew, with what it has generated so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from keepwarm.adapter.lookups import Answer, Question
from keepwarm.adapter.reasons import Recomputed
from keepwarm.connectors.vllm.direct.metadata import Moved, Order
from keepwarm.identity import Extras, Namespace
from keepwarm.prompt import KEY_BYTES, Prompt

if TYPE_CHECKING:
    from vllm.v1.request import Request

_UNSURE = (
    *(Recomputed.DEADLINE, Recomputed.STORE_DOWN, Recomputed.IDENTITY, Recomputed.THROTTLED),
    Recomputed.EPOCH,
)


@dataclass(slots=True)
class Load:
    """What was ordered for a request, until every rank has ended it."""

    order: Order
    first: int
    """the first block's place in the prompt"""
    tiers: list[str | None]
    started_s: float
    waiting: int
    """ranks that have not ended it"""
    moved: Moved = field(default_factory=lambda: Moved(0, 0.0))
    failed: set[int] = field(default_factory=set)
    cancelled: bool = False

    def fail(self, invalid: set[int]) -> None:
        """Notes which of the engine's blocks some rank could not load."""
        self.failed.update(at for at, block in enumerate(self.order.blocks) if block in invalid)

    @property
    def landed(self) -> int:
        """Blocks before the first that has failed."""
        return min(self.failed, default=len(self.order.blocks))


class Planned(NamedTuple):
    """A decision, which holds while the device has as many of the prompt's blocks."""

    first: int
    blocks: int
    tiers: list[str | None]
    """of the blocks"""
    predicted_s: float


@dataclass(slots=True)
class Tracked:
    """Bookkeeping of one request; the engine's own object stays the truth about tokens."""

    request: Request
    extras: Extras | None = None
    keys: bytes = b""
    heads: bytes = b""
    """of `keys` those at which runs begin"""
    question: Question | None = None
    asked_s: float = 0.0
    asks: int = 0
    waiting_since_s: float | None = None
    held_s: float = 0.0
    """how long it could not be scheduled because of us, before any load"""
    first: int = 0
    """blocks that the device had when it was last looked at"""
    planned: Planned | None = None
    """what vLLM was last told"""
    preemptions: int = 0
    load: Load | None = None
    denied: Recomputed | None = None
    """why nothing is loaded for it"""
    stores_allowed: bool = True
    stored: int = 0
    """blocks that have been ordered to be stored, or need not be"""
    present: list[bool] = field(default_factory=list)
    """blocks that the memory has, as far as it was asked"""

    @property
    def id(self) -> str:
        """vLLM's name of it."""
        return str(self.request.request_id)

    def prompt(self, namespace: Namespace) -> Prompt:
        """Keys of all blocks whose tokens are known; each is made once."""
        self._name(namespace)
        return namespace.place(self.keys)

    def part(self, namespace: Namespace, first: int, count: int) -> Prompt:
        """Of some blocks: in each step some running request fills one, however many it has."""
        self._name(namespace)
        length = namespace.run_blocks
        runs = slice(first // length * KEY_BYTES, -(-(first + count) // length) * KEY_BYTES)
        keys = self.keys[first * KEY_BYTES : (first + count) * KEY_BYTES]
        return namespace.place(keys, first, self.heads[runs])

    def _name(self, namespace: Namespace) -> None:
        hashes, length = self.request.block_hashes, namespace.run_blocks
        known = len(self.keys) // KEY_BYTES
        if known < len(hashes):
            more = [bytes(each) for each in hashes[known:]]
            self.keys += namespace.engine_keys(more, 0, self.extras)
            starts = range(-(-known // length) * length, len(hashes), length)
            self.heads += b"".join(
                self.keys[KEY_BYTES * at : KEY_BYTES * (at + 1)] for at in starts
            )

    def unnamed(self) -> None:
        """The namespace is another one: keys, and what is known of them, are void."""
        self.keys = self.heads = b""
        self.present = []

    def close_question(self) -> None:
        """Gives the lease back."""
        if self.question is not None:
            self.question.close()
            self.question = None

    def again(self) -> None:
        """Everything is to be asked and decided anew."""
        self.close_question()
        self.planned = None

    def learn(self, answer: Answer) -> None:
        """What need not be stored: what is there, and where nobody knows, what the device had."""
        if answer.miss in _UNSURE:
            self.stored = max(self.stored, self.first)
        else:
            self.present = list(answer.hits)

    def missing(self, until: int) -> list[tuple[int, int]]:
        """Runs [first, end) of blocks before `until` to be stored; they count as ordered."""
        runs: list[tuple[int, int]] = []
        for at in range(self.stored, until):
            if at < len(self.present) and self.present[at]:
                continue
            if runs and runs[-1][1] == at:
                runs[-1] = (runs[-1][0], at + 1)
            else:
                runs.append((at, at + 1))
        self.stored = max(self.stored, until)
        return runs

    def failed(self, load: Load) -> None:
        """Blocks that the memory promised and did not deliver: computed now, and stored again."""
        self.denied = Recomputed.LOAD_FAILED
        start = load.first + load.landed
        for at in range(start, min(len(self.present), load.first + len(load.order.blocks))):
            self.present[at] = False
        self.stored = min(self.stored, start)


def run_of_hits(hits: Sequence[bool], first: int, end: int) -> int:
    """How many hits follow each other from `first` on."""
    for at in range(first, end):
        if not hits[at]:
            return at - first
    return max(0, end - first)
