"""Time to live and priority of a namespace, over the embedded store and the fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keepwarm
import pytest
from keepwarm import ArgumentError, Reason, Status
from keepwarm.testing import FakeMemory, blocks, namespace

LENGTH = 64 << 10
CAPACITY = 64 * LENGTH


def _embedded() -> Any:
    return keepwarm.open(CAPACITY, max_blocks=64, populate=False)


@pytest.fixture(params=[_embedded, lambda: FakeMemory(capacity_bytes=CAPACITY)])
def memory(request: pytest.FixtureRequest) -> Iterator[Any]:
    make: Callable[[], Any] = request.param
    with make() as memory:
        yield memory


def _fill(space: Any, first: int, count: int) -> list[bytes]:
    names = space.namespace
    keys = [names.block_keys([first + place] * names.block_tokens) for place in range(count)]
    for key in keys:
        data = bytearray(LENGTH)
        blocks.fill_many(key, data)
        assert [outcome.status for outcome in space.put_from(key, data)] == [Status.STORED]
    return keys


def _here(space: Any, keys: list[bytes]) -> int:
    return sum(space.lookup(key, lease_s=None).prefix for key in keys)


def test_low_priority_leaves_first_down_to_an_eighth(memory: Any) -> None:
    low = memory.attach(namespace(weights="test:low"), priority=0)
    high = memory.attach(namespace(weights="test:high"), priority=3)
    old = _fill(low, 1, 64)
    new = _fill(high, 1, 40)
    assert (_here(low, old), _here(high, new)) == (24, 40)
    _fill(high, 1_000, 100)
    assert _here(low, old) == 8


def test_a_namespace_names_its_time_to_live(memory: Any) -> None:
    brief = memory.attach(namespace(weights="test:brief"), ttl="1ms")
    lasting = memory.attach(namespace(weights="test:lasting"), ttl=3600)
    keys = _fill(brief, 1, 1), _fill(lasting, 1, 1)
    if isinstance(memory, FakeMemory):
        memory.clock.advance(1.0)
    for _ in range(1_000_000):
        found = brief.lookup(keys[0][0], lease_s=None)
        if found.prefix == 0:
            break
    assert found.miss is Reason.EXPIRED
    assert _here(lasting, keys[1]) == 1


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"priority": 4}, "priority is 4: give a whole number from 0 to 3"),
        ({"priority": True}, "priority is True"),
        ({"ttl": "soon"}, "ttl is 'soon': give a time"),
    ],
)
def test_terms_that_cannot_be_meant(memory: Any, terms: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        memory.attach(namespace(), **terms)
