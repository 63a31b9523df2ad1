"""Weights that change, in a running engine or on disk: nothing of the old ones is restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import NodeProcess
from keepwarm.testing.waiting import eventually

from engine.harness import Engine, prompt
from engine.tiers import assert_at_rest, connector, joined, tier_of


@pytest.fixture(scope="module")
def folder(model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of our own, to be changed where it lies."""
    own = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(model("tiny"), own)
    return own


@pytest.fixture(scope="module")
def start(folder: Path, node: NodeProcess) -> Iterator[Callable[[], Engine]]:
    """Starts an engine, ending the one before."""
    running: list[Engine] = []

    def make() -> Engine:
        while running:
            running.pop().close()
        running.append(Engine(folder, connector(node.address, weights_fixed=False)))
        return running[-1]

    yield make
    while running:
        running.pop().close()


@pytest.fixture(scope="module")
def engine(start: Callable[[], Engine]) -> Engine:
    return start()


def change_weights(engine: Engine) -> None:
    import torch

    for name, weights in engine.worker.model_runner.get_model().named_parameters():
        if "layernorm" in name:  # the linear layers were packed anew when they were loaded
            weights.data.mul_(torch.linspace(-2, 2, weights.numel()))


def test_a_reset_moves_to_a_private_namespace(engine: Engine) -> None:
    tier = joined(tier_of(engine))
    tokens = prompt(1, 1056)
    before = engine.ask(tokens)
    engine.settle()
    shared = tier.session.namespace
    change_weights(engine)
    engine.forget(connector=True)
    assert tier.session.namespace != shared
    eventually(lambda: tier.session.space is not None, "the private namespace is attached")
    fresh = engine.ask(tokens)
    assert fresh.cached_tokens == 0
    assert fresh.tokens != before.tokens, "the weights are others"
    assert engine.ask(tokens).tokens == fresh.tokens
    engine.settle()
    assert tier.accounting.totals().restored == {}
    assert_at_rest(engine, tier)


def test_what_a_request_computed_before_a_reset_is_not_stored_after_it(engine: Engine) -> None:
    """vLLM offers all its blocks again, those of the old weights among them."""
    tier = joined(tier_of(engine))
    engine.settle()
    name = engine.add(prompt(2, 4000))
    engine.until(lambda: bool(engine.scheduler.running), "its first chunk is computed")
    change_weights(engine)
    moves = tier.session.generation
    engine.llm.reset_prefix_cache(reset_connector=True)
    assert tier.session.generation == moves + 1
    stores = tier.transfers.counts["stores"]
    engine.finish([name])
    engine.settle()
    assert tier.transfers.counts["stores"] == stores
    assert_at_rest(engine, tier)


@pytest.mark.usefixtures("engine")
def test_a_changed_file_under_the_same_name_has_zero_hits_and_says_why(
    start: Callable[[], Engine], folder: Path
) -> None:
    file = next(folder.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    second = start()
    tier = joined(tier_of(second))
    answer = second.ask(prompt(1, 1056))
    assert answer.cached_tokens == 0
    assert tier.accounting.totals().recomputed == {Recomputed.ABSENT: 1056}
    space: Any = tier.session.space
    assert "weights" in space.nearest
