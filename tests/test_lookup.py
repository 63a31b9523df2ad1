"""What a lookup answers with: its lease and its lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from keepwarm import Memory, Space
from keepwarm.testing import FakeMemory
from nodes import BLOCK_BYTES, keys_of, make


def leased(memory: Memory) -> tuple[Space, bytes, list[float]]:
    """A space with a block to lease, its key, and the deadlines of the releases to come."""
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, bytes(BLOCK_BYTES), deadline_s=10)
    real, given = space.release, []

    def release(found: Any, deadline_s: float = 1.0) -> None:
        given.append(deadline_s)
        real(found, deadline_s)

    space.release = release  # type: ignore[method-assign]
    return space, keys, given


def test_leaving_takes_no_longer_than_the_lookup_might(memory: Memory) -> None:
    space, keys, given = leased(memory)
    with space.lookup(keys, deadline_s=7.5) as found:
        assert found.lease is not None
    found.release()
    found.release(3.0)
    assert given == [7.5, 7.5, 3.0]
    assert memory.stat()["leases"] == 0


def test_leaving_in_asyncio_takes_no_longer_either(memory: Memory) -> None:
    space, keys, given = leased(memory)

    async def go() -> None:
        async with await space.aio.lookup(keys, deadline_s=7.5) as found:
            assert found.lease is not None

    asyncio.run(go())
    assert len(given) == 1
    assert 5 < given[0] <= 7.5
    assert memory.stat()["leases"] == 0


def test_leaving_a_fake_lookup_uses_up_its_own_deadline() -> None:
    names = make()
    with FakeMemory() as memory:
        space, keys = memory.attach(names), keys_of(names, 1)
        space.put_from(keys, bytes(BLOCK_BYTES))
        with space.lookup(keys, deadline_s=0.25) as found:
            assert found.lease is not None
            memory.faults.stalled = True
        assert memory.clock.now_s() == pytest.approx(0.25)


def test_lists_are_made_once(memory: Memory) -> None:
    space, keys, _ = leased(memory)
    with space.lookup(keys) as found:
        assert found.hits is found.hits
        assert found.tiers is found.tiers
        assert found.lengths is found.lengths
        assert found.generations is found.generations
        assert (found.hits, found.tiers, found.lengths) == ([True], ["dram"], [BLOCK_BYTES])
