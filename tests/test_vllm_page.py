"""docs/vllm.md against what it tells of: its command lines, metrics, reasons and settings."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from keepwarm.adapter.figures import CATALOGUE, INFO
from keepwarm.adapter.reasons import Recomputed
from keepwarm.adapter.settings import Settings, parse_settings
from keepwarm.engines.replica import Connector, ReplicaConfig, transfer_config

PAGE = (Path(__file__).parent.parent / "docs/vllm.md").read_text()
ADDRESS = "unix:/run/keepwarm/keepwarm.sock"
LINES = [json.loads(each) for each in re.findall(r"--kv-transfer-config '(\{.*?\})'", PAGE, re.S)]


def test_the_lines_to_copy_are_those_that_the_demo_runs() -> None:
    direct, gpu, cpu = LINES
    assert direct == transfer_config("direct", ADDRESS)
    assert cpu == transfer_config("tier", ADDRESS)
    for line in (gpu, cpu):
        (tier,) = line["kv_connector_extra_config"]["secondary_tiers"]
        assert tier["type"] == "KeepwarmTier"
    assert all(line["kv_load_failure_policy"] == "recompute" for line in LINES)


@pytest.mark.parametrize("connector", ["direct", "tier"])
def test_settings_of_the_demo_are_settings(connector: Connector) -> None:
    given = transfer_config(connector, ADDRESS, planner="always")["kv_connector_extra_config"]
    if connector == "tier":
        (given,) = given["secondary_tiers"]
        assert given["module_path"] == "keepwarm.connectors.vllm"
    own = {key: given[key] for key in ("address", "planner")}
    assert parse_settings(own, "here").planner == "always"


def test_every_metric_that_it_names_is_there() -> None:
    known = {figure.name: figure for figure in CATALOGUE}
    named = set(re.findall(r"keepwarm_(?:connector|planner)_\w+", PAGE))
    assert len(named) > 15
    assert named <= set(known)
    for name, labels in re.findall(r"(keepwarm_\w+)\{([\w, ]+)\}", PAGE):
        assert labels.split(", ") == list(known[name].labels)
    assert f"{INFO.name}{{{', '.join(INFO.labels)}}}" in PAGE


def test_every_reason_has_a_row() -> None:
    rows = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    for reason in Recomputed:
        assert f"`{reason}`" in rows


def test_every_setting_that_it_names_is_one() -> None:
    named = set(re.findall(r'`"(\w+)"', PAGE)) - {"blocks_per_chunk"}
    assert {"address", "weights", "weights_fixed", "tenant", "secret"} == named
    assert named <= {each.name for each in fields(Settings)}


def test_what_a_replica_is_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_ADDRESS", "unix:/elsewhere")
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    config = ReplicaConfig(
        python=tmp_path / "python", model=tmp_path, transfer=transfer_config("direct", ADDRESS)
    )
    arguments = config.arguments(8000)
    assert json.loads(arguments[arguments.index("--kv-transfer-config") + 1]) == LINES[0]
    environment = config.environment(tmp_path / "modules")
    assert "KEEPWARM_ADDRESS" not in environment
    assert "VLLM_USE_V1" not in environment
    assert environment["PYTHONPATH"] == str(tmp_path / "modules")
    assert "--kv-transfer-config" not in ReplicaConfig(
        python=tmp_path / "python", model=tmp_path
    ).arguments(8000)
