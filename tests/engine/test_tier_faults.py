"""Nodes that die, hang, lie and come back, each in the middle of requests: never a wrong token."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import pytest
from keepwarm.adapter.reasons import Recomputed
from keepwarm.connectors.vllm.tier import KeepwarmTier
from keepwarm.outcomes import MISSES, Outcome, Reason
from keepwarm.testing import FaultProxy, NodeProcess, Towards
from nodes import short_folder

from engine.harness import Engine, prompt
from engine.tiers import (
    BRIEF,
    assert_at_rest,
    assert_books_agree,
    connector,
    joined,
    reference,
    tier_of,
)

RESUMES_S_MAX = 60.0
SPREAD = 8  # requests at once

Known: TypeAlias = tuple[list[list[int]], list[list[int]]]


@pytest.fixture(scope="module")
def proxy(node: NodeProcess) -> Iterator[FaultProxy]:
    """Between engine and node; bytes alone pass, so there is no shared memory."""
    with (
        short_folder() as folder,
        FaultProxy(node.address, listen=f"unix:{folder / 'proxy.sock'}") as proxy,
    ):
        yield proxy


@pytest.fixture(scope="module")
def engine(make_engine: Callable[..., Engine], node: NodeProcess, proxy: FaultProxy) -> Engine:
    node.stop()  # an engine starts without a node, and finds it later
    engine = make_engine("tiny", connector(proxy.address, **BRIEF))
    tier = tier_of(engine)
    assert tier.session.problem is not None
    answer = engine.ask(prompt(1, 100))
    assert answer.finished
    assert tier.accounting.totals().recomputed[Recomputed.STORE_DOWN] == 96
    node.start()
    node.wait_ready()
    joined(tier)
    return engine


@pytest.fixture(scope="module")
def known(engine: Engine) -> Known:
    """Prompts, and what the engine says to them."""
    prompts = [prompt(100 + n, 100 + 60 * n) for n in range(SPREAD)]
    return prompts, [reference(engine, tokens).tokens for tokens in prompts]


@pytest.fixture
def scene(node: NodeProcess, proxy: FaultProxy) -> Scene:
    return Scene(node, proxy)


@pytest.fixture
def tier(engine: Engine) -> Iterator[KeepwarmTier]:
    tier = joined(tier_of(engine))
    yield tier
    assert_at_rest(engine, tier)
    assert_books_agree(engine, tier)


def resumes(engine: Engine, tokens: list[int], expected: list[int]) -> None:
    """Sooner or later the prompt is restored again; on the way to it nothing is wrong."""
    until = time.monotonic() + RESUMES_S_MAX
    while True:
        engine.forget(connector=True)
        answer = engine.ask(tokens)
        assert answer.tokens == expected
        if answer.cached_tokens >= 32:
            return
        assert time.monotonic() < until, "hits did not resume"


class Scene(NamedTuple):
    """What faults are done to."""

    node: NodeProcess
    proxy: FaultProxy


def start_again(scene: Scene) -> None:
    scene.node.start()
    scene.node.wait_ready()


def restart(scene: Scene) -> None:
    scene.node.kill()
    scene.node.start()


def stop(scene: Scene) -> None:
    os.kill(scene.node.pid, signal.SIGSTOP)


def go_on(scene: Scene) -> None:
    os.kill(scene.node.pid, signal.SIGCONT)


def corrupt(scene: Scene) -> None:
    scene.proxy.set(Towards.CLIENT, corrupt_every=50_001)


def slow(scene: Scene) -> None:
    scene.proxy.set(Towards.CLIENT, bytes_per_s=1_000_000.0)


def clear(scene: Scene) -> None:
    scene.proxy.clear()


Deed = Callable[[Scene], object]
FAULTS: dict[str, tuple[Deed, Deed]] = {
    "killed": (lambda scene: scene.node.kill(), start_again),
    "restarted empty": (restart, clear),
    "stopped": (stop, go_on),
    "corrupting": (corrupt, clear),
    "slow": (slow, clear),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_middle_costs_hits_and_nothing_else(
    engine: Engine, tier: KeepwarmTier, scene: Scene, known: Known, fault: str
) -> None:
    break_it, mend_it = FAULTS[fault]
    prompts, expected = known
    engine.finish([engine.add(tokens) for tokens in prompts])  # stored, if they were not
    engine.forget(connector=True)
    names = [engine.add(tokens) for tokens in prompts]
    engine.until(lambda: len(tier.jobs) > 0, "loads are under way")
    break_it(scene)
    names += [engine.add(tokens) for tokens in prompts]
    answers = engine.finish(names)
    assert [answers[name].tokens for name in names] == expected * 2
    assert all(answers[name].finished for name in names)
    mend_it(scene)
    resumes(engine, prompts[-1], expected[-1])


def test_a_request_waits_for_a_stopped_node_once(
    engine: Engine, tier: KeepwarmTier, scene: Scene
) -> None:
    """Its lookup's deadline; the next ones do not wait at all."""
    tokens = prompt(900, 320)
    expected = reference(engine, tokens)
    engine.forget(connector=True)
    stop(scene)
    try:
        waits = []
        for _ in range(4):
            answer = engine.ask(tokens)
            assert answer.tokens == expected.tokens
            waits.append(tier.held_s[-1])
            engine.forget(connector=True)
    finally:
        go_on(scene)
    assert tier.lookups.counts["missed"] >= 1
    assert min(waits[1:]) < tier.settings.lookup_deadline_s / 2
    resumes(engine, tokens, expected.tokens)


