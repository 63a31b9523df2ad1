"""Many requests, a cache that is too small, aborts at any moment: nothing leaks, all tokens count.

KEEPWARM_TEST_SCALE=33 makes it 10,000 requests.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from keepwarm.testing import NodeProcess

from engine.direct import Direct, connector, resources
from engine.harness import Engine, prompt

SCALE = int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))
REQUESTS = 300 * SCALE
TOKENS_MAX = 256
FAMILIES = 12


@pytest.fixture(scope="module")
def direct(make_engine: Callable[..., Engine], node: NodeProcess) -> Direct:
    # 2 layers x 32 tokens x 512 B = 32 KiB a block: 30 blocks for up to 10 requests of up to 9
    engine = make_engine(
        "micro",
        connector(node.address, lookup_deadline_s=10.0),  # a busy machine is not what is tested
        num_gpu_blocks_override=30,
        max_num_seqs=10,
        max_num_batched_tokens=256,
        max_model_len=512,
    )
    found = Direct(engine)
    found.joined()
    return found


def asked(draw: random.Random) -> list[int]:
    """Prompts of a few families, so that some of them begin like earlier ones."""
    return prompt(draw.randrange(FAMILIES), draw.randint(1, TOKENS_MAX))


def test_preempted_requests_give_the_same_tokens(direct: Direct) -> None:
    engine = direct.engine
    prompts = [prompt(500 + at, 90) for at in range(10)]
    alone = [engine.ask(each, max_tokens=50).tokens for each in prompts]
    direct.stored()
    engine.forget()
    before = engine.metrics()["vllm:num_preemptions"]
    names = [engine.add(each, max_tokens=50) for each in prompts]
    answers = engine.finish(names)
    assert engine.metrics()["vllm:num_preemptions"] > before
    assert [answers[name].tokens for name in names] == alone
    direct.at_rest()


def test_random_requests_with_aborts(direct: Direct) -> None:
    seed = int(os.environ.get("KEEPWARM_TEST_SEED", "20"))
    print(f"KEEPWARM_TEST_SEED={seed}")
    draw, engine = random.Random(seed), direct.engine
    open_requests: dict[str, list[int]] = {}
    answers: list[tuple[list[int], list[int]]] = []
    started, before = 0, None
    while started < REQUESTS or open_requests:
        while started < REQUESTS and len(open_requests) < 14:
            tokens = asked(draw)
            open_requests[engine.add(tokens, max_tokens=draw.randint(1, 12))] = tokens
            started += 1
        for output in engine.step():
            if output.finished and output.request_id in open_requests:
                given = open_requests.pop(output.request_id)
                answers.append((given, list(output.outputs[0].token_ids)))
        if open_requests and draw.random() < 0.06:
            name = draw.choice(list(open_requests))
            engine.abort([name])
            del open_requests[name]
        if started >= REQUESTS // 3 and before is None:
            before = resources()
        if draw.random() < 0.01 and not engine.scheduler.running:
            engine.llm.reset_prefix_cache()
    direct.at_rest()
    assert before is not None
    threads, descriptors = resources()
    assert threads <= before[0] + 2
    assert descriptors <= before[1] + 2
    assert direct.restored() > 0
    for given, got in draw.sample(answers, 20):
        engine.ask(given, max_tokens=len(got))
        assert engine.ask(given, max_tokens=len(got)).tokens == got
    direct.at_rest()


def test_resets_of_the_connector_in_the_middle_of_requests(direct: Direct) -> None:
    """Each one moves both halves to a new namespace, whatever loads and stores are under way."""
    engine, session = direct.engine, direct.scheduler.session
    prompts = [prompt(600 + at, 100 + 9 * at) for at in range(10)]
    alone = [engine.ask(each, max_tokens=4).tokens for each in prompts]
    direct.stored()
    engine.forget()
    names = [engine.add(each, max_tokens=4) for each in prompts]
    engine.until(lambda: bool(direct.scheduler._loads), "a load is under way")
    before = session.generation
    answers = engine.finish(
        names, each_step=lambda: engine.llm.reset_prefix_cache(reset_connector=True)
    )
    assert session.generation > before
    assert [answers[name].tokens for name in names] == alone
    engine.ask(prompts[0], max_tokens=1)  # a step tells the workers of the last one
    assert direct.worker.session.generation == session.generation
    assert direct.worker.session.namespace.fingerprint == session.namespace.fingerprint
    direct.at_rest()
    engine.until(lambda: restores(direct, prompt(699, 100)), "hits of its own", limit_s=60.0)
    direct.at_rest()


def restores(direct: Direct, asked: list[int]) -> bool:
    """Stores a prompt, forgets it on the device, and asks again."""
    direct.engine.ask(asked, max_tokens=1)
    direct.stored()
    direct.engine.forget()
    return direct.engine.ask(asked, max_tokens=1).cached_tokens == 96
