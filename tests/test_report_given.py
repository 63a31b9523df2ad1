"""What a report takes from other commands' results, and whether its own words make it again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from keepwarm.cli import main
from keepwarm.testing.fake_engine import FakeEngine
from keepwarm.workload.report import scorecard
from replays import Row, replayed, source

MODEL = ("--model", "Llama-3.1-8B", "--gpu", "l4")
REPLAYED = ["keepwarm", "workload", "replay", "a log.jsonl", "--against", "b=http://b"]


def made(folder: Path, *arguments: str | Path) -> tuple[str, dict[str, Any]]:
    out = folder / "page.html"
    assert main(["workload", "report", *map(str, arguments), "--out", str(out)]) == 0
    return out.read_text(), json.loads(out.with_suffix(".json").read_text())


def by_key(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["key"]: each for each in document["scorecard"]}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chat.jsonl"
    code = main(["workload", "synth", str(path), "--kind", "chat", "--requests", "400"])
    assert code == 0
    return path


FLEET = ("--replica-cache", "1GiB", "--router", "round-robin", "--replicas", "5")


def test_a_reports_own_command_makes_it_again(chat: Path, tmp_path: Path) -> None:
    arguments = (chat, *MODEL, *FLEET)
    page, document = made(tmp_path, *arguments)
    found = by_key(document)
    command = found["device_eviction_rate"]["command"]
    assert document["command"] == command
    assert command in page
    again = by_key(made(tmp_path, *shlex.split(command)[3:])[1])
    for key in ("device_eviction_rate", "cross_replica_routing_rate", "restore_over_recompute"):
        assert again[key]["value"] == found[key]["value"] is not None


def test_money_counts_what_is_beyond_these_engines(chat: Path, tmp_path: Path) -> None:
    """Saved GPU time is near the difference between the two fleets that are simulated."""
    arguments = (chat, *MODEL, *FLEET)
    sized, fleets = (made(tmp_path, *arguments)[1][name] for name in ("size", "fleets"))
    alone, shared = fleets["alone"], fleets["shared"]
    low, high = (each["hit_rate"]["token"] for each in (alone, shared))
    assert high > low + 0.1
    assert any(f"which is {100 * low:.1f} % of the tokens" in note for note in sized["notes"])
    least = next(each for each in sized["curve"] if each["saved_month"]["value"] > 0)
    assert least["hit_rate"]["value"] > low
    gone = (alone["gpu_s"]["spent"] - shared["gpu_s"]["spent"]) * 730 * 3600
    in_month = gone / sized["load"]["span_s"]
    assert sized["best"]["gpu_seconds_saved_month"]["value"] == pytest.approx(in_month, rel=0.35)


def test_of_lengths_alone_nothing_is_said_to_repeat_or_not(tmp_path: Path) -> None:
    log = tmp_path / "lengths.csv"
    rows = [f"{at},{30_000 + at},100" for at in range(50)]
    log.write_text("\n".join(["timestamp,input_tokens,output_tokens", *rows]) + "\n")
    page, document = made(tmp_path, log, "--model", "Llama-3.1-8B")
    found = by_key(document)
    for key in ("hit_rate_prefix", "hit_rate_block", "long_prefix_requests", "hit_rate_sticky"):
        assert found[key]["value"] is None
        assert found[key]["command"] == "needs a trace with blocks"
    assert "No model was given" not in page
    assert "0.0 %" not in page


def test_a_replay_is_shown_with_its_own_command_and_doubts(chat: Path, tmp_path: Path) -> None:
    rows = [Row(at * 0.1, [at % 3, 100 + at], session=at) for at in range(12)]
    result = replayed(tmp_path, source(rows), {"b": FakeEngine()})
    given = tmp_path / "replay.json"
    told: dict[str, Any] = {"command": REPLAYED, "trace": {"name": "rows"}}
    told["problems"] = ["the sender fell behind"]
    given.write_text(json.dumps(result | told))
    page, document = made(tmp_path, chat, "--from", given)
    figure = by_key(document)["replayed_ttft_p99_b"]
    assert figure["value"] == result["targets"][0]["ttft_s"]["p99"]
    assert figure["command"] == shlex.join(REPLAYED)
    assert "(0 of 12 failed)" in figure["definition"]
    assert "is no evidence: the sender fell behind." in page
    assert "is another trace: rows." in page


def test_a_log_is_simulated_anew_unless_a_key_is_given(tmp_path: Path) -> None:
    log, key = tmp_path / "log.jsonl", tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    lines = [
        {
            "timestamp": at,
            "session_id": f"s{at % 7}",
            "request": {"model": "m", "prompt": "a " * 900},
        }
        for at in range(60)
    ]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "a key of this run alone" in made(tmp_path, log, *MODEL)[0]
    page, document = made(tmp_path, log, *MODEL, "--key-file", key)
    assert "a key of this run alone" not in page
    again = made(tmp_path, *shlex.split(document["command"])[3:])[1]
    assert again["scorecard"] == document["scorecard"]


def test_what_a_node_measured() -> None:
    spread = {"p99": 0.002}
    node = {
        "command": ["keepwarm", "workload", "replay", "t", "--node", "n"],
        "gib_per_s": {"get": 2.0},
        "latencies_s": {"get": {"p99": 0.001}, "restored_from_due": spread},
    }
    found = {each.key: each for each in scorecard.measured({"node": node})}
    assert found["restore_bandwidth"].value == 2 << 30
    assert found["restore_latency_p99"].value == 0.002  # from its due time, as it is defined
    assert found["restore_latency_p99"].command == "keepwarm workload replay t --node n"
    idle = node | {"gib_per_s": {"get": None}, "latencies_s": {"restored_from_due": {"p99": None}}}
    for each in scorecard.measured({"node": idle})[2:4]:
        assert (each.value, each.basis) == (None, "missing")


def test_a_bench_of_a_few_figures_will_do() -> None:
    bench = {"tcp_get_over_socket": 0.9, "details": {}, "machine": {}}
    bench["details"] = {"tcp_get_over_socket": {"command": "keepwarm bench --only tcp_get"}}
    found = {each.key: each for each in scorecard.measured({"bench": bench})}
    assert found["tcp_get_over_socket"].command == "keepwarm bench --only tcp_get"
    assert found["shm_get_over_memcpy"].basis == "missing"