def failing(
    tier: KeepwarmTier, monkeypatch: pytest.MonkeyPatch, reason: Reason, good: int
) -> list[int]:
    """Loads of which the first `good` blocks arrive, and the others do not; counts calls."""
    calls: list[int] = []
    space = tier.session.space
    assert space is not None
    get = space.get_into

    def get_some(keys: object, buffers: object, *rest: object) -> list[Outcome]:
        outcomes = get(keys, buffers, *rest)  # type: ignore[arg-type]
        before = sum(calls)
        calls.append(len(outcomes))
        return [
            outcome if before + at < good else MISSES[reason] for at, outcome in enumerate(outcomes)
        ]

    monkeypatch.setattr(space, "get_into", get_some)
    return calls


@pytest.mark.parametrize("good", [0, 20])
def test_what_fails_to_load_is_computed_and_not_tried_in_a_circle(
    engine: Engine, tier: KeepwarmTier, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    tokens = prompt(910 + good, 1056)
    expected = reference(engine, tokens)
    engine.forget(connector=True)
    failing(tier, monkeypatch, Reason.CORRUPT, good)
    loads, totals = tier.transfers.counts["loads"], tier.accounting.totals()
    answer = engine.ask(tokens)
    assert (answer.tokens, answer.cached_tokens) == (expected.tokens, 32 * good)
    assert tier.transfers.counts["loads"] - loads == 1
    corrupt = Recomputed.CORRUPT
    failed = tier.accounting.totals().recomputed[corrupt] - totals.recomputed.get(corrupt, 0)
    assert failed == 1056 - 32 * good
    engine.forget(connector=True)
    engine.ask(tokens)
    assert tier.transfers.counts["loads"] - loads <= 2, "failed keys are not promised at once"


def test_an_exception_of_ours_is_a_miss(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, engine_log: object
) -> None:
    from keepwarm.connectors.vllm.guard import faults

    tier = joined(tier_of(engine))
    tokens = prompt(930, 320)
    expected = reference(engine, tokens)
    engine.forget(connector=True)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        for method in ("from_here_on", "prompts", "ordered"):
            patched.setattr(type(tier.places), method, broken)
        answer = engine.ask(tokens)
        engine.settle()
    assert (answer.tokens, answer.cached_tokens) == (expected.tokens, 0)
    assert faults.total() >= 2, "lookup and store"
    logged = engine_log.exceptions()  # type: ignore[attr-defined]
    assert len(logged) == len(faults), "each place once"
    engine_log.clear()  # type: ignore[attr-defined]
    faults.clear()
    resumes(engine, tokens, expected.tokens)
