"""Two tensor parallel ranks: each keeps its part of a block, and a block is there with both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from keepwarm.testing import NodeProcess
from keepwarm.testing.waiting import eventually

from engine.direct import connector
from engine.harness import Engine, prompt


def test_two_ranks_restore_what_both_have_stored(
    make_engine: Callable[..., Engine], node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine = make_engine(
        "micro",
        connector(node.address),
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    scheduler: Any = engine.scheduler.connector._scheduler
    assert scheduler.session.namespace.parts == 2
    eventually(lambda: scheduler.session.problem is None, "the scheduler's half has joined")
    engine.until(lambda: stores_something(engine), "both workers have joined")
    for tokens in (33, 1056):
        asked = prompt(tokens, tokens)
        engine.ask(asked)
        own = engine.ask(asked)
        engine.until(lambda: told(engine, scheduler), "stores have ended")
        engine.forget()
        restored = engine.ask(asked)
        assert (restored.tokens, restored.cached_tokens) == (own.tokens, own.cached_tokens)
        assert restored.cached_tokens > 0
    asked = prompt(7, 2000)
    own = engine.ask(asked)
    engine.until(lambda: told(engine, scheduler), "stores have ended")
    engine.forget()
    name = engine.add(asked)
    engine.until(lambda: bool(scheduler._loads), "the load is ordered")
    node.kill()
    assert engine.finish([name])[name].tokens == own.tokens
    engine.settle()
    assert engine.scheduler.get_kv_cache_usage() == 0.0
    assert scheduler.accounting.totals().sums()


def told(engine: Engine, scheduler: Any) -> bool:
    """Whether every store has been reported; a step carries reports."""
    if len(scheduler.stores):
        engine.ask([1], max_tokens=1)
    return not len(scheduler.stores)


def stores_something(engine: Engine) -> bool:
    """Whether a block of both ranks has become visible."""
    engine.ask(prompt(1, 40), max_tokens=1)
    engine.forget()
    return engine.ask(prompt(1, 40), max_tokens=1).cached_tokens > 0
