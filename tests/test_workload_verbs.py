"""`workload describe` and `size` as commands, on generated traces and on public ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from keepwarm import cli
from keepwarm.testing import synthetic
from keepwarm.testing.traces import MOONCAKE_FILE, WEKA_FILE, find, read_weka
from trace_models import written

AZURE = Path("azure-llm-2023")
BLOCK = ("--session-field", "session")


def azure_like(path: Path, seed: int, requests: int = 2000) -> Path:
    """Arrivals and lengths as Azure's have them: short prompts, nothing else known."""
    rng = random.Random(seed)
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number in range(requests):
        tokens = min(7500, int(rng.lognormvariate(6.9, 0.8)))
        minute, second = divmod(number, 60)
        at = f"2023-11-16 18:{minute:02d}:{second:02d}.0000000"
        rows.append(f"{at},{tokens},{rng.randrange(5, 400)}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(
        synthetic.coding_agents(12, 20, seed=4), tmp_path_factory.mktemp("t") / "agents.jsonl"
    )


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert cli.main(["workload", *map(str, arguments)]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(told(capsys, *arguments, "--json"))
    return shown


def test_coding_agents_are_strong_and_it_is_explained(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "describe", agents, "--model", "Llama-3.3-70B", *BLOCK)
    assert said.startswith("verdict: strong\n")
    assert "of all tokens repeat as prefixes" in said
    assert "sticky router" in said
    assert "327,680" in said
    shown = as_json(capsys, "describe", agents, "--model", "Llama-3.3-70B", *BLOCK)
    assert shown["verdict"]["advice"] == "strong"
    assert shown["measures"]["reuse_by_prefix"]["tokens"]["value"] > 0.8
    assert shown["kv"]["session_bytes"]["p50"] > 10_000 * 327_680


def test_azure_like_prompts_are_not_worth_it_and_it_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = azure_like(tmp_path / "lengths.csv", seed=1)
    said = told(capsys, "describe", path, "--model", "Llama-3.1-8B")
    assert said.startswith("verdict: do not deploy\n")
    assert "lengths only" in said
    assert "even if every prompt repeated" in " ".join(said.split())
    assert "would change it" in said
    assert "lengths only" in told(capsys, "size", path, "--model", "Llama-3.1-8B", code=2)


def test_unique_prompts_with_hashes_are_not_worth_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(2)
    rows: list[dict[str, Any]] = []
    for number in range(400):
        tokens = rng.randrange(200, 4000)
        ids = [number * 100 + at for at in range(-(-tokens // 64))]
        rows.append({"timestamp": number * 1000, "input_length": tokens, "output_length": 9})
        rows[-1] |= {"hash_ids": ids, "block_size": 64}
    path = tmp_path / "unique.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    shown = as_json(capsys, "describe", path)
    assert shown["verdict"]["advice"] == "do not deploy"
    assert shown["verdict"]["reason"].startswith("prompts are mostly unique and short")
    sized = as_json(capsys, "size", path, "--model", "Llama-3.1-8B")
    assert (sized["answer"], sized["plan"]) == ("none", None)
    assert sized["reason"].startswith("none:")


def test_size_for_a_hit_rate(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (
        as_json(capsys, "size", agents, "--model", "Llama-3.3-70B", "--target", f"hit-rate={rate}")
        for rate in ("0.5", "0.8")
    )
    for shown, rate in ((small, 0.5), (large, 0.8)):
        plan = shown["plan"]
        assert shown["answer"] == "memory"
        assert plan["hit_rate"]["value"] - plan["hit_rate"]["error"] >= rate - 1e-9
        assert plan["dram_bytes"] + plan["flash_bytes"] == plan["capacity_bytes"]
        assert plan["net_month"]["value"] == pytest.approx(
            plan["saved_month"]["value"] - plan["spent_month"]["total"]
        )
        low, high = (shown["capacity_range"][f"{end}_blocks"] for end in ("low", "high"))
        assert low <= plan["capacity_blocks"] <= high
    assert small["plan"]["capacity_bytes"] < large["plan"]["capacity_bytes"]
    rates = [each["hit_rate"]["value"] for each in large["curve"]]
    assert rates == sorted(rates)
    above = as_json(capsys, "size", agents, "--model", "Llama-3.3-70B", "--target", "hit-rate=1")
    assert above["answer"] == "none"
    assert "an unbounded memory would find" in above["reason"]


def test_size_for_money_with_every_price_and_source(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("size", agents, "--model", "Llama-3.3-70B", "--gpus", "4", "--gpu-hour", "2.5")
    shown = as_json(capsys, *arguments)
    assert shown["answer"] == "memory"
    assert shown["plan"]["net_month"]["value"] > 0
    prices = shown["costs"]["prices"]
    assert prices["currency"] == "USD"
    assert prices["gpu_hour"] == {
        "value": 2.5,
        "unit": "hour of one h100",
        "source": "as given (--gpu-hour)",
    }
    assert all(each["source"] for name, each in prices.items() if name != "currency")
    assert shown["break_even"]["smallest"]["bytes"] <= shown["plan"]["capacity_bytes"]
    assert len(shown["sensitivity"]) == 28
    said = told(capsys, *arguments)
    assert said.startswith("for most money left: ")
    assert "USD" in said
    assert "as given (--gpu-hour)" in said


def test_engines_own_memory_leaves_less_to_save(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("size", agents, "--model", "Llama-3.3-70B", "--target", "hit-rate=0.8")
    alone = as_json(capsys, *arguments)
    beside = as_json(capsys, *arguments, "--engine-cache", "60GiB")
    assert beside["plan"]["saved_month"]["value"] < alone["plan"]["saved_month"]["value"]
    assert beside["load"]["engine_cache_bytes"] == 60 << 30


def test_skipped_records_are_told(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = agents.with_name("broken.jsonl")
    broken.write_text(agents.read_text() + '{"timestamp": 1, "input_le\n')
    assert cli.main(["workload", "describe", str(broken)]) == 0
    said = capsys.readouterr()
    assert "keepwarm: 1 record: " in said.err
    assert "broken.jsonl" in said.err
    assert sum(as_json(capsys, "describe", broken)["skipped"].values()) == 1


DRAM = ("simulate", "{agents}", "--capacity", "dram=100GiB")
LONG = ("--prefix-blocks", "99999999999")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("describe", "/nowhere.jsonl"), "nowhere.jsonl"),
        (("size", "{agents}", "--model", "nothing-9"), "not in the table of models"),
        (("size", "{agents}", "--model", "Llama-3-8B", "--target", "best"), "hit-rate=0.6"),
        (("size", "{agents}", "--model", "Llama-3-8B", "--gpu", "z80"), "h100"),
        (("size", "{agents}", "--model", "Llama-3-8B", "--engine-cache", "x"), "engine-cache"),
        (("describe", "{agents}", "--model", "Kimi-K3", "--kv-dtype", "int3"), "kv-dtype"),
        (("size", "{agents}", "--model", "Kimi-K3"), "--prefill-tokens-per-second"),
        (("size", "{agents}"), "--model"),
        (("curve", "{agents}", "--seed", "-1"), "seed is -1"),
        (("curve", "{agents}", "--points", "0"), "0 blocks"),
        (("simulate", "{agents}", "--capacity-blocks", "5000000000"), "2^32 - 1"),
        ((*DRAM, "--kv-bytes-per-token", "nan"), "--kv-bytes-per-token"),
        ((*DRAM, "--kv-bytes-per-token", "1e8", "--as-node", "all"), "no node has"),
        ((*DRAM, "--model", "Llama-3-8B", "--router", "prefix-hash", *LONG), "prefix_blocks"),
        ((*DRAM, "--model", "Llama-3-8B", "--replicas", "9999999999"), "replicas"),
    ],
)
def test_slips_are_told_in_a_line(
    agents: Path, arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.format(agents=agents) for each in arguments]
    said = told(capsys, *given, code=2)
    assert says in said
    assert said.count("\n") == 1
    assert "Traceback" not in said


def test_a_model_without_arithmetic_takes_a_measured_rate(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = as_json(
        capsys, "size", agents, "--model", "Kimi-K3", "--prefill-tokens-per-second", "9000"
    )
    assert "9000 tokens/s as measured" in shown["costs"]["prefill"]["source"]


@pytest.mark.parametrize("name", ["code", "conv"])
def test_azures_own_traces(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = find(AZURE / f"AzureLLMInferenceTrace_{name}.csv")
    if path is None:
        pytest.skip("no public traces here: set KEEPWARM_TRACES")
    shown = as_json(capsys, "describe", path, "--model", "Llama-3.1-8B")
    assert shown["verdict"]["advice"] == "do not deploy"
    assert "short" in shown["verdict"]["reason"]


def test_mooncakes_conversations(capsys: pytest.CaptureFixture[str]) -> None:
    path = find(MOONCAKE_FILE)
    if path is None:
        pytest.skip("no public traces here: set KEEPWARM_TRACES")
    shown = as_json(capsys, "describe", path)
    assert shown["verdict"]["advice"] == "worth a pilot"
    reuse = shown["measures"]["reuse_by_prefix"]["tokens"]
    assert abs(reuse["value"] - 0.3736) <= max(reuse["error"], 0.0005)


def test_recorded_coding_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = find(WEKA_FILE)
    if path is None:
        pytest.skip("no public traces here: set KEEPWARM_TRACES")
    merged = written(read_weka(path, sessions=30), tmp_path / "weka.jsonl")
    shown = as_json(capsys, "describe", merged, "--model", "Qwen3-Coder-480B-A35B", *BLOCK)
    assert shown["verdict"]["advice"] == "strong"
    assert shown["measures"]["reuse_by_prefix"]["tokens"]["value"] > 0.9
    assert "sticky router" in shown["verdict"]["reason"]


def test_a_p99_is_simulated_and_more_memory_is_not_slower(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("size", agents, "--model", "Llama-3.3-70B", "--replicas", "4")
    first = as_json(capsys, *arguments, "--target", "p99-ttft=1h")
    without = first["p99_ttft_without_s"]
    assert first["plan"]["capacity_blocks"] == 0
    assert without > 1
    needed = []
    for share in (0.8, 0.5):
        shown = as_json(capsys, *arguments, "--target", f"p99-ttft={share * without:.3f}s")
        assert shown["answer"] == "memory"
        assert shown["p99_ttft_s"] <= share * without
        assert shown["p99_ttft_without_s"] == without
        needed.append(shown["plan"]["capacity_blocks"])
    assert 0 < needed[0] <= needed[1]
    assert "P99 of 4 replicas of 1 GPUs (as given)" in first["notes"][0]
    never = as_json(capsys, *arguments, "--target", "p99-ttft=1ms")
    assert never["answer"] == "none"
    assert "the P99 is still" in never["reason"]


def test_the_readme_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line of its example comes from its own three commands."""
    readme = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    section = readme.partition("## Does it pay for my traffic?")[2].partition("\n## ")[0]
    _, commands, _, shown, _ = section.split("```")
    trace = tmp_path / "agents.parquet"
    said = ""
    for line in commands.strip().splitlines():
        words = [word.replace("agents.parquet", str(trace)) for word in line.split()]
        assert words[:2] == ["keepwarm", "workload"]
        said += told(capsys, *words[2:])
    printed = " ".join(said.split())
    for block in shown.strip().split("\n\n"):
        lines = block.splitlines()
        whole = [" ".join(lines)] if lines[0].startswith("verdict") else lines
        for part in (part for line in whole for part in line.split("(…)")):
            assert " ".join(part.split()) in printed
