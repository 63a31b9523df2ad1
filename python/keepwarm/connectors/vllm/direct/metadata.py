"""What goes to the workers with a step, and what they say of it.

vLLM pickles both where workers are processes of their own, so they hold plain data: a `Prompt` goes
as its parts, since a namespace holds a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from keepwarm.identity import Namespace
from keepwarm.prompt import Prompt


@dataclass(slots=True)
class Order:
    """Neighbouring blocks of one request, to load or to store."""

    id: int
    request: str
    generation: int
    keys: bytes
    first_position: int
    run_heads: bytes
    blocks: list[int]
    """the engine's block of each key"""
    deadline_s: float
    engine_hashes: list[int] | None = None

    def prompt(self, namespace: Namespace) -> Prompt:
        """The keys with their places."""
        return namespace.place(self.keys, self.first_position, self.run_heads)


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """One scheduler step's orders. Cancellations come first: they name what is written next."""

    number: int = 0
    generation: int = 0
    private: str | None = None
    """which private namespace the generation is of; None: the shared one"""
    loads: list[Order] = field(default_factory=list)
    stores: list[Order] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Moved:
    """What became of a load, over all ranks."""

    bytes: int
    seconds: float
    """of the slowest rank"""

    def add(self, other: Moved) -> None:
        """Another rank's."""
        self.bytes += other.bytes
        self.seconds = max(self.seconds, other.seconds)


@dataclass(slots=True)
class Report(KVConnectorWorkerMetadata):
    """What has ended since the last report."""

    steps: list[int] = field(default_factory=list)
    """steps whose forward pass is over"""
    ended: dict[int, int] = field(default_factory=dict)
    """orders, and how many ranks have ended each"""
    loads: dict[int, Moved] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Self:
        """Adds another rank's of the same step; steps are the first rank's."""
        assert isinstance(other, Report)
        for order, ranks in other.ended.items():
            self.ended[order] = self.ended.get(order, 0) + ranks
        for order, moved in other.loads.items():
            mine = self.loads.setdefault(order, Moved(0, 0.0))
            mine.add(moved)
        return self


@dataclass(slots=True)
class Handshake(KVConnectorHandshakeMetadata):
    """What a rank says of itself before the first step."""

    rank: int
    block_bytes: int
    layout: str
    fields: Mapping[str, Any]
