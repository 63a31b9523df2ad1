"""One node's memory and flash, simulated exactly: the store's own decisions over block ids.

What the simulation leaves out: leases, several tenants, times to live, a budget of flash writes,
blocks of different sizes. `docs/workload.md` says how exact it is and how that is tested.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keepwarm import _core
from keepwarm.errors import ArgumentError
from keepwarm.workload.trace import Batch

FlashRow = tuple[int, int | None, str]
NodeRow = tuple[int, int, str, int, int | None, int | None, FlashRow | None]


@dataclass(frozen=True, slots=True)
class NodeFlash:
    """A node's flash: one device."""

    device_bytes: int
    #: None: as a node chooses it from the device's size.
    segment_bytes: int | None = None
    #: `reuse` or `all`, as `keepwarm serve --flash-admission`.
    admission: str = "reuse"


@dataclass(frozen=True, slots=True)
class NodeModel:
    """The node: what `keepwarm serve` is told, and how large a block is."""

    capacity_bytes: int
    block_bytes: int
    policy: str = "default"
    flash: NodeFlash | None = None
    #: Entries of the index; None: as a node chooses it.
    max_blocks: int | None = None
    #: What the bounded list of evicted keys is hashed with. A node draws its own at start.
    ghost_seed: int = 0
    #: Blocks of one get or put, background work settled after each; None: a request's in one call.
    call_blocks: int | None = None

    def row(self) -> NodeRow:
        """As the core takes it; raises ArgumentError for numbers that no node has."""
        if not (0 < self.block_bytes < 1 << 32 and 0 < self.capacity_bytes < 1 << 64):
            raise ArgumentError(
                f"memory of {self.capacity_bytes} bytes, blocks of {self.block_bytes}: no node has "
                "such"
            )
        flash = self.flash
        return (
            self.capacity_bytes,
            self.block_bytes,
            self.policy,
            self.ghost_seed,
            self.max_blocks,
            self.call_blocks,
            None if flash is None else (flash.device_bytes, flash.segment_bytes, flash.admission),
        )


class NodeTwin:
    """A node of which requests are asked in order; background work is settled after each."""

    def __init__(self, model: NodeModel) -> None:
        """ArgumentError or ConfigError for a node that would not start."""
        self._core = _core.StoreTwin(model.row())

    def serve(self, batch: Batch) -> NDArray[np.uint32]:
        """For each request the blocks of its unbroken prefix in memory, and on flash alone."""
        return np.frombuffer(self._core.serve(batch), dtype=np.uint32).reshape(-1, 2)

    def block_keys(self, block_ids: NDArray[np.uint64]) -> bytes:
        """Keys, 16 bytes each, under which a real node stores these blocks as the twin does."""
        return self._core.block_keys(np.ascontiguousarray(block_ids))

    def counts(self) -> dict[str, int]:
        """Blocks and segments that moved so far, by what became of them."""
        return self._core.counts()
