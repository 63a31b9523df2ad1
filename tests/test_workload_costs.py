"""The cost model: rates from arithmetic by hand, prices with their sources, files that override."""

from __future__ import annotations

from pathlib import Path

import pytest
from keepwarm.errors import ConfigError
from keepwarm.workload.costs import CostModel, cost_model, gpus_known
from keepwarm.workload.geometry import geometry

SMALL = geometry("Llama-3.1-8B")


def model(**given: object) -> CostModel:
    return cost_model(SMALL, 16, **given)  # type: ignore[arg-type]


def test_prefill_is_arithmetic_over_what_the_gpu_reaches() -> None:
    found = model(gpu="h100", gpus=2, mfu=0.5)
    layer = 4096 * (32 * 128 + 2 * 8 * 128 + 32 * 128) + 3 * 4096 * 14336
    reached = 989e12 * 2 * 0.5
    assert found.prefill_token_s == pytest.approx(2 * 32 * layer / reached)
    assert found.prefill_position_s == pytest.approx(32 * 2 * 32 * (128 + 128) / reached)
    assert found.kv_bytes_per_token == 131_072
    assert "assumption" in found.prefill_source
    assert "data sheet" in found.prefill_source


def test_twice_the_gpus_are_twice_as_fast_and_cost_the_same() -> None:
    one, two = model(gpus=1), model(gpus=2)
    assert two.prefill_s(0, 5000) == pytest.approx(one.prefill_s(0, 5000) / 2)
    assert two.prefill_s(0, 5000) * two.gpus == pytest.approx(one.prefill_s(0, 5000) * one.gpus)


def test_prefill_adds_up_over_chunks() -> None:
    found = model()
    parts = found.prefill_s(0, 3000) + found.prefill_s(3000, 1000) + found.prefill_s(4000, 6)
    assert found.prefill_s(0, 4006) == pytest.approx(parts)
    assert found.prefill_s(9, 0) == 0.0


def test_a_measured_rate_keeps_the_growth() -> None:
    found = model(prefill_tokens_per_s=8000.0)
    assert found.prefill_token_s == 1 / 8000
    derived = model()
    ratio = derived.prefill_position_s / derived.prefill_token_s
    assert found.prefill_position_s / found.prefill_token_s == pytest.approx(ratio)
    assert "as measured" in found.prefill_source


@pytest.mark.parametrize("gpu", gpus_known())
def test_every_gpu_of_the_table_has_a_price_a_peak_and_sources(gpu: str) -> None:
    found = model(gpu=gpu)
    assert found.prices.gpu_hour.value > 0
    assert found.prefill_token_s > 0
    assert "data sheet" in found.prefill_source
    shown = found.as_json()["prices"]
    assert shown["currency"] == "USD"
    for name, each in shown.items():
        if name != "currency":
            assert each["source"]
            assert each["unit"]


def test_a_file_replaces_a_part_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "[prices]\ndram_gib_month = 1.9\n[prices.gpu_hour]\nh100 = 2.1\n"
        "[restore]\ndram = { bytes_per_s = 21e9 }\n[node]\ndram_gib = 1024\n"
    )
    found = model(prices=path)
    assert (found.prices.dram_gib_month.value, found.prices.gpu_hour.value) == (1.9, 2.1)
    assert found.prices.dram_gib_month.source == "mine.toml"
    assert found.prices.gpu_hour.source == "mine.toml"
    assert found.prices.flash_gib_month == model().prices.flash_gib_month
    assert found.restore["dram"].bytes_per_s == 21e9
    assert found.restore["dram"].latency_s == model().restore["dram"].latency_s
    assert found.restore["dram"].source == "mine.toml"
    assert found.node.dram_bytes == 1 << 40
    assert model(prices=path, gpu_hour=9.0).prices.gpu_hour.value == 9.0


def test_another_currency_needs_all_prices(tmp_path: Path) -> None:
    path = tmp_path / "euro.toml"
    path.write_text('currency = "EUR"\n[prices]\ndram_gib_month = 1.9\n')
    with pytest.raises(ConfigError, match="all of its prices"):
        model(prices=path)
    path.write_text(
        'currency = "EUR"\n[prices]\ndram_gib_month = 1.9\nflash_gib_month = 0.1\n'
        "node_month = 200\nnetwork_gib = 0\n[prices.gpu_hour]\nh100 = 2.0\n"
    )
    assert model(prices=path).prices.currency == "EUR"
    # A GPU whose price the file does not give would be in dollars.
    with pytest.raises(ConfigError, match="l4"):
        model(prices=path, gpu="l4")


def test_a_gpu_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[gpus]\nours = { bfloat16 = 100e12 }\n[prices.gpu_hour]\nours = 0.5\n")
    found = model(prices=path, gpu="ours", mfu=1.0)
    assert found.prefill_token_s == pytest.approx(model(mfu=1.0).prefill_token_s * 9.89)
    assert found.prices.gpu_hour.value == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": "z80"}, "h100"),
        ({"gpus": 0}, "gpus is 0"),
        ({"mfu": 0.0}, "mfu is 0"),
        ({"mfu": 1.5}, "mfu is 1.5"),
        ({"gpu_hour": -1.0}, "gpu-hour"),
        ({"prefill_tokens_per_s": 0.0}, "above 0"),
        ({"prices": Path("/nowhere/x.toml")}, "No such file"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(**given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x =", "is not TOML"),
        ("dram = 3", "'dram' is nothing"),
        ('[prices]\ndram_gib_month = "2"', "prices.dram_gib_month is no number"),
        ("[prices]\ndram_gib_month = -2", "prices.dram_gib_month is no number"),
        ("[prices]\ndram_gib_month = nan", "prices.dram_gib_month is no number"),
        ("[restore]\ndram = { bytes_per_s = 0 }", "restore.dram.bytes_per_s is 0"),
        ("[node]\ndram_gib = 0", "a node has DRAM"),
        ("prices = 3", "prices"),
        ("[prices]\ngpu_hour = 3", "gpu_hour"),
        ("node = 7", "node"),
    ],
)
def test_files_that_cannot_be_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        model(prices=path)


def test_scaling_changes_one_thing() -> None:
    found = model()
    assert found.scaled(prefill=2.0).prefill_token_s == found.prefill_token_s / 2
    assert found.scaled(restore=2.0).restore_s("dram", 100) == found.restore_s("dram", 100) / 2
    dearer = found.scaled(dram_gib_month=1.5)
    assert dearer.prices.dram_gib_month.value == 1.5 * found.prices.dram_gib_month.value
    assert dearer.prices.gpu_hour == found.prices.gpu_hour
