"""The fake is verified: one suite over it, an embedded store, and a client of a real node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keepwarm
import pytest
from keepwarm.client import Transport
from keepwarm.testing import FakeMemory, MemoryLike, NodeProcess, conformance
from keepwarm.testing.conformance import (
    CAPACITY_BYTES,
    CHECKS,
    Check,
    FakeHarness,
    NotApplicableError,
)


def not_long(seconds: float) -> None:
    """On the real clock: checks that need a moment poll for it, none may wait for long."""
    if seconds >= 1.0:
        raise NotApplicableError(f"waiting {seconds} s for the real clock")


class EmbeddedHarness:
    """`keepwarm.open`: one handle at a time, since a store in a process has no second one."""

    def __init__(self) -> None:
        self._held = False

    @contextmanager
    def memory(self) -> Iterator[MemoryLike]:
        if self._held:
            raise NotApplicableError("an embedded store has one handle")
        self._held = True
        with keepwarm.open(CAPACITY_BYTES) as memory:
            yield memory

    def advance(self, seconds: float) -> None:
        not_long(seconds)


class NodeHarness:
    """`keepwarm.connect` to a node in a process of its own."""

    def __init__(self, address: str, transport: Transport) -> None:
        self._address = address
        self._transport = transport

    @contextmanager
    def memory(self) -> Iterator[MemoryLike]:
        with keepwarm.connect(self._address, transport=self._transport) as memory:
            assert memory.health()["transport"] == self._transport
            yield memory

    def advance(self, seconds: float) -> None:
        not_long(seconds)


def run(check: Check, harness: conformance.Harness) -> None:
    try:
        check(harness)
    except NotApplicableError as reason:
        pytest.skip(str(reason))


every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@every_check
def test_the_fake(check: Check) -> None:
    check(FakeHarness())


@every_check
def test_an_embedded_store(check: Check) -> None:
    run(check, EmbeddedHarness())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), CAPACITY_BYTES) as made:
        yield made


@pytest.mark.parametrize("transport", ["shm", "unix"])
@every_check
def test_a_real_node(check: Check, transport: Transport, node: NodeProcess) -> None:
    run(check, NodeHarness(node.address, transport))


def test_all_checks_run_and_failures_are_named() -> None:
    assert conformance.check_memory(FakeHarness) == []

    class Broken(FakeHarness):
        @contextmanager
        def memory(self) -> Iterator[MemoryLike]:
            raise RuntimeError("no memory today")
            yield FakeMemory()

    failures = conformance.check_memory(Broken)
    assert len(failures) == len(CHECKS)
    assert failures[0] == "check_round_trip: RuntimeError: no memory today"


def test_every_check_is_in_the_list() -> None:
    named = {name for name in vars(conformance) if name.startswith("check_")} - {"check_memory"}
    assert named == {check.__name__ for check in CHECKS}
