"""Admin HTTP and the metrics page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import keepwarm
import pytest
from keepwarm.config import load
from keepwarm.ops import metrics as catalogue
from keepwarm.server.admin import app
from keepwarm.server.node import Node, State
from nodes import keys_of, make
from prometheus_client.parser import text_string_to_metric_families


class Pages:
    """The application, asked without a socket."""

    def __init__(self, node: Node) -> None:
        self._app = app(node)

    def request(self, method: str, path: str) -> httpx.Response:
        """One request."""

        async def go() -> httpx.Response:
            way = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=way, base_url="http://node") as client:
                return await client.request(method, path)

        return asyncio.run(go())

    def get(self, path: str) -> httpx.Response:
        """One page."""
        return self.request("GET", path)


@pytest.fixture
def running(folder: Path) -> Iterator[Node]:
    flags = {"capacity": "8MiB", "address": str(folder / "s"), "admin": "off", "node": "n1"}
    node = Node(load(flags | {"flash": f"{folder / 'flash'}=64MiB"}, {}))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def pages(running: Node) -> Pages:
    return Pages(running)


def test_health_and_readiness(running: Node, pages: Pages) -> None:
    assert pages.get("/v1/health").json() == {"state": "serving"}
    assert pages.get("/v1/ready").status_code == 200
    running.retire()
    assert pages.get("/v1/ready").status_code == 503, "before anybody is told"
    running.drain()
    assert pages.get("/v1/health").status_code == 200
    assert pages.get("/v1/ready").status_code == 503
    assert pages.get("/v1/ready").json() == {"state": "draining"}
    running.stop()
    assert pages.get("/v1/ready").status_code == 503
    assert pages.get("/v1/status").json()["figures"] is None
    assert "keepwarm_node_ready 0.0" in pages.get("/metrics").text


def test_before_it_serves(folder: Path) -> None:
    node = Node(load({"capacity": "8MiB", "address": str(folder / "s"), "admin": "off"}, {}))
    assert node.state is State.STARTING
    pages = Pages(node)
    assert pages.get("/v1/health").status_code == 200
    assert pages.get("/v1/ready").status_code == 503
    assert pages.get("/v1/status").json()["figures"] is None
    assert pages.get("/metrics").status_code == 200


def test_status(running: Node, pages: Pages) -> None:
    status = pages.get("/v1/status").json()
    assert (status["state"], status["node"]) == ("serving", "n1")
    assert status["settings"]["capacity"] == {"value": 8 << 20, "origin": "--capacity"}
    assert status["figures"]["capacity_bytes"] == 8 << 20
    assert status["version"] == keepwarm.__version__
    assert json.dumps(status)
    assert running.ready


def test_it_only_reads(pages: Pages) -> None:
    for path in ("/v1/health", "/v1/ready", "/v1/status", "/metrics"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert pages.request(method, path).status_code == 405
    assert pages.get("/").status_code == 404
    assert pages.get("/v1/other").status_code == 404


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_page_is_the_catalogue(running: Node, pages: Pages) -> None:
    with keepwarm.connect(running.config.address) as memory:
        names = make()
        space, keys = memory.attach(names), keys_of(names, 3)
        space.put_from(keys[:32], bytes(8192))
        space.lookup(keys)
        space.get_into(keys[:16], bytearray(4096))
        answer = pages.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = families(answer.text)
    nodes_own = (catalogue.NODE_INFO, catalogue.NODE_READY, catalogue.NODE_START)
    for metric in (*catalogue.CATALOGUE, *nodes_own):
        family = found.pop(metric.name)
        assert family.type == metric.kind
        assert family.documentation == metric.help
    # What is left is the process' own, in Prometheus' common names.
    assert all(name.startswith("process_") for name in found)

    def value(name: str, **labels: str) -> float:
        samples = families(answer.text)[name].samples
        (match,) = (s.value for s in samples if labels.items() <= s.labels.items())
        return float(match)

    assert value("keepwarm_lookup_hits", tenant="default") == 2
    assert value("keepwarm_lookup_misses", tenant="default", reason="absent") == 1
    assert value("keepwarm_stored_bytes", tenant="default") == 8192
    assert value("keepwarm_read_bytes", tenant="default") == 4096
    assert value("keepwarm_namespace_blocks", model="m") == 2
    assert value("keepwarm_node_info", node="n1", policy="adaptive") == 1
    assert value("keepwarm_node_ready") == 1
    assert value("keepwarm_server_connections") >= 1


def test_every_figure_is_in_the_catalogue(running: Node) -> None:
    with keepwarm.connect(running.config.address) as memory:
        memory.attach(make())
        figures = running.figures()
    assert figures is not None
    tables: dict[catalogue.Scope, set[str]] = {
        "store": {*figures} - {"tenants", "namespaces", "devices", "server"},
        "tenants": {*figures["tenants"]["default"]},
        "namespaces": {*next(iter(figures["namespaces"].values()))},
        "devices": {*figures["devices"]["0"]},
        "server": {*figures["server"]},
    }
    tables["tenants"] |= {"quota_bytes", "flash_quota_bytes"}  # only there with a quota
    listed: dict[str, set[str]] = {scope: set() for scope in tables}
    for metric in catalogue.CATALOGUE:
        assert metric.source not in listed[metric.scope], metric
        listed[metric.scope].add(metric.source)
    for scope, names in tables.items():
        missing = names - listed[scope] - catalogue.NOT_METRICS[scope]
        if scope == "store":  # sums of the tenants'
            missing -= tables["tenants"]
        assert not missing, f"{scope}: {missing}; add them to keepwarm/ops/metrics.py"
        assert not listed[scope] - names, f"{scope}: no such figures: {listed[scope] - names}"


def test_names_follow_prometheus() -> None:
    names = [metric.name for metric in catalogue.CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in catalogue.CATALOGUE:
        assert metric.name.startswith("keepwarm_")
        assert not metric.name.endswith("_total")
        assert metric.help.endswith(".")
