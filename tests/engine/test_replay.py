"""A replay against two real replicas, without and with Keepwarm: same arrivals, same answers.

The command runs in the environment that `keepwarm` on the path belongs to, since an engine's has
no histograms.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keepwarm.engines.replica import Replica, ReplicaConfig, transfer_config
from keepwarm.testing import NodeProcess, synthetic
from keepwarm.testing.synthetic import AgentShape
from nodes import short_folder

from engine.harness import VOCABULARY, engine_python

BLOCK = 32
DEVICE_BLOCKS = 64
SHAPE = AgentShape(
    tools_tokens=320,
    system_tokens=64,
    task_tokens=(256, 320),
    tool_result_tokens=(32, 64),
    output_tokens=(2, 4),
    context_tokens_max=2000,
    sub_agent_share=0.0,
    think_s=(2.0, 3.0),
)
REPLAY_S_MAX = 120


@pytest.fixture(scope="module")
def command() -> str:
    found = shutil.which("keepwarm")
    if found is None:
        pytest.skip("no keepwarm command on the path: make test-engine has one")
    return found


@pytest.fixture(scope="module")
def replicas(model: Callable[[str], Path], node: NodeProcess) -> Iterator[dict[str, Replica]]:
    """Two whose devices hold less than the trace's sessions together."""
    transfers = {
        "baseline": None,
        # So small a model computes faster than anything restores.
        "keepwarm": transfer_config("direct", node.address, planner="always", load_deadline_s=5.0),
    }
    with short_folder() as folder:
        made = {}
        for name, transfer in transfers.items():
            config = ReplicaConfig(
                python=engine_python(),
                model=model("micro"),
                transfer=transfer,
                context_tokens=1024,
                threads=1,
                extra=(
                    *("--skip-tokenizer-init", "--enable-prompt-tokens-details"),
                    *("--num-gpu-blocks-override", str(DEVICE_BLOCKS)),
                ),
            )
            made[name] = Replica(name, config, folder)
            made[name].start()
        try:
            for each in made.values():
                each.wait_ready()
            yield made
        finally:
            for each in made.values():
                each.kill()


def test_the_same_arrivals_with_and_without(
    command: str, replicas: dict[str, Replica], tmp_path: Path
) -> None:
    trace = tmp_path / "agents.jsonl"
    made = synthetic.coding_agents(10, 3, 20261201, block_tokens=BLOCK, stagger_s=0.25, shape=SHAPE)
    with trace.open("w") as lines:
        for request in made.requests:
            row = {
                "timestamp": request.arrival_s * 1000,
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.block_ids),
            }
            lines.write(json.dumps(row) + "\n")
    targets = [f"{name}={replica.client.url}" for name, replica in replicas.items()]
    answer = subprocess.run(
        [
            *(command, "workload", "replay", str(trace), "--json", "--order", "sequential"),
            *("--block-tokens", str(BLOCK), "--vocabulary", str(VOCABULARY), "--timeout", "60s"),
            # A machine that also runs the engines keeps no time; this test is about answers.
            *("--lag-max", "60s"),
            *(part for target in targets for part in ("--against", target)),
        ],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=REPLAY_S_MAX,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    result: dict[str, Any] = json.loads(answer.stdout)
    baseline, warm = result["targets"]
    count = len(made.requests)
    assert (baseline["completed"], warm["completed"]) == (count, count), result["notes"]
    assert baseline["tokens"]["prompt"] == warm["tokens"]["prompt"] == made.input_tokens()
    compared = result["comparisons"][0]["answers"]
    assert (compared["compared"], compared["different"]) == (count, 0)
    # The device forgets sessions before they come back; the node does not.
    assert warm["tokens"]["cached_share"] > baseline["tokens"]["cached_share"] + 0.1
    assert result["comparisons"][0]["ttft_ratio"]["pairs"] == count
