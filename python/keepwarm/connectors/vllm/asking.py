"""One request's way through a tier's lookup().

    NEW ──first key: one question for all──► ASKED ──answer──► CHOSEN   HIT for the chosen blocks,
                                               │                        MISS for all others
                                               └─ deadline ──► CHOSEN, with no block

vLLM scans a prompt's keys anew in each step. While we wait, it is told RETRY once for each group (a
group that saw only MISS would end the lookup as a miss), then MISS, which ends the scan.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from keepwarm.adapter.lookups import Answer, Question
from keepwarm.adapter.reasons import Recomputed

PROMISES_MAX = 2  # of one key to one request: what is lost twice is computed


class Phase(enum.Enum):
    """See the module."""

    NEW = enum.auto()
    ASKED = enum.auto()
    CHOSEN = enum.auto()


@dataclass(slots=True)
class Asking:
    """A request as the tier knows it; belongs to the scheduler's thread."""

    context: Any
    phase: Phase = Phase.NEW
    spanning: bool = False
    """it was alive when the caches were reset: its blocks may be of other weights"""
    keys: list[bytes] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)
    question: Question | None = None
    answer: Answer | None = None
    wanted: list[bytes] | None = None
    """what the planner would restore"""
    chosen: set[bytes] = field(default_factory=set)
    limit: Recomputed | None = None
    """why hits of the prefix were not chosen"""
    promised: dict[bytes, int] = field(default_factory=dict)
    landed: dict[bytes, str | None] = field(default_factory=dict)
    """by tier"""
    failed: dict[bytes, Recomputed] = field(default_factory=dict)
    began_s: float | None = None
    decided_s: float | None = None
    predicted_s: float = 0.0
    waits: dict[bytes, int] = field(default_factory=dict)
    """the step in which each group was told RETRY"""

    def asked(self, keys: list[bytes], question: Question, now_s: float) -> None:
        """NEW to ASKED."""
        self.keys = keys
        self.places = {key: place for place, key in enumerate(keys)}
        self.question, self.began_s = question, now_s
        self.phase = Phase.ASKED

    def wait(self, group: bytes, step: int) -> bool:
        """Whether this group still has to be told RETRY in this step."""
        first = self.waits.get(group) != step
        self.waits[group] = step
        return first

    def tier(self, key: bytes) -> str | None:
        """Where the answer said that the block is."""
        place = self.places.get(key)
        return None if place is None or self.answer is None else self.answer.tiers[place]

    def hit(self, key: bytes) -> bool:
        """Whether the answer had it."""
        place = self.places.get(key)
        return place is not None and self.answer is not None and self.answer.hits[place]

    def release(self) -> None:
        """Nothing more will be loaded for it: its blocks may leave the store."""
        self.chosen.clear()
        self.promised.clear()
        if self.question is not None:
            self.question.close()

    def again(self, spanning: bool = False) -> None:
        """The engine computes it anew: what was decided, and what had landed, is void."""
        self.release()
        self.phase = Phase.NEW
        self.spanning = self.spanning or spanning
        self.question = self.answer = self.wanted = self.limit = None
        self.began_s = self.decided_s = None
        self.landed.clear()
        self.failed.clear()
        self.waits.clear()
