"""What the tests of the direct connector share: its configuration, its two halves, its sums."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

from keepwarm.adapter.accounting import reconcile
from keepwarm.adapter.reasons import Recomputed
from keepwarm.connectors.vllm.direct.scheduler import Scheduler
from keepwarm.connectors.vllm.direct.worker import Worker
from keepwarm.connectors.vllm.guard import faults
from keepwarm.testing.waiting import eventually

from engine.harness import Engine

SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


def connector(address: str, **extra: Any) -> dict[str, Any]:
    """A `kv_transfer_config`; the planner restores whatever is there unless told otherwise."""
    return {
        "kv_connector": "KeepwarmConnector",
        "kv_connector_module_path": "keepwarm.connectors.vllm",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"address": address, "planner": "always"} | extra,
    }


class Direct:
    """Both halves of an engine's connector, and what is asked of them again and again."""

    def __init__(self, engine: Engine) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.engine = engine
        self.connector: Any = engine.scheduler.connector
        self.scheduler: Scheduler = self.connector._scheduler
        self.worker: Worker = get_kv_transfer_group()._worker
        # vLLM counts for all engines of a process together.
        self._before = self._counted()

    def joined(self) -> None:
        """Waits until both halves have a node."""
        sessions = (self.scheduler.session, self.worker.session)
        eventually(lambda: all(each.problem is None for each in sessions), "both have joined")

    def stored(self) -> None:
        """Waits until no store is under way, and tells the scheduler's half."""
        eventually(lambda: not self.worker.transfers.backlog(load=False), "stores have ended")

    def _counted(self) -> dict[str, int]:
        metrics = self.engine.metrics()
        name = "vllm:prompt_tokens_by_source"
        return {each: int(metrics.get(f"{name}{{source={each}}}", 0)) for each in SOURCES}

    def disagreements(self) -> dict[str, tuple[int, int]]:
        """vLLM's counters that are not ours, as (ours, vLLM's)."""
        now = self._counted()
        since = {name: now[name] - self._before[name] for name in SOURCES}
        return reconcile(self.scheduler.accounting.totals(), since, host_is_external=False)

    def recomputed(self, reason: Recomputed) -> int:
        """Tokens so far that were computed again for this reason."""
        return self.scheduler.accounting.totals().recomputed.get(reason, 0)

    def restored(self) -> int:
        """Tokens so far that were given back."""
        return sum(self.scheduler.accounting.totals().restored.values())

    def at_rest(self) -> None:
        """Steps until nothing is under way, and checks that nothing is left behind."""
        self.stored()
        self.engine.settle()
        # What ended after the last step is told with the next one.
        self.engine.until(self._told, "both halves know what has ended")
        scheduler = self.scheduler
        assert self.engine.scheduler.get_kv_cache_usage() == 0.0
        assert not scheduler._tracked
        assert not scheduler._loads
        assert not scheduler._uncounted
        assert not self.worker._loading
        assert not self.worker.transfers.backlog(load=True)
        assert scheduler.accounting.totals().sums()
        disagreements = self.disagreements()
        assert not disagreements, disagreements
        assert not faults
        assert not self.worker.transfers.counts["faults"]
        assert not scheduler.lookups.counts["faults"]

    def _told(self) -> bool:
        if len(self.scheduler.stores):
            self.engine.ask([1], max_tokens=1)
        return not len(self.scheduler.stores)


def resources() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    gc.collect()
    return threading.active_count(), len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))
