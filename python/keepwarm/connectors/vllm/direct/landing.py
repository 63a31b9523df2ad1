"""Copies between the engine's blocks and staging, on the transfer threads.

    load    node ──get_into──► staging ──scatter──► engine's blocks
    store   engine's blocks ──gather──► staging ──put_from──► node

Each transfer thread has one staging of a few MiB, for as long as it lives; that is all the memory
this connector takes. Copies are made run by run, neighbouring blocks at once: the interpreter's
lock is free while bytes move, and taken once a run.

On a CUDA device staging is pinned, copies go over a stream of the thread's own that first waits for
what the engine had queued when the job was ordered, and the thread, never the step, waits for the
stream. That half is complete but has not run on a GPU yet: no test of this project exercises
`DeviceCopier`. The node's arena is not registered with CUDA (the client maps it read-only, and has
no call for it), so on a GPU machine bytes pass through pinned staging, one host copy more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from keepwarm.connectors.vllm.direct.layout import Layout
from keepwarm.outcomes import Outcome, Status

STEP_BYTES = 4 << 20
"""Bytes of one step: large enough that a call is short against the copy, small enough that a fence
waits for no more than a millisecond or two."""


class Copier(Protocol):
    """Moves whole blocks between the engine and rows of staging."""

    def staging(self) -> Any:
        """This thread's rows, as a writable buffer [row, byte]."""
        ...

    def scatter(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Staging's rows into the engine's blocks; when it returns they are there."""
        ...

    def gather(self, blocks: Sequence[int]) -> None:
        """The engine's blocks into staging's first rows; when it returns they are there."""
        ...

    def mark(self) -> Any:
        """On the engine's thread: what later copies of a job have to wait for."""
        ...

    def wait(self, mark: Any) -> None:
        """On a transfer thread, before a job's first copy."""
        ...


def step_blocks(block_bytes: int) -> int:
    """Blocks that move in one step."""
    return max(1, STEP_BYTES // block_bytes)


def make_copier(layout: Layout) -> Copier:
    """The copier for where the engine's memory is."""
    if layout.runs[0].device.type == "cpu":
        return HostCopier(layout)
    return DeviceCopier(layout)


class HostCopier:
    """The engine's memory is the host's: plain copies."""

    def __init__(self, layout: Layout) -> None:
        self._runs = [run.numpy() for run in layout.runs]
        self._shape = (step_blocks(layout.block_bytes), layout.block_bytes)
        self._own = threading.local()

    def staging(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """See `Copier`."""
        rows: np.ndarray[Any, np.dtype[np.uint8]] | None = getattr(self._own, "rows", None)
        if rows is None:
            rows = self._own.rows = np.empty(self._shape, np.uint8)
        return rows

    def scatter(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """See `Copier`."""
        staged = self.staging()
        for row, block, count in neighbours(rows, blocks):
            at = 0
            for run in self._runs:
                size = run.shape[1]
                run[block : block + count] = staged[row : row + count, at : at + size]
                at += size

    def gather(self, blocks: Sequence[int]) -> None:
        """See `Copier`."""
        staged = self.staging()
        for row, block, count in neighbours(range(len(blocks)), blocks):
            at = 0
            for run in self._runs:
                size = run.shape[1]
                staged[row : row + count, at : at + size] = run[block : block + count]
                at += size

    def mark(self) -> None:
        """A forward pass on a CPU is over when the connector is called."""
        return

    def wait(self, mark: None) -> None:
        """Nothing to wait for."""
        return


class DeviceCopier:
    """The engine's memory is a CUDA device's. Not exercised: see the module."""

    def __init__(self, layout: Layout) -> None:
        self._runs = layout.runs
        self._device = layout.runs[0].device
        self._shape = (step_blocks(layout.block_bytes), layout.block_bytes)
        self._own = threading.local()

    def _mine(self) -> tuple[torch.Tensor, torch.cuda.Stream]:
        pair: tuple[torch.Tensor, torch.cuda.Stream] | None = getattr(self._own, "pair", None)
        if pair is None:
            torch.cuda.set_device(self._device)
            rows = torch.empty(self._shape, dtype=torch.uint8, pin_memory=True)
            pair = self._own.pair = (rows, torch.cuda.Stream(self._device))
        return pair

    def staging(self) -> Any:
        """See `Copier`."""
        return self._mine()[0].numpy()

    def scatter(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """See `Copier`."""
        staged, stream = self._mine()
        with torch.cuda.stream(stream):
            for row, block, count in neighbours(rows, blocks):
                at = 0
                for run in self._runs:
                    size = run.shape[1]
                    here = staged[row : row + count, at : at + size]
                    run[block : block + count].copy_(here, non_blocking=True)
                    at += size
        stream.synchronize()

    def gather(self, blocks: Sequence[int]) -> None:
        """See `Copier`."""
        staged, stream = self._mine()
        with torch.cuda.stream(stream):
            for row, block, count in neighbours(range(len(blocks)), blocks):
                at = 0
                for run in self._runs:
                    size = run.shape[1]
                    here = staged[row : row + count, at : at + size]
                    here.copy_(run[block : block + count], non_blocking=True)
                    at += size
        stream.synchronize()

    def mark(self) -> Any:
        """What the engine has queued so far."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self, mark: Any) -> None:
        """This thread's stream goes on after it."""
        self._mine()[1].wait_event(mark)


def neighbours(rows: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(row, block, count) of places that follow each other on both sides."""
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or (blocks[at] != blocks[at - 1] + 1 or rows[at] != rows[at - 1] + 1):
            yield rows[start], blocks[start], at - start
            start = at


class BlockPages:
    """One job's blocks (`keepwarm.adapter.transfers.Pages`)."""

    __slots__ = ("_blocks", "_copier", "_mark", "step_blocks")

    def __init__(self, copier: Copier, blocks: Sequence[int], size: int, mark: Any) -> None:
        self._copier = copier
        self._blocks = blocks
        self._mark = mark
        self.step_blocks = size

    def buffers(self, first: int, count: int) -> list[Any]:
        """The calling thread's staging, a row a block."""
        rows = self._copier.staging()
        return [rows[at] for at in range(count)]

    def landed(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """Into the engine, those that are there."""
        self._order()
        rows = [at for at, outcome in enumerate(outcomes) if outcome.status is Status.OK]
        self._copier.scatter(rows, [self._blocks[first + at] for at in rows])

    def gather(self, first: int, count: int) -> None:
        """From the engine."""
        self._order()
        self._copier.gather(self._blocks[first : first + count])

    def _order(self) -> None:
        """Before the first copy: a mark is waited for once, each job has its own."""
        if self._mark is not None:
            self._copier.wait(self._mark)
            self._mark = None
