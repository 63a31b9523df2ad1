"""The demo end to end, small: real node, two real replicas, kill -9 in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ASKED = ("--trace", "generated", "--sessions", "3", "--turns", "32", "--arena-share", "0.4")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "keepwarm.cli", "demo", "--out", str(out), *ASKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out


def test_it_adds_up_and_says_so(ran: tuple[str, Path]) -> None:
    text, _ = ran
    assert "everything adds up" in text
    assert "these sessions are generated; no user ever had them" in text
    assert "kill -9" in text


def test_the_json_holds_every_token(ran: tuple[str, Path]) -> None:
    told: dict[str, Any] = json.loads((ran[1] / "demo.json").read_text())
    tokens = told["tokens"]
    assert told["problems"] == []
    assert told["synthetic"] is True
    counted = sum(tokens["restored"].values()) + sum(tokens["missed"].values())
    assert counted == tokens["asked"] == sum(turn["asked"] for turn in told["turns"])
    assert tokens["missed"]["store_down"] > 0
    assert told["wrong_bytes"] == 0
    assert told["bytes_verified"] > 0
    assert told["ideal_rate"] >= told["hit_rate"] > 0
    assert told["first_hit_after_kill_s"] > 0
    assert {row["life"] for row in told["reconciled"]} == {"before the kill", "after the restart"}


def test_the_picture_is_well_formed(ran: tuple[str, Path]) -> None:
    root = ET.fromstring((ran[1] / "demo.svg").read_text())
    assert root.attrib["role"] == "img"


def test_a_trace_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPWARM_TRACES", str(tmp_path))
    command = [sys.executable, "-m", "keepwarm.cli", "demo", "--trace", "recorded"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no recorded sessions" in done.stdout.replace("\n", " ")
