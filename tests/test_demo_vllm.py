"""The demo with engines, without one: what it asks, what it concludes, what it shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from keepwarm.demo.vllm import Record, Sizes, Summary, page, report, run, summarise
from keepwarm.demo.vllm.accounts import Accounts
from keepwarm.demo.vllm.plan import make
from keepwarm.demo.vllm.run import TOLD, Kind, Run
from keepwarm.engines.asking import EngineClient, EngineError, Figures
from replicas import FakeReplica, FakeStore

SIZES = Sizes(
    conversations=3, tokens_least=200, tokens_most=600, turns=3, turn_tokens=150, answer_tokens=3
)


class FakeFleet:
    """Two fake replicas on one fake store."""

    def __init__(self, **switches: Any) -> None:
        self.store = FakeStore()
        self.replicas = {name: FakeReplica(self.store, **switches) for name in ("A", "B")}
        self.restarts = 0

    def client(self, replica: str) -> EngineClient:
        return EngineClient(self.replicas[replica].url)

    def settle(self) -> None:
        """A fake stores at once."""

    def restart(self, replica: str) -> None:
        self.restarts += 1
        self.replicas[replica].forget()

    def kill_node(self) -> None:
        self.store.is_up = False

    def about(self) -> dict[str, Any]:
        return {"engine": self.client("A").version()}

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.close()


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.close()


def asked(fleet: FakeFleet) -> tuple[Record, Summary]:
    record = run(fleet, SIZES, lambda *_: None)
    return record, summarise(record)


def test_all_of_it(fleet: FakeFleet) -> None:
    record, summary = asked(fleet)
    assert summary.problems == []
    assert (summary.identical, summary.won, fleet.restarts) == (True, True, 1)
    assert len(record.asked) == 6 * 3 + 2 * 3
    for kind in TOLD:
        assert len(record.of(kind)) == 3
        assert 0 < summary.ttft_ms[kind]["p50"] <= summary.ttft_ms[kind]["p99"]
    for each in record.of(Kind.OTHER_REPLICA, Kind.AFTER_RESTART):
        assert each.accounts.restored["dram"] >= each.prompt_tokens - 32
    assert all(each.accounts.recomputed["store_down"] for each in record.of(Kind.NODE_DOWN))
    turns = record.of(Kind.TURN)
    assert [each.replica for each in turns] == ["A", "B", "A"]
    assert turns[1].accounts.restored.total() > 0
    assert turns[2].accounts.device > 0 < turns[2].accounts.restored.total()


def test_each_token_is_counted_once(fleet: FakeFleet) -> None:
    record, summary = asked(fleet)
    told = report.plain(record, summary, "direct")
    tokens = told["tokens"]
    parts = (tokens["device"], tokens["host"], tokens["restored"], tokens["recomputed"])
    assert sum(parts) == tokens["prompt"] == sum(each.prompt_tokens for each in record.asked)
    assert sum(tokens["by_reason"].values()) == tokens["recomputed"]
    assert sum(tokens["by_tier"].values()) == tokens["restored"]
    assert set(told["ttft_ms"]) == {
        *("cold", "same_replica", "other_replica", "after_restart", "node_down"),
    }
    json.dumps(told)


def test_without_figures_of_ours_the_engine_counts(
    fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Run.__module__], "COUNTED_S_MAX", 0.0)
    for replica in fleet.replicas.values():
        replica.told = False
    _, summary = asked(fleet)
    assert summary.problems == []
    assert set(summary.accounts.restored) == set(summary.accounts.recomputed) == {"unknown"}


def test_another_answer_is_named(fleet: FakeFleet) -> None:
    fleet.replicas["B"].spoils = True
    _, summary = asked(fleet)
    assert not summary.identical
    assert "task-1 at B (other replica): token 1 of the answer" in summary.problems[0]


def test_nothing_restored_is_a_failure(fleet: FakeFleet) -> None:
    for replica in fleet.replicas.values():
        replica.restores = False
    _, summary = asked(fleet)
    assert summary.identical
    assert any(text.startswith("other replica: 0 of") for text in summary.problems)


def test_tokens_that_nobody_accounts_for(fleet: FakeFleet) -> None:
    record, _ = asked(fleet)
    record.asked[0].accounts.device -= 16
    assert "account for" in summarise(record).problems[0]


def test_the_page_stands_alone(fleet: FakeFleet) -> None:
    record, summary = asked(fleet)
    summary.problems.append("a < b & c")
    text = page.html(record, summary, "direct")
    assert "a &lt; b &amp; c" in text
    assert not any(each in text for each in ("<script", "http://", "https://", "@import", "url("))
    for kind in TOLD:
        # Once for each of light, dark and print.
        assert text.count(f"--{kind}:") == 3
    root = ElementTree.fromstring(text[text.index("<body>") :].removesuffix("</html>\n"))
    pictures = list(root.iter("svg"))
    assert [each.attrib["role"] for each in pictures] == ["img"] * 3
    assert len(list(root.iter("table"))) == 3


def test_conversations_share_no_block_and_stay_the_same() -> None:
    def tokenize(text: str) -> list[int]:
        return list(text.encode())

    plan, again = make(SIZES, tokenize), make(SIZES, tokenize)
    assert plan == again
    all_of = [*plan.known, *plan.unseen, plan.growing]
    assert [len(each.tokens) for each in plan.known] == [200, 400, 600]
    assert len({each.tokens[:48] for each in all_of}) == len(all_of)
    assert all(len(each) == 150 for each in plan.additions)


def test_accounts_from_both_vocabularies() -> None:
    text = (
        'keepwarm_connector_prompt_tokens_total{source="host",reason=""} 32\n'
        'keepwarm_connector_prompt_tokens_total{source="restored_flash",reason=""} 64\n'
        'keepwarm_connector_prompt_tokens_total{source="recomputed",reason="planner"} 5\n'
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 999\n'
    )
    found = Accounts.read(Figures.parse(text))
    assert (found.host, found.restored["flash"], found.recomputed["planner"]) == (32, 64, 5)
    assert found.since(found).prompt == 0
    assert Accounts.read(Figures.parse(text), ours=False).recomputed == {"unknown": 999}


def test_an_engine_that_is_not_there() -> None:
    with FakeReplica(FakeStore(), key="k") as replica:
        client = EngineClient(replica.url)
        with pytest.raises(EngineError, match="401"):
            client.complete([1, 2], 1, "fake")
        assert EngineClient(replica.url, "k").complete([1, 2], 1, "fake").prompt_tokens == 2
    assert not client.is_well()
    with pytest.raises(EngineError, match="does not answer"):
        client.version()
    for url in ("ftp://x", "http://", "http://a:999999", "http://a:x", "http://[::1"):
        with pytest.raises(EngineError, match="give http://host:port"):
            EngineClient(url)


def test_a_key_that_is_no_line_is_refused_and_not_shown() -> None:
    for key in ("secret\nsecret", "", "secr\u00e9t"):
        with pytest.raises(EngineError, match="see its file") as refused:
            EngineClient("http://a", key)
        assert "secr" not in str(refused.value)


def test_an_environment_without_an_engine_is_said(tmp_path: Path) -> None:
    """The replicas end at once, and nothing of node or replicas stays."""
    command = [
        *(sys.executable, "-m", "keepwarm.cli", "demo", "vllm", "--out", str(tmp_path / "out")),
        *("--engine-python", sys.executable, "--model", str(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "replica A ended by itself" in said
    assert "No module named 'vllm'" in said
    assert (tmp_path / "out/replica-A.log").exists()
