"""Traces for replays, made of plain lists, and what runs them under a virtual clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from keepwarm.testing import virtual_time
from keepwarm.testing.fake_engine import FakeEngine
from keepwarm.workload.replay import (
    Limits,
    Order,
    Pace,
    Plan,
    Router,
    TokenBodies,
    Vocabulary,
    of_trace,
    parse_targets,
    replay,
)
from keepwarm.workload.trace import Batch, Progress, Skipped, TokensAre, TraceInfo

BLOCK = 16
AS_IT_WAS = Pace()


@dataclass(frozen=True)
class Row:
    """One request."""

    time_s: float
    blocks: Sequence[int]
    tokens: int = 0  # 0: all of the blocks
    output: int = 1
    session: int = 0


class ListSource:
    """A trace out of rows, a few a batch; rows may be made on the fly."""

    def __init__(self, rows: Callable[[], Iterator[Row]], batch: int = 100) -> None:
        self.rows = rows
        self.batch = batch
        self.info = TraceInfo("rows", "rows", "a test", BLOCK, TokensAre.EXACT, synthetic=True)

    def batches(self, _: Progress | None = None) -> Iterator[Batch]:
        """From the beginning."""
        rows = self.rows()
        while some := list(itertools.islice(rows, self.batch)):
            sizes = [len(row.blocks) for row in some]
            yield Batch(
                np.array([row.time_s for row in some]),
                np.array([row.tokens or len(row.blocks) * BLOCK for row in some], np.uint32),
                np.array([row.output for row in some], np.uint32),
                np.array([row.session for row in some], np.uint64),
                np.zeros(len(some), np.uint64),
                np.array([0, *itertools.accumulate(sizes)], np.uint64),
                np.array([block for row in some for block in row.blocks], np.uint64),
            )

    def skipped(self) -> Skipped:
        """Nothing."""
        return Skipped({}, {})


def source(rows: Sequence[Row]) -> ListSource:
    """A trace of these rows."""
    return ListSource(lambda: iter(rows))


def steady(count: int, every_s: float, blocks: int = 1) -> ListSource:
    """Requests at a fixed distance; no two share anything."""

    def rows() -> Iterator[Row]:
        for at in range(count):
            first = 1 + at * blocks
            yield Row(at * every_s, range(first, first + blocks), session=at + 1)

    return ListSource(rows)


def plan(
    trace: ListSource,
    targets: Sequence[str],
    pace: Pace = AS_IT_WAS,
    router: Router = Router.ROUND_ROBIN,
    order: Order = Order.INTERLEAVED,
    **settings: Any,
) -> Plan:
    """A plan with token prompts."""
    made = Plan(
        arrivals=lambda: of_trace(trace, pace),
        bodies=TokenBodies("fake", Vocabulary(), Limits()),
        targets=parse_targets(targets, router),
        order=order,
    )
    return replace(made, **settings)


def virtually(main: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    """Runs a coroutine under a virtual clock."""
    return virtual_time.run(main())


def replayed(
    folder: Path,
    trace: ListSource,
    engines: dict[str, FakeEngine],
    *,
    during: Callable[[asyncio.Event], object] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """The result of a replay against engines, each at a socket of its own, in no time.

    `during` is called in the loop as the replay begins, with the event that stops it.
    """

    async def main() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            targets = []
            for place, (name, engine) in enumerate(engines.items()):
                path = str(folder / f"{place}.sock")
                address = await stack.enter_async_context(engine.listening(path))
                targets.append(f"{name.partition('#')[0]}={address}")
            stop = asyncio.Event()
            if during is not None:
                during(stop)
            return await replay(plan(trace, targets, **settings), stop)

    return virtually(main)
