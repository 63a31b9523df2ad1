"""The doctor for engines: each thing that can be wrong is made wrong, and named first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from keepwarm.demo.ledger import REASONS
from keepwarm.engines.asking import EngineClient, Figures
from keepwarm.ops.doctor.checks import Check, the_one
from keepwarm.ops.doctor.replica import Replica, checks, leading, remedy
from keepwarm.ops.doctor.vllm import FleetReport, examine
from replicas import FakeReplica, FakeStore
from served import run


@contextmanager
def fleet(*each: dict[str, Any], **both: Any) -> Iterator[list[FakeReplica]]:
    """Replicas on one store: with switches each, and some that all have."""
    store = FakeStore()
    with ExitStack() as stack:
        given = each or ({}, {})
        yield [stack.enter_context(FakeReplica(store, **{**both, **own})) for own in given]


def examined(replicas: list[FakeReplica], **options: Any) -> FleetReport:
    return examine([replica.url for replica in replicas], store_s=(0.0, 0.0), **options)


def first(report: FleetReport) -> Check:
    found = the_one(report.checks)
    assert found is not None, report.checks
    return found


def test_a_fleet_that_is_well() -> None:
    with fleet() as replicas:
        report = examined(replicas)
        assert (report.level, report.reached) == ("ok", 2), report.checks
        by = {check.name.partition(" ")[0]: check.figure for check in report.checks}
        assert "2,032 of 2,048 tokens" in by["probe"]
        assert "2 replicas of fake: abab" in by["namespaces"]
        assert (by["failures"], by["block"]) == ("a failed load is recomputed", "16 tokens")
        assert by["connector"] == "direct 0.1.0"
        assert by["planner"] == "restore 4, dram 2.00 GiB/s, 2.000 ms a token"


def test_engines_that_have_served_nothing_are_not_called_unconfigured() -> None:
    """vLLM shows a connector's figures from the first request on."""
    with fleet(fresh=True) as replicas:
        report = examined(replicas)
        assert report.level == "ok", report.checks
    with fleet(fresh=True) as replicas:
        found = first(examined(replicas, probe=False))
        assert found.name.startswith("connector ")
        assert "--no-probe ask it once" in found.todo
        assert all(replica.fresh for replica in replicas)


def test_one_engine_of_a_server_that_is_left_out_is_a_fault() -> None:
    """A server with data parallel engines shows each of them."""
    name = "keepwarm_connector_joined"
    for second, level in ((1, "ok"), (0, "fail")):
        figures = Figures.parse(f'{name}{{engine="0"}} 1\n{name}{{engine="1"}} {second}\n')
        found = checks(Replica(EngineClient("http://a"), "a", figures=figures))
        assert next(each.level for each in found if each.name == "joined a") == level


@pytest.mark.parametrize(
    ("switches", "name", "level", "says"),
    [
        ({"ours": False}, "connector", "fail", "--kv-transfer-config"),
        ({"caching": "False"}, "caching", "fail", "--no-enable-prefix-caching"),
        ({"policy": "fail"}, "failures", "fail", '"kv_load_failure_policy": "recompute"'),
        ({"joined": 0}, "joined", "fail", "keepwarm doctor node"),
        ({"joined": 0, "refused": 1}, "joined", "fail", "refuses this engine's namespace"),
        ({"regret_s": 2.0}, "planner", "warn", "a faster way to the node"),
        ({"version": "0.40.1"}, "release", "warn", "tested with vLLM 0.32"),
        ({"restores": False}, "probe", "fail", "nothing was stored under this identity"),
        ({"restores": False, "miss": "deadline"}, "probe", "fail", "answers come too late"),
        ({"restores": False, "miss": "planner"}, "probe", "warn", "computing again is faster"),
    ],
)
def test_what_is_wrong_is_named_first(
    switches: dict[str, Any], name: str, level: str, says: str
) -> None:
    with fleet(**switches) as replicas:
        found = first(examined(replicas))
        assert (found.name.partition(" ")[0], found.level) == (name, level)
        assert says in found.todo


def test_replicas_that_name_blocks_differently() -> None:
    with fleet({}, {"namespace": "cd" * 32}) as replicas:
        found = first(examined(replicas))
        assert (found.name, found.level) == ("namespaces", "fail")
        assert "namespace_differs" in found.todo
        assert "abab" in found.figure
        assert "cdcd" in found.figure


def test_zero_hits_name_their_reason() -> None:
    with fleet() as replicas:
        replicas[0].sources["recomputed", "evicted"] = 30_000
        replicas[0].sources["recomputed", "after_gap"] = 90_000
        found = first(examined(replicas, probe=False))
        assert found.name.startswith("hits ")
        assert "most of the others: evicted" in found.figure
        assert "raise the nodes' capacity" in found.todo


def test_one_reason_among_hits() -> None:
    with fleet() as replicas:
        replicas[0].sources["restored_dram", ""] = 50_000
        replicas[0].sources["recomputed", "store_down"] = 50_000
        found = first(examined(replicas, probe=False))
        assert "50,000 recomputed: store_down" in found.figure


def test_the_leading_reason_is_a_fault_where_there_is_one() -> None:
    assert leading(Counter(absent=100, after_gap=900, corrupt=1)) == "corrupt"
    assert leading(Counter(absent=10, after_gap=900)) == "absent"
    assert leading(Counter(after_gap=900)) == "after_gap"
    assert leading(Counter()) == "absent"


def test_every_reason_has_a_remedy() -> None:
    assert not [why for why in REASONS if remedy(why).startswith("what ")]


def test_one_replica_is_not_probed() -> None:
    with fleet({}) as replicas:
        probe = examined(replicas).checks[-1]
        assert (probe.name, probe.level, probe.figure[:8]) == ("probe", "ok", "not done")


def test_the_command(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("k\n")
    with fleet(key="k") as replicas:
        urls = [word for replica in replicas for word in ("--url", replica.url)]
        said = run("doctor", "vllm", *urls, "--token-file", str(token), "--json")
        answer = json.loads(said.stdout)
        assert (said.returncode, answer["level"], answer["change"]) == (0, "ok", None), said.stderr
        refused = run("doctor", "vllm", *urls)
        assert refused.returncode == 1
        assert "change this first (probe)" in refused.stdout
    gone = run("doctor", "vllm", *urls)
    assert gone.returncode == 3
    assert "change this first (replica" in gone.stdout


def test_an_address_that_cannot_be() -> None:
    said = run("doctor", "vllm", "--url", "ftp://x")
    assert (said.returncode, "give http://host:port" in said.stderr) == (2, True)
