"""One rank: moves what the scheduler side ordered, and says what has ended.

Every load ends in `finished_recving` exactly once, whatever happens to it: done, failed, past its
deadline, cancelled because its request was aborted, or never accepted. Blocks are reported as
failed only after the job is fenced, so nothing of ours writes them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import Settings
from keepwarm.adapter.transfers import Done, Job, Transfers
from keepwarm.connectors.vllm.direct.landing import BlockPages, Copier, make_copier, step_blocks
from keepwarm.connectors.vllm.direct.layout import Layout
from keepwarm.connectors.vllm.direct.metadata import Moved, Order, Report, Step
from keepwarm.connectors.vllm.guard import note
from keepwarm.outcomes import Status

CLOSE_S = 1.0


class Worker:
    """See the module; its methods are called by vLLM's step, one after the other."""

    def __init__(
        self,
        settings: Settings,
        fields: Mapping[str, Any],
        layout: Layout,
        part: int,
        make_session: Callable[..., Session] = Session,
    ) -> None:
        self.session = make_session(settings, fields)
        self.transfers = Transfers(
            self.session,
            load_threads=settings.load_threads,
            store_threads=settings.store_threads,
            loads_max=settings.loads_max,
            stores_max=settings.stores_max,
        )
        self.layout = layout
        self._copier: Copier = make_copier(layout)
        self._part = part
        self._loading: dict[int, Order] = {}
        self._refused: list[Order] = []
        self._failed: set[int] = set()
        self._report = Report()
        self._generation = 0
        self._open: Step | None = None

    def begin(self, step: Step) -> None:
        """Before this step writes any block: stores that read what it writes are fenced."""
        # vLLM's first model runner does not end a step on any but the last pipeline stage when it
        # speculates: what the step has filled is there all the same.
        if self._open is not None:
            self.store(self._open)
        self._open = step
        for order in step.cancelled:
            self.transfers.cancel(order)
        if step.generation > self._generation:
            self._generation = step.generation
            self.session.move("the engine's cache was reset", step.private, step.generation)

    def load(self, step: Step) -> None:
        """Starts this step's loads."""
        for order in step.loads:
            self._loading[order.id] = order
        mark = self._mark(step.loads)
        for order in step.loads:
            if mark is None or not self._start(order, mark[0], self.transfers.load):
                self._refused.append(order)

    def store(self, step: Step) -> None:
        """Starts this step's stores, after its forward pass."""
        self._open = None
        mark = self._mark(step.stores)
        for order in step.stores:
            if mark is None or not self._start(order, mark[0], self.transfers.store):
                self._ended(order.id)
        self._report.steps.append(step.number)

    def _mark(self, orders: Sequence[Order]) -> tuple[Any] | None:
        """The copier's mark; None where there is nothing to mark, or no way to."""
        try:
            return (self._copier.mark(),) if orders else None
        except Exception as error:
            note("Worker._mark", error)
            return None

    def _start(self, order: Order, mark: Any, accept: Callable[[Job], bool]) -> bool:
        try:
            now = self.session.now
            if now.generation != order.generation:
                return False
            size = step_blocks(self.layout.block_bytes)
            return accept(
                Job(
                    id=order.id,
                    keys=order.prompt(now.namespace),
                    pages=BlockPages(self._copier, order.blocks, size, mark),
                    part=self._part,
                    deadline_s=order.deadline_s,
                    generation=order.generation,
                    engine_hashes=order.engine_hashes,
                    staged=True,
                )
            )
        except Exception as error:
            note("Worker._start", error)
            return False

    def finished(self) -> set[str]:
        """Requests whose load has ended since the last call; failed blocks go to `failed`."""
        over: set[str] = set()
        refused, self._refused = self._refused, []
        for order in refused:
            self._loading.pop(order.id, None)
            over.add(order.request)
            self._failed.update(order.blocks)
            self._ended(order.id, Moved(0, 0.0))
        for done in self.transfers.finished():
            if done.load:
                self._load_over(done, over)
            else:
                self._ended(int(str(done.id)))
        return over

    def _load_over(self, done: Done, over: set[str]) -> None:
        order = self._loading.pop(int(str(done.id)), None)
        if order is None:
            return
        over.add(order.request)
        loaded = [each.status is Status.OK for each in done.outcomes]
        loaded += [False] * (len(order.blocks) - len(loaded))
        self._failed.update(
            block for block, fine in zip(order.blocks, loaded, strict=False) if not fine
        )
        self._ended(order.id, Moved(done.bytes, done.seconds + done.queued_s))

    def _ended(self, order: int, moved: Moved | None = None) -> None:
        self._report.ended[order] = 1
        if moved is not None:
            self._report.loads[order] = moved

    def failed(self) -> set[int]:
        """Blocks that were not loaded, since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def report(self) -> Report:
        """What has ended, since the last call."""
        report, self._report = self._report, Report()
        return report

    def close(self) -> None:
        """Ends threads and connections; nothing of ours touches the engine's memory after it."""
        self.transfers.close(CLOSE_S)
        self.session.close(CLOSE_S)
