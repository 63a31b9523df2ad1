"""The tier below vLLM: what it restores is what the engine itself would have kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from keepwarm.adapter.reasons import Recomputed
from keepwarm.connectors.vllm.asking import Phase
from keepwarm.connectors.vllm.tier import KeepwarmTier
from keepwarm.testing import NodeProcess
from prometheus_client import REGISTRY

from engine.harness import BLOCK_TOKENS, Engine, prompt
from engine.tiers import (
    assert_at_rest,
    assert_books_agree,
    connector,
    joined,
    reference,
    tier_of,
)

LENGTHS = (1, 31, 32, 33, 128, 1056, 4000)


@pytest.fixture(scope="module")
def engine(make_engine: Callable[..., Engine], node: NodeProcess) -> Engine:
    return make_engine("tiny", connector(node.address))


@pytest.fixture
def tier(engine: Engine) -> Iterator[KeepwarmTier]:
    tier = joined(tier_of(engine))
    yield tier
    assert_at_rest(engine, tier)
    assert_books_agree(engine, tier)


@pytest.mark.parametrize("length", LENGTHS)
def test_restored_output_is_that_of_the_engines_own_cache(
    engine: Engine, tier: KeepwarmTier, length: int
) -> None:
    expected = reference(engine, prompt(length, length))
    engine.forget(connector=True)
    asked, restored = tier.lookups.counts["asked"], sum(tier.accounting.totals().restored.values())
    answer = engine.ask(prompt(length, length))
    assert answer.tokens == expected.tokens
    whole = length // BLOCK_TOKENS * BLOCK_TOKENS
    assert answer.cached_tokens == whole
    assert tier.lookups.counts["asked"] - asked == (1 if whole else 0), "one round trip a prompt"
    assert sum(tier.accounting.totals().restored.values()) - restored == whole


def test_what_the_host_pool_and_the_device_have_is_not_asked_for(
    engine: Engine, tier: KeepwarmTier
) -> None:
    tokens = prompt(10, 1056)
    expected = reference(engine, tokens)
    engine.forget(connector=True)
    engine.ask(tokens[:512])
    engine.settle()
    engine.forget()
    engine.ask(tokens[:256])
    before = tier.accounting.totals()
    answer = engine.ask(tokens)
    after = tier.accounting.totals()
    assert answer.tokens == expected.tokens
    assert after.device - before.device == 256
    assert after.host - before.host == 256
    assert after.restored["dram"] - before.restored["dram"] == 1056 - 512


@pytest.mark.usefixtures("tier")
def test_a_mixed_batch_gets_its_own_blocks(engine: Engine) -> None:
    shared = prompt(20, 320)
    prompts = [shared[: 64 * n] + prompt(21 + n, 50 * n) for n in range(1, 6)]
    expected = [reference(engine, tokens).tokens for tokens in prompts]
    engine.forget(connector=True)
    names = [engine.add(tokens) for tokens in prompts * 2]
    answers = engine.finish(names)
    assert [answers[name].tokens for name in names] == expected * 2


@pytest.mark.usefixtures("tier")
def test_a_salt_keeps_requests_apart(engine: Engine) -> None:
    tokens = prompt(30, 320)
    expected = reference(engine, tokens, salt="one")
    engine.forget(connector=True)
    assert engine.ask(tokens, salt="two").cached_tokens == 0
    engine.forget(connector=True)
    answer = engine.ask(tokens, salt="one")
    assert (answer.tokens, answer.cached_tokens) == (expected.tokens, 320)


def test_at_most_so_many_blocks_a_step_and_all_in_the_end(
    engine: Engine, tier: KeepwarmTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(40, 1056)
    expected = reference(engine, tokens)
    engine.forget(connector=True)
    monkeypatch.setattr(tier, "settings", dataclasses.replace(tier.settings, hits_per_step=5))
    loads = tier.transfers.counts["loads"]
    answer = engine.ask(tokens)
    assert (answer.tokens, answer.cached_tokens) == (expected.tokens, 1056)
    assert tier.transfers.counts["loads"] - loads == 7


def test_the_planner_decides_how_many(
    engine: Engine, tier: KeepwarmTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(50, 320)
    expected = reference(engine, tokens)
    engine.forget(connector=True)
    monkeypatch.setattr(tier.planner, "mode", "off")
    before = tier.accounting.totals().recomputed.get(Recomputed.PLANNER, 0)
    answer = engine.ask(tokens)
    assert (answer.tokens, answer.cached_tokens) == (expected.tokens, 0)
    assert tier.accounting.totals().recomputed[Recomputed.PLANNER] - before == 320


def test_prefill_steps_reach_the_planner(engine: Engine, tier: KeepwarmTier) -> None:
    samples = tier.planner.prefill.samples
    engine.ask(prompt(60, 4000))
    assert tier.planner.prefill.samples == samples + 2, "a chunk of 2048 tokens, and the rest"


def test_aborted_requests_leave_nothing(engine: Engine, tier: KeepwarmTier) -> None:
    tokens = prompt(70, 1056)
    reference(engine, tokens)
    engine.forget(connector=True)
    connector = engine.scheduler.connector
    moments: list[Callable[[], bool]] = [
        lambda: any(each.phase is Phase.ASKED for each in tier.requests.values()),
        lambda: bool(len(tier.jobs)),
        lambda: bool(connector._unanswered),
    ]
    for reached in moments:
        name = engine.add(tokens)
        engine.until(reached, "the request is that far")
        engine.abort([name])
        engine.settle()
        engine.forget(connector=True)
    assert tier.accounting.totals().aborted == 1, "the others had not been admitted"


def test_figures_are_in_vllms_metrics(engine: Engine, tier: KeepwarmTier) -> None:
    engine.ask(prompt(80, 100))
    engine.settle()
    shown = {
        tuple(sample.labels[name] for name in ("source", "reason")): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "keepwarm_connector_prompt_tokens_total"
    }
    totals = tier.accounting.totals()
    assert sum(shown.values()) == totals.prompt
    assert shown["device", ""] == totals.device
    assert shown["recomputed", "absent"] == totals.recomputed[Recomputed.ABSENT]


def test_a_second_engine_restores_what_the_first_stored(
    engine: Engine, make_engine: Callable[..., Engine], node: NodeProcess
) -> None:
    tokens = prompt(90, 1056)
    expected = reference(engine, tokens)
    second = make_engine("tiny", connector(node.address, plain=True))
    tier = joined(tier_of(second))
    answer = second.ask(tokens)
    assert (answer.tokens, answer.cached_tokens) == (expected.tokens, 1056)
    assert_at_rest(second, tier)
