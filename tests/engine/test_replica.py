"""A real `vllm serve` as the demo runs it: it restores after a restart and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepwarm.demo.vllm.accounts import Accounts
from keepwarm.engines.replica import Replica, ReplicaConfig, transfer_config
from keepwarm.ops.doctor.vllm import examine
from keepwarm.testing import NodeProcess, eventually
from nodes import short_folder

from engine.harness import engine_python

SHARED = Path("/dev/shm")
PROMPT = [at % 1000 + 1 for at in range(600)]
WHOLE = 576  # tokens of it that lie in whole blocks of 32, but for the last


@pytest.fixture(scope="module")
def replica(model: Callable[[str], Path], node: NodeProcess) -> Iterator[Replica]:
    config = ReplicaConfig(
        python=engine_python(),
        model=model("micro"),
        # So small a model computes faster than anything restores.
        transfer=transfer_config("direct", node.address, planner="always", load_deadline_s=5.0),
        context_tokens=1024,
        kv_bytes=64 << 20,
        threads=1,
        extra=("--skip-tokenizer-init",),
    )
    with short_folder() as folder:
        made = Replica("A", config, folder)
        yield made
        made.kill()


def test_a_restart_restores_and_nothing_stays(replica: Replica, node: NodeProcess) -> None:
    before = set(SHARED.iterdir())
    replica.start()
    replica.wait_ready()
    family = replica.processes()
    assert len(family) >= 3
    assert replica.client.version().startswith("0.32")
    replica.client.complete(PROMPT, 8, "demo")
    reference = replica.client.complete(PROMPT, 8, "demo")
    assert (len(reference.tokens), reference.prompt_tokens) == (8, len(PROMPT))
    assert 0 < reference.first_token_s <= reference.seconds
    eventually(lambda: node.stat()["stored"] >= WHOLE // 32, "the prompt is stored")
    replica.stop()
    eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in family), "all have ended")
    assert set(SHARED.iterdir()) <= before

    replica.start()
    replica.wait_ready()
    restored = replica.client.complete(PROMPT, 8, "demo")
    assert restored.tokens == reference.tokens
    eventually(lambda: accounts(replica).prompt == len(PROMPT), "the prompt is counted")
    assert accounts(replica).restored == {"dram": WHOLE}
    report = examine([replica.client.url])
    wrong = [check for check in report.checks if check.level != "ok"]
    told = {check.name.partition(" ")[0]: check.figure for check in report.checks}
    assert not wrong
    assert told["failures"] == "a failed load is recomputed"
    assert told["block"] == "32 tokens"
    assert told["hits"].startswith(f"{WHOLE} of {len(PROMPT)} prompt tokens restored")


def accounts(replica: Replica) -> Accounts:
    return Accounts.read(replica.client.figures())
