"""A real `vllm serve` as the demo runs it: it answers, shares a node, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepwarm.engines.replica import Replica, ReplicaConfig
from keepwarm.testing import eventually
from nodes import short_folder

from engine.harness import engine_python

SHARED = Path("/dev/shm")


@pytest.fixture(scope="module")
def replica(model: Callable[[str], Path]) -> Iterator[Replica]:
    config = ReplicaConfig(
        python=engine_python(),
        model=model("micro"),
        context_tokens=1024,
        kv_bytes=64 << 20,
        threads=1,
        extra=("--skip-tokenizer-init",),
    )
    with short_folder() as folder:
        made = Replica("A", config, folder)
        yield made
        made.kill()


def test_it_answers_and_leaves_nothing(replica: Replica) -> None:
    before = set(SHARED.iterdir())
    replica.start()
    replica.wait_ready()
    family = replica.processes()
    assert len(family) >= 3
    client = replica.client
    assert client.version().startswith("0.32")
    prompt = [at % 1000 + 1 for at in range(300)]
    first, again = (client.complete(prompt, 4, "demo") for _ in range(2))
    assert first.tokens == again.tokens
    assert (len(first.tokens), first.prompt_tokens) == (4, 300)
    assert 0 < first.first_token_s <= first.seconds
    assert client.figures().by("vllm:prompt_tokens_by_source_total", "source") == {
        "local_compute": 300 + 300 - 288,
        "local_cache_hit": 288,
        "external_kv_transfer": 0,
    }
    replica.stop()
    eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in family), "all have ended")
    assert set(SHARED.iterdir()) <= before
