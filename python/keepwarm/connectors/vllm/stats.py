"""Our figures on their way into vLLM's /metrics, for both connectors.

    figures() in the engine's process ──Shipment.take()──► vLLM's stats ──► Registered.observe() in
    the process that serves /metrics

vLLM carries what a connector hands it after each step, and adds up what it could not carry at once:
so counters travel as increments, gauges as they are. The tier hands over `definitions()` and the
stats, and vLLM's own `OffloadPromMetrics` does the rest; the direct connector has `Registered`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats as Stats,  # names and labels, summed where vLLM sums; travels as data
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

__all__ = ["Metric", "Registered", "Shipment", "Stats", "definitions"]

QUIET_S = 1.0

Figures: TypeAlias = Mapping[tuple[str, tuple[str, ...]], float]
"""Values by name and label values: totals since start where the metric is a counter."""


class Metric(Protocol):
    """What a catalogue says of a metric."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...  # counter or gauge
    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def help(self) -> str: ...


class Shipment:
    """Totals in, what vLLM carries out. Called after each step: cheap when nothing happened."""

    def __init__(
        self,
        catalogue: Sequence[Metric],
        figures: Callable[[], Figures],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = {each.name: each.kind == "counter" for each in catalogue}
        self._figures = figures
        self._clock = clock
        self._sent: dict[tuple[str, tuple[str, ...]], float] = {}
        self._next = 0.0

    def take(self, news: bool = False) -> Stats | None:
        """What has changed: now if there is `news`, else once in a while."""
        now = self._clock()
        if not news and now < self._next:
            return None
        self._next = now + QUIET_S
        stats = Stats()
        for place, value in self._figures().items():
            before = self._sent.get(place)
            if value == before:
                continue
            self._sent[place] = value
            name, labels = place
            if not self._counters[name]:
                stats.set_gauge(name, value, labels)
            elif value > (before or 0.0):
                stats.increase_counter(name, value - (before or 0.0), labels)
        return None if stats.is_empty() else stats


def definitions(catalogue: Sequence[Metric]) -> dict[str, OffloadingMetricMetadata]:
    """The catalogue as vLLM's tiers declare theirs; called in the process that serves /metrics."""
    _forget()
    kinds = {"counter": OffloadingCounterMetadata, "gauge": OffloadingGaugeMetadata}
    return {
        each.name: kinds[each.kind](documentation=each.help, labelnames=tuple(each.labels))
        for each in catalogue
    }


class Registered(KVConnectorPromMetrics):
    """The catalogue's metrics, with vLLM's labels before ours."""

    def __init__(self, catalogue: Sequence[Metric], *vllm: Any) -> None:
        """`vllm` are the arguments of `build_prom_metrics`, in its order."""
        super().__init__(*vllm)
        _forget()
        # Of several API servers the one that heard last: each of them hears some of the steps.
        gauge = partial(self._gauge_cls, multiprocess_mode="mostrecent")
        kinds: dict[str, Any] = {"counter": self._counter_cls, "gauge": gauge}
        self._metrics: dict[str, Any] = {
            each.name: kinds[each.kind](
                name=each.name,
                documentation=each.help,
                labelnames=[*self._labelnames, *each.labels],
            )
            for each in catalogue
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        kinds = transfer_stats_data.get("types", {})
        for name, values in transfer_stats_data.get("data", {}).items():
            if (metric := self._metrics.get(name)) is None:
                continue
            for labels, value in values.items():
                child = metric.labels(*self.per_engine_labelvalues[engine_idx], *labels)
                child.inc(value) if kinds[name] == "counter" else child.set(value)


def _forget() -> None:
    """A second engine in one process registers the names again: vLLM clears its own alone."""
    for collector in list(REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith("keepwarm_"):
            REGISTRY.unregister(collector)
