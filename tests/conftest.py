"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keepwarm
import pytest
from nodes import CAPACITY_BYTES, LocalNode, short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    with short_folder() as path:
        yield path


@pytest.fixture
def node(folder: Path) -> Iterator[LocalNode]:
    """A node in this process."""
    local = LocalNode(folder)
    yield local
    local.close()


@pytest.fixture(params=["embedded", "shm", "unix"])
def memory(request: pytest.FixtureRequest) -> Iterator[keepwarm.Memory]:
    """An empty memory of 64 MiB, over each way there is."""
    if request.param == "embedded":
        with keepwarm.open(CAPACITY_BYTES, populate=False) as opened:
            yield opened
        return
    local: LocalNode = request.getfixturevalue("node")
    # A node that is not reached in time is no error, and one on a busy machine may take its time.
    with local.connect(transport=request.param, deadline_s=30.0) as connected:
        assert connected.health()["transport"] == request.param
        yield connected
