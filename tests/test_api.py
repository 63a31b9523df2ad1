"""What a memory and its spaces do, embedded and over a node's socket alike."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import keepwarm
import numpy as np
import pytest
from keepwarm import EpochOutcome, Memory, Outcome, Reason, Reported, Status
from nodes import BLOCK_BYTES, keys_of, make

OK = Outcome(Status.OK)
STORED = Outcome(Status.STORED)
PRESENT = Outcome(Status.PRESENT)
ABSENT = Outcome(Status.MISS, Reason.ABSENT)


def content(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize("size", [1, 4097, 1 << 20])
@pytest.mark.parametrize("parts", [1, 3])
def test_round_trip(memory: Memory, size: int, parts: int) -> None:
    names = make(parts=parts)
    space, keys = memory.attach(names), keys_of(names, 3)
    data = {part: content(3 * size, seed=part) for part in range(parts)}
    for part in range(parts):
        assert space.lookup(keys, lease_s=None).prefix == 0
        assert space.put_from(keys, data[part], part=part) == [STORED] * 3
    with space.lookup(keys) as found:
        assert found.prefix == len(found) == 3
        assert found.hits == [True] * 3
        assert found.tiers == ["dram"] * 3
        assert found.lengths == [size] * 3
        assert all(found.generations)
        assert found.miss is None
        assert found.lease is not None
        assert 0 < found.lease_s <= 2.0
        assert found.incarnation == memory.stat()["incarnation"]
    for part in range(parts):
        landed = bytearray(3 * size)
        assert space.get_into(keys, landed, part=part) == [OK] * 3
        assert landed == data[part]


def test_three_sizes_in_one_call(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 3)
    blocks = [content(size, size) for size in (10, 5000, 300_000)]
    assert space.put_from(keys, blocks) == [STORED] * 3
    landed = [bytearray(len(block)) for block in blocks]
    assert space.get_into(keys, landed) == [OK] * 3
    assert landed == blocks
    assert space.lookup(keys, lease_s=None).lengths == [10, 5000, 300_000]


def destinations() -> dict[str, Callable[[int], Any]]:
    return {
        "bytearray": bytearray,
        "memoryview": lambda size: memoryview(bytearray(size)),
        "slice at an odd address": lambda size: memoryview(bytearray(size + 3))[3:],
        "numpy": lambda size: np.zeros(size, dtype=np.uint8),
        "numpy, two dimensions": lambda size: np.zeros((size // 8, 2), dtype=np.float32),
        "array": lambda size: array.array("q", bytes(size)),
        "mmap": lambda size: mmap.mmap(-1, size),
        "ctypes": lambda size: (ctypes.c_char * size)(),
    }


@pytest.mark.parametrize("kind", destinations())
def test_kinds_of_memory(memory: Memory, kind: str) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    data = content(2 * BLOCK_BYTES)
    filled, empty = destinations()[kind](len(data)), destinations()[kind](len(data))
    memoryview(filled).cast("B")[:] = data
    assert space.put_from(keys, filled) == [STORED] * 2
    assert space.get_into(keys, empty) == [OK] * 2
    assert bytes(memoryview(empty).cast("B")) == data
    each = [destinations()[kind](BLOCK_BYTES) for _ in range(2)]
    assert space.get_into(keys, each) == [OK] * 2
    assert b"".join(bytes(memoryview(one).cast("B")) for one in each) == data


def test_pointers(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 4)
    data, landed = (
        np.frombuffer(content(4 * BLOCK_BYTES), np.uint8),
        np.zeros(4 * BLOCK_BYTES, np.uint8),
    )
    source, target = data.ctypes.data, landed.ctypes.data
    split = [(source + at, BLOCK_BYTES) for at in range(0, len(data), BLOCK_BYTES)]
    assert space.put_from(keys[:32], split[:2]) == [STORED] * 2
    # One pointer for all, and pointers beside buffers.
    assert space.put_from(keys[32:], (source + 2 * BLOCK_BYTES, 2 * BLOCK_BYTES)) == [STORED] * 2
    mixed: list[Any] = [(target, BLOCK_BYTES), landed[BLOCK_BYTES : 2 * BLOCK_BYTES]]
    assert space.get_into(keys[:32], mixed) == [OK] * 2
    assert space.get_into(keys[32:], (target + 2 * BLOCK_BYTES, 2 * BLOCK_BYTES)) == [OK] * 2
    assert np.array_equal(data, landed)


def test_written_once(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    data = content(2 * BLOCK_BYTES)
    assert space.put_from(keys, data) == [STORED] * 2
    assert space.put_from(keys, bytes(2 * BLOCK_BYTES)) == [PRESENT] * 2
    landed = bytearray(2 * BLOCK_BYTES)
    assert space.get_into(keys, landed) == [OK] * 2
    assert landed == data


def test_prefix_bitmap_and_first_miss(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 5)
    space.put_from(keys[:32] + keys[48:64], bytes(3 * BLOCK_BYTES))
    with space.lookup(keys, first_position=7) as found:
        assert found.prefix == 2
        assert found.hits == [True, True, False, True, False]
        assert found.tiers[2] is None
        assert found.lengths[2] == found.generations[2] == 0
        assert found.miss is Reason.ABSENT
        assert "2 of 5 keys miss=absent leased" in repr(found)
    outcomes = space.get_into(keys, bytearray(5 * BLOCK_BYTES))
    assert outcomes == [OK, OK, ABSENT, OK, ABSENT]


def test_nothing_asked(memory: Memory) -> None:
    space = memory.attach(make())
    with space.lookup(b"") as found:
        assert (found.prefix, found.miss, found.lease, len(found)) == (0, None, None, 0)
    assert space.get_into(b"", []) == []
    assert space.put_from(b"", []) == []
    assert space.get_into(b"", bytearray()) == []
    assert space.put_from(b"", b"ignored") == []
    assert space.touch(b"") == 0
    assert space.drop(b"") == 0


def test_a_wrong_length_is_a_miss(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, content(BLOCK_BYTES))
    for size in (1, BLOCK_BYTES - 1, BLOCK_BYTES + 1):
        (outcome,) = space.get_into(keys, bytearray(size))
        assert outcome.status is Status.MISS
    assert space.get_into(keys, bytearray(BLOCK_BYTES)) == [OK]


def test_a_part_beyond_the_namespace(memory: Memory) -> None:
    names = make(parts=2)
    space, keys = memory.attach(names), keys_of(names, 1)
    assert space.put_from(keys, b"x", part=2) == [Outcome(Status.SHED, Reason.INVALID)]
    assert space.get_into(keys, bytearray(1), part=2)[0].status is Status.MISS


def test_leases(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    space.put_from(keys, bytes(2 * BLOCK_BYTES))
    assert space.lookup(keys, lease_s=None).lease is None
    with space.lookup(keys, lease_s=5) as found:
        assert memory.stat()["leases"] == 1
        assert space.renew(found, 2.0)
        assert found.lease is not None
        assert space.renew(found.lease)
    assert memory.stat()["leases"] == 0
    assert not space.renew(found)
    space.release(found)
    space.release(12345)
    found.release()
    assert not space.renew(space.lookup(keys, lease_s=None))


def test_touch_counts_what_is_here(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 3)
    space.put_from(keys[:32], bytes(2 * BLOCK_BYTES))
    assert space.touch(keys) == 2


def test_drop(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 4)
    space.put_from(keys, bytes(4 * BLOCK_BYTES))
    assert space.drop(keys[16:32]) == 1
    assert space.lookup(keys, lease_s=None).hits == [True, False, True, True]
    assert space.drop() == 3
    assert space.lookup(keys, lease_s=None).miss is Reason.ABSENT
    assert space.put_from(keys, bytes(4 * BLOCK_BYTES)) == [STORED] * 4


def test_epochs(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names, epoch=3), keys_of(names, 2)
    space.put_from(keys, bytes(2 * BLOCK_BYTES))
    assert space.bump_epoch(9) is EpochOutcome.ACKNOWLEDGED
    assert space.epoch == 9
    assert space.lookup(keys, lease_s=None).miss is Reason.EPOCH
    assert space.get_into(keys, bytearray(2 * BLOCK_BYTES))[0] == Outcome(Status.MISS, Reason.EPOCH)
    assert space.put_from(keys, bytes(2 * BLOCK_BYTES)) == [STORED] * 2
    found = space.lookup(keys, lease_s=10)
    assert found.epoch == 9
    assert space.bump_epoch(10, deadline_s=0.5) is EpochOutcome.STILL_LEASED
    found.release()
    assert space.bump_epoch(11) is EpochOutcome.ACKNOWLEDGED


def test_reports(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 1)
    space.put_from(keys, content(BLOCK_BYTES))
    (generation,) = space.lookup(keys, lease_s=None).generations
    assert space.report(keys, generation) is Reported.INTACT
    assert space.report(keys, generation + 1) is Reported.GONE
    assert space.lookup(keys, lease_s=None).prefix == 1


def test_events(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    space.put_from(keys[:16], bytes(BLOCK_BYTES), engine_hashes=[77])
    with space.subscribe(wait_s=0.2) as events:
        assert next(events).kind == "resync"
        snapshot = next(events)
        assert snapshot.kind == "snapshot"
        assert snapshot.last
        assert [(e.kind, e.key, e.engine_hash) for e in snapshot.events] == [
            ("stored", keys[:16], 77)
        ]
        assert events.since is None
        space.put_from(keys[16:], bytes(BLOCK_BYTES), engine_hashes=[None])
        space.drop(keys[:16])
        seen: list[keepwarm.Event] = []
        while len(seen) < 2:
            batch = next(events)
            assert batch.kind == "events"
            seen += batch.events
        assert [(e.kind, e.key, e.engine_hash, e.tier) for e in seen] == [
            ("stored", keys[16:], None, None),
            ("removed", keys[:16], 77, "dram"),
        ]
        since = events.since
    space.drop()
    with space.subscribe(since, wait_s=0.2) as events:
        batch = next(events)
        assert (batch.kind, [e.kind for e in batch.events]) == ("events", ["cleared"])


def test_namespaces_are_apart(memory: Memory) -> None:
    one, two = make(), make(kv_dtype="fp8")
    keys = keys_of(one, 1)
    memory.attach(one).put_from(keys, bytes(BLOCK_BYTES))
    other = memory.attach(two)
    assert other.lookup(keys, lease_s=None).prefix == 0
    assert other.get_into(keys, bytearray(BLOCK_BYTES)) == [ABSENT]
    assert other.nearest is not None
    assert 'kv_dtype: "fp8"' in other.nearest
    assert other.problem is None
    assert other.joined


def test_stat_health_and_counts(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    space.put_from(keys, bytes(2 * BLOCK_BYTES))
    space.lookup(keys)
    stat = memory.stat()
    assert stat["blocks_stored"] == 2
    assert stat["used_bytes"] == 2 * BLOCK_BYTES
    assert stat["tenants"]["default"]["blocks"] == 2
    (listed,) = stat["namespaces"].values()
    assert listed["fingerprint"] == names.fingerprint.hex()
    assert listed["blocks"] == 2
    health = memory.health()
    assert health["state"] == "up"
    assert health["transport"] in ("inproc", "shm", "unix")
    counts = memory.counts()
    assert (counts["puts"], counts["lookups"], counts["blocks_stored"]) == (1, 1, 2)
    assert counts["checksum"] is True


def test_equal_outcomes_are_one_object(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    first, second = space.get_into(keys, bytearray(2))
    assert first is second
    assert first.reason == "absent"
    assert first == ABSENT


def test_the_smallest_deadline_is_an_outcome(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    data = bytes(2 * BLOCK_BYTES)
    for outcome in space.put_from(keys, data, deadline_s=0):
        assert outcome in (STORED, Outcome(Status.SHED, Reason.DEADLINE))
    for outcome in space.get_into(keys, bytearray(data), deadline_s=0):
        assert outcome.status in (Status.OK, Status.MISS)
    found = space.lookup(keys, deadline_s=0)
    assert found.miss in (None, Reason.DEADLINE, Reason.ABSENT, Reason.STORE_DOWN)


def test_keys_come_as_any_buffer(memory: Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    for shape in (keys, bytearray(keys), memoryview(keys), np.frombuffer(keys, np.uint64)):
        assert space.lookup(shape, lease_s=None).prefix in (0, 2)
        space.put_from(shape, bytes(2 * BLOCK_BYTES))
        assert space.touch(shape) == 2


def test_reprs_say_what_and_how(memory: Memory) -> None:
    assert repr(memory).startswith("<keepwarm.Memory ")
    assert "up>" in repr(memory)
    assert "model=m" in repr(memory.attach(make()))
