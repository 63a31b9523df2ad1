"""vLLM's offloading connector with the books kept: all tokens counted, and prefill steps measured.

It changes nothing of what vLLM does. It sees what a tier is not shown: how vLLM split each prompt,
when a request had its first output, and how long each step of which request took.

    get_num_new_matched_tokens ─► update_state_after_alloc: vLLM's split ─► first output: counted
    build_connector_meta: a step begins ───────────────► get_kv_connector_stats: it is over
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from keepwarm.adapter.settings import SettingsError
from keepwarm.connectors.vllm.guard import guarded, nothing
from keepwarm.connectors.vllm.tier import KeepwarmTier

STEPS_MAX = 64  # under way at once; vLLM has one or two
CHUNK_MIN = 32  # tokens: less says nothing of prefill
OTHERS_MAX = 0.1  # of a step's tokens


class _Step:
    """A step under way, and the only prompt's chunk in it, if there is but one."""

    __slots__ = ("began_s", "first", "tokens")

    def __init__(self, output: Any, began_s: float) -> None:
        self.began_s = began_s
        self.first = self.tokens = 0
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return
        req_id = max(scheduled, key=scheduled.__getitem__)
        tokens = scheduled[req_id]
        others = output.total_num_scheduled_tokens - tokens
        if tokens >= CHUNK_MIN and others <= OTHERS_MAX * tokens:
            self.tokens = tokens
            self.first = _computed(output, req_id)


def _computed(output: Any, req_id: str) -> int:
    for new in output.scheduled_new_reqs:
        if new.req_id == req_id:
            return int(new.num_computed_tokens)
    cached = output.scheduled_cached_reqs
    return int(cached.num_computed_tokens[cached.req_ids.index(req_id)])


class KeepwarmOffloadingConnector(OffloadingConnector):
    """See the module. Selected by `kv_connector` and `kv_connector_module_path`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._tier: KeepwarmTier | None = None
        self._unanswered: dict[str, Any] = {}  # admitted requests without a first output
        self._steps: deque[_Step] = deque(maxlen=STEPS_MAX)
        self._over_s = 0.0
        if self.connector_scheduler is not None:
            tiers = getattr(self.connector_scheduler.manager, "secondary_tiers", [])
            self._tier = next((tier for tier in tiers if isinstance(tier, KeepwarmTier)), None)
            if self._tier is None:
                raise SettingsError(
                    "kv_connector_extra_config",
                    "secondary_tiers",
                    "KeepwarmOffloadingConnector keeps the books of a KeepwarmTier, and there is "
                    'none: add {"type": "KeepwarmTier", "module_path": "keepwarm.connectors.vllm"}',
                )

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """vLLM admits a request: its split is known now."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._admitted(request)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """A step begins."""
        self._begins(scheduler_output)
        return super().build_connector_meta(scheduler_output)

    def get_kv_connector_stats(self) -> Any:
        """A step is over, first outputs among its results."""
        if self._tier is not None:
            self._ends()
        return super().get_kv_connector_stats()

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        """With or without an output."""
        self._finished(request)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """The same, where there are several groups."""
        self._finished(request)
        return super().request_finished_all_groups(request, block_ids)

    # vLLM takes `prefill_stats` from a request with its first output: while they are there, it had
    # none. They say what vLLM will count, and are not written again after a preemption.

    @guarded(nothing)
    def _admitted(self, request: Any) -> None:
        stats = request.prefill_stats
        if self._tier is None or stats is None or request.num_preemptions:
            return
        self._unanswered[request.request_id] = request
        self._tier.admitted(
            request.request_id,
            stats.num_prompt_tokens,
            stats.num_local_cached_tokens,
            stats.num_external_cached_tokens,
        )

    @guarded(nothing)
    def _finished(self, request: Any) -> None:
        if self._unanswered.pop(request.request_id, None) is not None and self._tier is not None:
            self._tier.counted(request.request_id, aborted=request.prefill_stats is not None)

    @guarded(nothing)
    def _begins(self, output: Any) -> None:
        self._steps.append(_Step(output, time.monotonic()))

    @guarded(nothing)
    def _ends(self) -> None:
        assert self._tier is not None
        answered = [name for name, each in self._unanswered.items() if each.prefill_stats is None]
        for name in answered:
            del self._unanswered[name]
            self._tier.counted(name)
        now_s = time.monotonic()
        if self._steps:
            step = self._steps.popleft()
            # With two steps under way the later one waits for the earlier: not its own time.
            if step.tokens:
                seconds = now_s - max(step.began_s, self._over_s)
                self._tier.planner.prefill_step(step.first, step.tokens, seconds)
        self._over_s = now_s
