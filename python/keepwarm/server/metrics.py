"""The metrics page: the node's figures under the catalogue's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

import keepwarm
from keepwarm.ops import metrics as catalogue

Rows = list[tuple[tuple[str, ...], Mapping[str, Any]]]


class Source(Protocol):
    """What the page is about."""

    @property
    def ready(self) -> bool: ...
    @property
    def started_unix_s(self) -> float: ...
    @property
    def name(self) -> str: ...
    def figures(self) -> dict[str, Any] | None:
        """As `Memory.stat` gives them; None while there is no store."""
        ...


class Collector:
    """Makes the families from one reading of the figures."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        source = self._source
        yield _one(catalogue.NODE_READY, float(source.ready))
        yield _one(catalogue.NODE_START, source.started_unix_s)
        figures = source.figures()
        if figures is None:
            return
        info = catalogue.NODE_INFO
        family = GaugeMetricFamily(info.name, info.help, labels=catalogue.NODE_LABELS)
        incarnation = f"{figures['incarnation']:016x}"
        family.add_metric(
            [keepwarm.__version__, source.name, str(figures["policy"]), incarnation], 1.0
        )
        yield family
        for metric in catalogue.CATALOGUE:
            yield _family(metric, _rows(metric.scope, figures))

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads no figures."""
        return []


def page(source: Source) -> bytes:
    """The metrics page in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(Collector(source))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _one(metric: catalogue.Metric, value: float) -> Metric:
    return GaugeMetricFamily(metric.name, metric.help, value=value)


def _rows(scope: catalogue.Scope, figures: Mapping[str, Any]) -> Rows:
    if scope == "tenants":
        return [((name,), table) for name, table in figures["tenants"].items()]
    if scope == "namespaces":
        return [
            ((table["tenant"], table["model"], table["fingerprint"][:16]), table)
            for table in figures["namespaces"].values()
        ]
    if scope == "devices":
        return [((str(table["name"]),), table) for table in figures.get("devices", {}).values()]
    return [((), figures if scope == "store" else figures.get("server", {}))]


def _family(metric: catalogue.Metric, rows: Rows) -> Metric:
    make = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, table in rows:
        value = table.get(metric.source)
        if metric.table:
            for reason, count in (value or {}).items():
                family.add_metric([*labels, reason], count)
        elif value is not None:
            family.add_metric(labels, value)
    return family
