"""The direct connector gives back what it took: the same tokens as from the engine's own cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import NodeProcess

from engine.direct import Direct, connector
from engine.harness import BLOCK_TOKENS, Engine, prompt

LENGTHS = (1, 31, 32, 33, 64, 100, 1056, 4100, 8000)


@pytest.fixture(scope="module")
def direct(make_engine: Callable[..., Engine], node: NodeProcess) -> Direct:
    found = Direct(make_engine("micro", connector(node.address)))
    found.joined()
    return found


@pytest.fixture(autouse=True)
def _nothing_left(direct: Direct) -> Iterator[None]:
    direct.engine.forget()
    yield
    direct.at_rest()


@pytest.mark.parametrize("tokens", LENGTHS)
def test_restored_is_what_the_engine_itself_remembers(direct: Direct, tokens: int) -> None:
    engine, asked = direct.engine, prompt(1000 + tokens, tokens)
    engine.ask(asked)
    own = engine.ask(asked)
    direct.stored()
    engine.forget()
    before = direct.restored()
    restored = engine.ask(asked)
    assert restored.tokens == own.tokens
    assert (
        restored.cached_tokens == own.cached_tokens == (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    )
    assert direct.restored() - before == restored.cached_tokens


def test_a_batch_of_restored_and_new_prompts(direct: Direct) -> None:
    engine = direct.engine
    asked = [prompt(2000 + at, 40 + 97 * at) for at in range(12)]
    for each in asked[::2]:
        engine.ask(each)
    direct.stored()
    engine.forget()
    alone = {}
    for at, each in enumerate(asked):
        engine.ask(each)
        alone[at] = engine.ask(each).tokens
    direct.stored()
    engine.forget()
    names = [engine.add(each) for each in asked]
    answers = engine.finish(names)
    assert [answers[name].tokens for name in names] == list(alone.values())


def test_the_next_turn_finds_the_answer_too(direct: Direct) -> None:
    engine, first = direct.engine, prompt(3000, 70)
    answer = engine.ask(first, max_tokens=60)
    direct.stored()
    engine.forget()
    # 70 + 60 tokens: the last one was never an input, so 129 have KV, which is 4 whole blocks
    second = engine.ask([*first, *answer.tokens, *prompt(3001, 20)])
    assert second.cached_tokens == 4 * BLOCK_TOKENS


def test_blocks_that_only_the_device_has_are_stored_when_they_are_used(direct: Direct) -> None:
    engine, asked = direct.engine, prompt(3500, 200)
    engine.ask(asked)
    direct.stored()
    space = direct.scheduler.session.space
    assert space is not None
    assert space.drop() > 0
    assert engine.ask(asked).cached_tokens == 192
    direct.at_rest()
    engine.forget()
    assert engine.ask(asked).cached_tokens == 192


def test_salts_are_kept_apart(direct: Direct) -> None:
    engine, asked = direct.engine, prompt(4000, 100)
    engine.ask(asked, salt="one")
    direct.stored()
    engine.forget()
    assert engine.ask(asked, salt="two").cached_tokens == 0
    engine.forget()
    assert engine.ask(asked).cached_tokens == 0
    engine.forget()
    assert engine.ask(asked, salt="one").cached_tokens == 96


def test_a_new_prompt_waits_for_one_round_trip_and_is_called_absent(direct: Direct) -> None:
    before, counts = direct.recomputed(Recomputed.ABSENT), dict(direct.scheduler.lookups.counts)
    direct.engine.ask(prompt(5000, 1000))
    assert direct.scheduler.lookups.counts["asked"] == counts["asked"] + 1
    assert direct.recomputed(Recomputed.ABSENT) > before


def test_an_aborted_load_ends_once_and_leaves_nothing(direct: Direct) -> None:
    engine, asked = direct.engine, prompt(6000, 4000)
    engine.ask(asked)
    direct.stored()
    engine.forget()
    for _ in range(5):
        name = engine.add(asked)
        engine.until(lambda: bool(direct.scheduler._loads), "the load is ordered")
        engine.abort([name])
        engine.settle()
        assert engine.scheduler.get_kv_cache_usage() == 0.0
    assert engine.ask(asked).cached_tokens == 3968


def test_a_reset_of_the_connector_hides_what_was_stored(direct: Direct) -> None:
    engine, asked = direct.engine, prompt(7000, 300)
    tokens = engine.ask(asked).tokens
    direct.stored()
    assert engine.forget(connector=True)
    assert direct.scheduler.session.generation == 1
    again = engine.ask(asked)
    assert (again.tokens, again.cached_tokens) == (tokens, 0)
    assert direct.worker.session.generation == 1
    direct.joined()
    engine.forget()
    engine.ask(asked)
    direct.stored()
    engine.forget()
    assert engine.ask(asked).cached_tokens == 288
