"""The harness itself: a real engine answers, always the same, and its counters can be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.harness import Engine, prompt


@pytest.fixture(scope="module")
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine("micro")


def test_an_engine_answers_the_same_from_its_own_prefix_cache(engine: Engine) -> None:
    cold = engine.ask(prompt(1, 100))
    warm = engine.ask(prompt(1, 100))
    assert cold.tokens == warm.tokens
    assert len(cold.tokens) == 8
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 96)


def test_a_reset_forgets_and_metrics_count_it(engine: Engine) -> None:
    engine.ask(prompt(2, 100))
    assert engine.forget()
    before = engine.metrics()
    assert engine.ask(prompt(2, 100)).cached_tokens == 0
    computed = "vllm:prompt_tokens_by_source{source=local_compute}"
    assert engine.metrics()[computed] - before[computed] == 100
