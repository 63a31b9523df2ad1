"""Stores under way, and which of the engine's blocks they still read.

A store reads blocks while the engine goes on, and holds none: vLLM frees them when their request
ends or is preempted, and may give them to another. A filled block does not change before that, so
it is enough to look, at each step, at what the step writes: a store of such a block is cancelled
with that very step, and the worker fences it before the forward pass. Bytes gathered before are
right, later ones are never gathered.

    why not keep the blocks (`request_finished` answering True): a stalled node would take them out
    of the engine's pool for a store's deadline, and an idle engine would spin until they are back
"""

from __future__ import annotations

from collections.abc import Collection

from keepwarm.connectors.vllm.direct.metadata import Order


class Stores:
    """See the module."""

    def __init__(self) -> None:
        self.cancelled = 0
        """Stores whose blocks were taken before they were read, or while they were sent."""
        self._waiting: dict[int, tuple[int, Order]] = {}  # by id, with ranks that have not ended it
        self._readers: dict[int, set[int]] = {}  # block: orders

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, order: Order, ranks: int) -> None:
        """Its blocks are read from this step on."""
        self._waiting[order.id] = ranks, order
        for block in order.blocks:
            self._readers.setdefault(block, set()).add(order.id)

    def ended(self, number: int, ranks: int) -> None:
        """So many ranks are done with the order of this id."""
        found = self._waiting.get(number)
        if found is None:
            return
        left, order = found[0] - ranks, found[1]
        if left > 0:
            self._waiting[number] = left, order
            return
        del self._waiting[number]
        for block in order.blocks:
            readers = self._readers[block]
            readers.discard(number)
            if not readers:
                del self._readers[block]

    def overwritten(self, blocks: Collection[int]) -> list[Order]:
        """Orders that read blocks which are about to be written."""
        if not self._readers:
            return []
        found: set[int] = set()
        for block in blocks:
            found |= self._readers.get(block, set())
        self.cancelled += len(found)
        return [self._waiting[number][1] for number in sorted(found)]

    def all(self) -> list[Order]:
        """Every order that may still read blocks."""
        self.cancelled += len(self._waiting)
        return [order for _, order in self._waiting.values()]
