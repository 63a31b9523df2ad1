"""16 blocks of host pool, 40 on the device: evictions, preemptions, and books that agree."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest
from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import NodeProcess

from engine.harness import BLOCK_TOKENS, Engine, prompt
from engine.tiers import (
    BRIEF,
    assert_at_rest,
    assert_books_agree,
    connector,
    joined,
    reference,
    tier_of,
)

HOST_CHUNKS = 16
DEVICE_BLOCKS = 40
REQUESTS = 24
SETTLES_S_MAX = 120.0


@pytest.fixture(scope="module")
def engine(make_engine: Callable[..., Engine], node: NodeProcess) -> Engine:
    return make_engine(
        "tiny",
        connector(node.address, chunks=HOST_CHUNKS, **BRIEF),
        max_model_len=1024,
        num_gpu_blocks_override=DEVICE_BLOCKS,
    )


def test_more_hits_than_slots_restore_what_fits(engine: Engine) -> None:
    tier = joined(tier_of(engine))
    tokens = prompt(1, 30 * BLOCK_TOKENS + 1)
    expected = reference(engine, tokens)
    for blocks in range(8, 31, 8):  # stored piece by piece: the pool has no room for all
        engine.ask(tokens[: blocks * BLOCK_TOKENS + 1])
        engine.forget(connector=True)
    loads = tier.transfers.counts["loads"]
    answer = engine.ask(tokens)
    assert answer.tokens == expected.tokens
    assert answer.cached_tokens == HOST_CHUNKS * 3 // 4 * BLOCK_TOKENS
    assert tier.transfers.counts["loads"] - loads == 1
    recomputed = tier.accounting.totals().recomputed
    assert recomputed[Recomputed.HOST_POOL_FULL] >= 12 * BLOCK_TOKENS
    assert_at_rest(engine, tier)
    assert_books_agree(engine, tier)


def test_the_books_agree_over_a_mixed_run(engine: Engine, node: NodeProcess) -> None:
    """Evictions, short prompts, preemptions, aborts, and a node that is stopped and killed."""
    tier = joined(tier_of(engine))
    draw = random.Random(7)
    families = [prompt(100 + n, 700) for n in range(6)]
    alive: list[str] = []
    for number in range(REQUESTS):
        family, length = draw.randrange(len(families)), draw.randrange(1, 700)
        alive.append(engine.add(families[family][:length], max_tokens=draw.choice((1, 4, 16))))
        for _ in range(draw.randrange(1, 6)):
            engine.step()
        if draw.random() < 0.15:
            engine.abort([alive.pop(draw.randrange(len(alive)))])
        if number == REQUESTS // 3:
            os.kill(node.pid, signal.SIGSTOP)
        if number == REQUESTS // 2:
            os.kill(node.pid, signal.SIGCONT)
        if number == REQUESTS * 3 // 4:
            node.kill()
            node.start()
    # More at once than the device has blocks for, once they have grown.
    for n in range(8):
        engine.add(families[n % 6][:130], max_tokens=90)
    engine.settle(SETTLES_S_MAX)
    assert engine.metrics()["vllm:num_preemptions"] > 0, "the run must preempt"
    assert_at_rest(engine, tier)
    assert_books_agree(engine, tier)
    totals = tier.accounting.totals()
    assert totals.restored.get("dram", 0) > 0
    assert {Recomputed.ABSENT, Recomputed.PARTIAL_BLOCK} <= set(totals.recomputed)
