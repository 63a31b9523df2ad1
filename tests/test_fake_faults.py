"""The fake's own switches, and what only it can do: the clock, quotas, several tenants."""

from __future__ import annotations

import asyncio

import pytest
from keepwarm import (
    ClosedError,
    EpochOutcome,
    NodeError,
    Outcome,
    Reason,
    Reported,
    Status,
)
from keepwarm.testing import FakeMemory, FakeNode, FakeSpace, blocks, namespace

LENGTH = 4096
NAMES = namespace(block_tokens=4)
KEYS = NAMES.block_keys(list(range(1, 13)))


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory(capacity_bytes=1 << 20)


@pytest.fixture
def space(memory: FakeMemory) -> FakeSpace:
    made = memory.attach(NAMES)
    assert {o.status for o in put(made)} == {Status.STORED}
    return made


def put(space: FakeSpace, keys: bytes = KEYS) -> list[Outcome]:
    data = bytearray(len(keys) // 16 * LENGTH)
    blocks.fill_many(keys, data)
    return space.put_from(keys, data)


def get(space: FakeSpace, keys: bytes = KEYS) -> set[Outcome]:
    return set(space.get_into(keys, bytearray(len(keys) // 16 * LENGTH)))


def missed(reason: Reason) -> set[Outcome]:
    return {Outcome(Status.MISS, reason)}


def test_a_dead_node_is_a_miss_and_comes_back(memory: FakeMemory, space: FakeSpace) -> None:
    memory.faults.dead = True
    found = space.lookup(KEYS)
    assert (found.prefix, found.miss) == (0, Reason.STORE_DOWN)
    assert get(space) == missed(Reason.STORE_DOWN)
    assert set(put(space)) == {Outcome(Status.SHED, Reason.STORE_DOWN)}
    assert space.touch(KEYS) == 0
    assert space.bump_epoch(1) is EpochOutcome.NOT_REACHED
    assert space.report(KEYS[:16], 1) is Reported.NOT_REACHED
    assert memory.health()["state"] == "down"
    for call in (space.drop, memory.stat):
        with pytest.raises(NodeError, match="store_down"):
            call()
    assert memory.clock.now_s() == 0.0
    memory.faults.clear()
    assert get(space) == {Outcome(Status.OK, None)}


def test_a_stalled_node_uses_up_exactly_the_deadline(memory: FakeMemory, space: FakeSpace) -> None:
    memory.faults.stalled = True
    before = memory.clock.now_s()
    assert set(space.get_into(KEYS, bytearray(3 * LENGTH), deadline_s=0.25)) == missed(
        Reason.DEADLINE
    )
    assert memory.clock.now_s() - before == 0.25
    assert space.lookup(KEYS, deadline_s=0.5).miss is Reason.DEADLINE


def test_a_slow_node_takes_its_time(memory: FakeMemory, space: FakeSpace) -> None:
    memory.faults.slow_s = 0.3
    assert get(space) == {Outcome(Status.OK, None)}
    assert memory.clock.now_s() == pytest.approx(0.3)
    late = space.get_into(KEYS, bytearray(3 * LENGTH), deadline_s=0.2)
    assert set(late) == missed(Reason.DEADLINE)


def test_corrupt_bytes_and_a_full_node(memory: FakeMemory, space: FakeSpace) -> None:
    memory.faults.corrupt = True
    assert get(space) == missed(Reason.CORRUPT)
    assert set(put(space)) == {Outcome(Status.SHED, Reason.CORRUPT)}
    memory.faults.clear()
    memory.faults.full = True
    assert set(put(space)) == {Outcome(Status.SHED, Reason.WATERMARK)}
    assert get(space) == {Outcome(Status.OK, None)}


def test_after_a_miss_the_destination_holds_no_old_bytes(
    memory: FakeMemory, space: FakeSpace
) -> None:
    data = bytearray(3 * LENGTH)
    blocks.fill_many(KEYS, data)
    memory.faults.dead = True
    space.get_into(KEYS, data)
    assert set(blocks.check_many(KEYS, data)) == {0, 1, 2}


def test_leases_are_renewed_and_end_at_last(memory: FakeMemory, space: FakeSpace) -> None:
    found = space.lookup(KEYS, lease_s=2.0)
    for _ in range(6):
        memory.clock.advance(9.0)
        assert not space.renew(found, 10.0) or memory.clock.now_s() <= 60.0
    assert memory.stat()["leases"] == 0
    other = space.lookup(KEYS, lease_s=2.0)
    memory.clock.advance(1.9)
    assert space.renew(other, 5.0)
    memory.clock.advance(4.9)
    assert memory.stat()["leases"] == 1


def test_an_epoch_waits_for_leases(memory: FakeMemory, space: FakeSpace) -> None:
    found = space.lookup(KEYS, lease_s=5.0)
    assert space.bump_epoch(1, deadline_s=0.5) is EpochOutcome.STILL_LEASED
    assert memory.stat()["used_bytes"] == 3 * LENGTH
    found.release()
    assert space.bump_epoch(1) is EpochOutcome.ACKNOWLEDGED
    assert memory.stat()["used_bytes"] == 0


def test_a_tenant_stays_within_its_quota() -> None:
    memory = FakeMemory(capacity_bytes=1 << 20, quotas={"default": 2 * LENGTH})
    space = memory.attach(NAMES)
    put(space)
    found = space.lookup(KEYS)
    assert found.miss is Reason.QUOTA
    assert sum(found.hits) == 2
    too_much = space.put_from(KEYS[:16], bytes(3 * LENGTH))
    assert too_much == [Outcome(Status.SHED, Reason.QUOTA)]


def test_everything_leased_sheds_puts() -> None:
    memory = FakeMemory(capacity_bytes=8 * LENGTH)
    space = memory.attach(NAMES)
    keys = NAMES.block_keys(list(range(100, 100 + 8 * 4)))
    put(space, keys)
    held = [memory.attach(NAMES).lookup(keys[:32], lease_s=5.0)]
    assert held[0].lease is not None
    assert space.lookup(keys[32:64], lease_s=5.0).lease is None  # a tenant's share is used up
    big = space.put_from(KEYS[:16], bytes(7 * LENGTH))
    assert big == [Outcome(Status.SHED, Reason.LEASED)]
    assert space.put_from(KEYS[:16], bytes(9 * LENGTH)) == [Outcome(Status.SHED, Reason.TOO_LARGE)]


def test_a_restarted_node_has_forgotten(memory: FakeMemory, space: FakeSpace) -> None:
    memory.node.restart()
    assert get(space) == missed(Reason.ABSENT)
    assert memory.health()["incarnation"] == 2


def test_two_replicas_share_a_node() -> None:
    node = FakeNode(1 << 20)
    with FakeMemory(node=node) as one, FakeMemory(node=node) as two:
        put(one.attach(NAMES))
        one.faults.dead = True
        assert get(two.attach(NAMES)) == {Outcome(Status.OK, None)}
    with pytest.raises(ClosedError, match="open or connect again"):
        one.attach(NAMES)


def test_followers_see_what_happens(memory: FakeMemory, space: FakeSpace) -> None:
    events = space.subscribe()
    assert next(events).kind == "resync"
    snapshot = next(events)
    assert (snapshot.kind, snapshot.last, len(snapshot.events)) == ("snapshot", True, 3)
    other = NAMES.block_keys([91, 92, 93, 94])
    space.put_from(other, bytes(LENGTH), engine_hashes=[77])
    space.drop(KEYS[:16])
    told = next(events).events
    assert [(e.kind, e.key, e.engine_hash) for e in told] == [
        ("stored", other, 77),
        ("removed", KEYS[:16], None),
    ]
    late = space.subscribe(since=events.since)
    space.bump_epoch(1)
    assert [event.kind for event in next(late).events] == ["cleared"]
    assert next(late).events == []
    memory.node.restart()
    with pytest.raises(NodeError, match="subscribe again"):
        next(late)


def test_the_asyncio_twin(memory: FakeMemory, space: FakeSpace) -> None:
    async def use() -> int:
        async with await space.aio.lookup(KEYS) as found:
            outcomes = await space.aio.get_into(KEYS, bytearray(3 * LENGTH))
            assert outcomes[0].status is Status.OK
        await space.aio.put_from(KEYS, bytes(3 * LENGTH))
        assert memory.stat()["leases"] == 0
        return found.prefix + await space.aio.touch(KEYS) + await space.aio.drop()

    assert asyncio.run(use()) == 9


def test_report_tells_whether_the_bytes_are_still_there(space: FakeSpace) -> None:
    generation = space.lookup(KEYS).generations[0]
    assert space.report(KEYS[:16], generation) is Reported.INTACT
    assert space.report(KEYS[:16], generation + 1) is Reported.GONE
