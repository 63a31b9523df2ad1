"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keepwarm
import pytest
from nodes import CAPACITY_BYTES, LocalNode, short_folder

#: These look at files and figures alone, at no node, endpoint or clock: they run two at a time.
SIDE_BY_SIDE = (
    *("test_anonymise", "test_conversations", "test_curve", "test_documents", "test_layout"),
    *("test_lint", "test_measures", "test_parquet", "test_readers", "test_report", "test_sim"),
    *("test_synth", "test_workload"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith(SIDE_BY_SIDE):
            item.add_marker(pytest.mark.side_by_side)


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
