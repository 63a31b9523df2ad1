"""Fixtures of the engine tests: an engine and a node a module, and what the engine logged."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keepwarm.engines import ensure_model
from keepwarm.testing import NodeProcess
from nodes import short_folder

from engine.harness import ENVIRONMENT, Engine, EngineLog, engine_python

os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
NODE_BYTES = 256 << 20


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """The folder of one of `keepwarm.engines.MODELS`."""
    return lambda name: ensure_model(name, engine_python(), print)


@pytest.fixture(scope="module")
def make_engine(model: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    """Makes an engine, closing the one before: `make_engine("tiny", connector={…}, …)`."""
    running: list[Engine] = []

    def make(
        name: str = "micro", connector: dict[str, Any] | None = None, **options: Any
    ) -> Engine:
        while running:
            running.pop().close()
        running.append(Engine(model(name), connector, **options))
        return running[-1]

    yield make
    while running:
        running.pop().close()


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    """A real node as a child, answering. A test that ends it starts it again."""
    with short_folder() as folder, NodeProcess(folder, NODE_BYTES) as child:
        yield child


@pytest.fixture(scope="session")
def _attached_log() -> Iterator[EngineLog]:
    log = EngineLog()
    # Neither hands its records on to the root.
    loggers = [logging.getLogger(name) for name in ("vllm", "keepwarm")]
    for each in loggers:
        each.addHandler(log)
    yield log
    for each in loggers:
        each.removeHandler(log)


@pytest.fixture(autouse=True)
def engine_log(_attached_log: EngineLog) -> Iterator[EngineLog]:
    """What was logged during this test. An exception of ours in it fails the test."""
    _attached_log.clear()
    yield _attached_log
    exceptions = _attached_log.exceptions()
    assert not exceptions, "\n".join(exceptions)
