"""What every memory must do, as checks that any test suite can call.

Authors of fakes, wrappers and transports write a `Harness` and run the checks:

>>> from keepwarm.testing.conformance import FakeHarness, check_memory
>>> check_memory(FakeHarness)
[]

With pytest, one test a check reads better::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, my_harness):
        check(my_harness)

A check that needs what a harness lacks raises `NotApplicableError` with the reason.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from keepwarm import (
    ArgumentError,
    AttachError,
    ClosedError,
    EpochOutcome,
    Namespace,
    Outcome,
    Reason,
    Status,
)
from keepwarm.testing import _misuse, blocks
from keepwarm.testing.fake import FakeMemory, FakeNode
from keepwarm.testing.namespaces import namespace
from keepwarm.testing.protocols import MemoryLike, SpaceLike
from keepwarm.testing.waiting import eventually

CAPACITY_BYTES = 8 << 20
BLOCK_BYTES = 64 * 1024
TTL_S = 60.0


class NotApplicableError(Exception):
    """The harness lacks what the check needs."""


class Harness(Protocol):
    """A node of `CAPACITY_BYTES` with policy lru, for one check at a time.

    It may still hold what other checks left behind: each check has namespaces of its own.
    """

    def memory(self) -> AbstractContextManager[MemoryLike]:
        """A new handle on the node; may be called several times."""
        ...

    def advance(self, seconds: float) -> None:
        """Lets time pass for the node.

        On a real clock: nothing below a second, since checks then poll; beyond, it raises
        NotApplicableError instead of waiting.
        """
        ...


class FakeHarness:
    """The harness of the fake itself; blocks live for `TTL_S`."""

    def __init__(self) -> None:
        self.node = FakeNode(CAPACITY_BYTES, ttl_s=TTL_S)

    @contextmanager
    def memory(self) -> Iterator[MemoryLike]:
        """A handle on the one node."""
        with FakeMemory(node=self.node) as memory:
            yield memory

    def advance(self, seconds: float) -> None:
        """Moves the clock."""
        self.node.clock.advance(seconds)


Check = Callable[[Harness], None]


def _expect(condition: bool, said: str) -> None:
    if not condition:
        raise AssertionError(said)


_CHECK_NUMBERS = itertools.count(1)


def _names(**changes: Any) -> Namespace:
    """A namespace that no other check has used, so that checks may share a node."""
    return namespace(weights=f"test:{os.getpid()}:{next(_CHECK_NUMBERS)}", **changes)


def _keys(names: Namespace, count: int, first_token: int = 1) -> bytes:
    tokens = range(first_token, first_token + count * names.block_tokens)
    return names.block_keys(list(tokens))


def _put(space: SpaceLike, keys: bytes, length: int = BLOCK_BYTES, part: int = 0) -> list[Outcome]:
    data = bytearray(len(keys) // 16 * length)
    blocks.fill_many(keys, data, part)
    return space.put_from(keys, data, part=part)


def _get(space: SpaceLike, keys: bytes, length: int = BLOCK_BYTES, part: int = 0) -> list[Outcome]:
    """Gets and verifies: a byte that is wrong under an `ok` fails the check whatever it tests."""
    data = bytearray(len(keys) // 16 * length)
    outcomes = space.get_into(keys, data, part=part)
    _expect(len(outcomes) == len(keys) // 16, "one outcome a key")
    for (key, share), outcome in zip(blocks.shares(keys, data), outcomes, strict=True):
        if outcome.status is Status.OK:
            wrong = blocks.check(key, share, part)
            _expect(wrong is None, f"ok with wrong bytes: {wrong}")
    return outcomes


def _all(outcomes: Iterable[Outcome], status: Status) -> None:
    listed = list(outcomes)
    _expect(all(o.status is status for o in listed), f"want all {status}, got {set(listed)}")


def check_round_trip(harness: Harness) -> None:
    """What is put comes back byte for byte, at every odd length."""
    names = _names()
    with harness.memory() as memory:
        space = memory.attach(names)
        for place, length in enumerate((1, 7, 4095, 4096, 4097, BLOCK_BYTES, 1 << 20)):
            keys = _keys(names, 1, first_token=1 + 100 * place)
            _all(_put(space, keys, length), Status.STORED)
            _all(_get(space, keys, length), Status.OK)


def check_handles_share_a_node(harness: Harness) -> None:
    """What one handle puts another one gets; what it drops is gone for both."""
    names = _names()
    keys = _keys(names, 3)
    with harness.memory() as one, harness.memory() as two:
        _all(_put(one.attach(names), keys), Status.STORED)
        _all(_get(two.attach(names), keys), Status.OK)
        _all(_put(two.attach(names), keys), Status.PRESENT)
        two.attach(names).drop()
        outcomes = _get(one.attach(names), keys)
        _expect(all(o.status is Status.MISS for o in outcomes), "gone for both")


def check_buffer_forms(harness: Harness) -> None:
    """One buffer split evenly and a sequence of buffers mean the same."""
    names = _names()
    keys = _keys(names, 3)
    with harness.memory() as memory:
        space = memory.attach(names)
        apart = [blocks.content(key, BLOCK_BYTES) for key in blocks.split_keys(keys)]
        _all(space.put_from(keys, apart), Status.STORED)
        _all(_get(space, keys), Status.OK)
        into = [bytearray(BLOCK_BYTES) for _ in apart]
        _all(space.get_into(keys, into), Status.OK)
        _expect([bytes(each) for each in into] == apart, "each block in its own buffer")


def check_nothing_here(harness: Harness) -> None:
    """An empty node misses as absent; no keys are no error."""
    names = _names()
    keys = _keys(names, 4)
    with harness.memory() as memory:
        space = memory.attach(names)
        with space.lookup(keys) as found:
            _expect(found.prefix == 0 and list(found.hits) == [False] * 4, "no hits")
            _expect(found.miss is Reason.ABSENT, f"want absent, got {found.miss}")
            _expect(found.lease is None, "no lease on nothing")
        _expect(set(_get(space, keys)) == {Outcome(Status.MISS, Reason.ABSENT)}, "gets miss")
        with space.lookup(b"") as nothing:
            _expect(nothing.prefix == 0 and nothing.miss is None, "nothing asked, nothing missed")
        _expect(space.touch(keys) == 0, "nothing to touch")


def check_prefix_and_gap(harness: Harness) -> None:
    """The prefix ends at the first gap; hits behind it are shown, and gets of them work."""
    names = _names()
    keys = _keys(names, 6)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys[: 2 * 16])
        _put(space, keys[3 * 16 : 5 * 16])
        with space.lookup(keys) as found:
            _expect(found.prefix == 2, f"prefix {found.prefix}, want 2")
            _expect(list(found.hits) == [True, True, False, True, True, False], "bitmap")
            _expect(found.miss is Reason.ABSENT, "the first gap is absent")
            _expect(found.lengths[0] == BLOCK_BYTES, "length of the first part")
        statuses = [outcome.status for outcome in _get(space, keys)]
        ok, miss = Status.OK, Status.MISS
        _expect(statuses == [ok, ok, miss, ok, ok, miss], f"gets: {statuses}")


def check_written_once(harness: Harness) -> None:
    """A second put is `present` and changes nothing."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        _all(space.put_from(keys, bytes(2 * BLOCK_BYTES)), Status.PRESENT)
        _all(_get(space, keys), Status.OK)


def check_wrong_length(harness: Harness) -> None:
    """A destination of another length is a miss with `identity`, never part of a block."""
    names = _names()
    keys = _keys(names, 1)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        for length in (BLOCK_BYTES - 1, BLOCK_BYTES + 1, 1):
            outcome = space.get_into(keys, bytearray(length))[0]
            want = Outcome(Status.MISS, Reason.IDENTITY)
            _expect(outcome == want, f"{length} bytes: {outcome}, want {want}")
        _expect(space.problem is None, "the namespace is not to blame")
        _all(_get(space, keys), Status.OK)


def check_parts(harness: Harness) -> None:
    """A block is visible only when all its parts are in; each part is its own bytes."""
    names = _names(parts=3)
    keys = _keys(names, 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        for part in (0, 2):
            _all(_put(space, keys, part=part), Status.STORED)
            with space.lookup(keys) as found:
                _expect(found.prefix == 0, "not visible before its last part")
                _expect(found.miss is Reason.PENDING, f"want pending, got {found.miss}")
            early = {outcome.status for outcome in _get(space, keys, part=part)}
            _expect(Status.OK not in early, "no bytes of an incomplete block")
        _all(_put(space, keys, part=0), Status.PENDING)
        _all(_put(space, keys, length=4096, part=1), Status.STORED)
        with space.lookup(keys) as found:
            _expect(found.prefix == 2, "visible with its last part")
        for part, length in ((0, BLOCK_BYTES), (1, 4096), (2, BLOCK_BYTES)):
            _all(_get(space, keys, length, part), Status.OK)
        _all(_put(space, keys, part=2), Status.PRESENT)
        _all(_put(space, keys, part=1), Status.SHED)


def check_identity(harness: Harness) -> None:
    """Another namespace neither computes the same keys nor sees the blocks of the same keys."""
    mine, yours = _names(), namespace(kv_dtype="fp8")
    keys = _keys(mine, 2)
    _expect(keys != _keys(yours, 2), "keys depend on the namespace")
    with harness.memory() as memory:
        _put(memory.attach(mine), keys)
        with memory.attach(yours).lookup(keys) as found:
            _expect(found.prefix == 0, "blocks belong to their namespace")
        outcomes = _get(memory.attach(yours), keys)
        _expect(all(o.status is Status.MISS for o in outcomes), "gets miss elsewhere")


def check_epochs(harness: Harness) -> None:
    """A larger epoch hides all older blocks; what is put under it is here."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        _expect(space.bump_epoch(7) is EpochOutcome.ACKNOWLEDGED, "nothing is leased")
        with space.lookup(keys) as found:
            _expect(found.prefix == 0, "hidden by the bump")
            _expect(found.miss is Reason.EPOCH, f"want epoch, got {found.miss}")
        _expect(all(o.status is Status.MISS for o in _get(space, keys)), "gets miss")
        _all(_put(space, keys), Status.STORED)
        _all(_get(memory.attach(names, epoch=7), keys), Status.OK)
        _expect(memory.attach(names).epoch == 7, "without an epoch the node's is taken")
        refused = ""
        try:
            memory.attach(names, epoch=6)
        except AttachError as error:
            refused = str(error)
        _expect("epoch 7" in refused and "epoch 6" in refused, "an older epoch is refused, by name")


def check_epochs_across_handles(harness: Harness) -> None:
    """A handle that still has the old epoch gets nothing old or new, and stores nothing."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as memory, harness.memory() as old:
        before, after = old.attach(names), memory.attach(names)
        _put(before, keys)
        after.bump_epoch(7)
        late = _get(before, keys)
        _expect(all(o.status is not Status.OK for o in late), "an old handle gets nothing")
        shed = {outcome.status for outcome in _put(before, keys)}
        _expect(Status.STORED not in shed, "an old epoch stores nothing")
        _all(_put(after, keys), Status.STORED)
        _all(_get(after, keys), Status.OK)


def check_drop(harness: Harness) -> None:
    """Dropped blocks are gone at once, as if they had never been; the next put is stored."""
    names = _names()
    keys = _keys(names, 4)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        _expect(space.drop(keys[16:32]) == 1, "one block dropped")
        with space.lookup(keys) as found:
            _expect(list(found.hits) == [True, False, True, True], "only that one")
            _expect(found.miss is Reason.ABSENT, f"want absent, got {found.miss}")
        _expect(space.drop() == 3, "the rest dropped")
        with space.lookup(keys) as found:
            _expect(not any(found.hits), "all gone")
        _all(_put(space, keys), Status.STORED)
        _all(_get(space, keys), Status.OK)


def check_eviction_is_least_recently_used(harness: Harness) -> None:
    """Room is made by the least recently used; a get and a touch are uses, a lookup is not."""
    names = _names()
    capacity = CAPACITY_BYTES // BLOCK_BYTES
    with harness.memory() as memory:
        space = memory.attach(names)
        got, touched, looked = (_keys(names, 1, first) for first in (1, 101, 201))
        for keys in (got, touched, looked):
            _all(_put(space, keys), Status.STORED)
        for place in range(3 * capacity):
            _all(_put(space, _keys(names, 1, 1_000 + 100 * place)), Status.STORED)
            _all(_get(space, got), Status.OK)
            _expect(space.touch(touched) == 1, "touched and here")
            space.lookup(looked, lease_s=None)
        with space.lookup(looked) as found:
            _expect(found.miss is Reason.EVICTED, f"looked at only: {found.miss}, want evicted")
        with space.lookup(got + touched) as found:
            _expect(found.prefix == 2, "what is used stays")


def check_leases_pin(harness: Harness) -> None:
    """Leased blocks survive any pressure, until released."""
    names = _names()
    capacity = CAPACITY_BYTES // BLOCK_BYTES
    keys = _keys(names, capacity // 8)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        with space.lookup(keys, lease_s=10.0) as found:
            _expect(found.lease is not None, "leased below every cap")
            for place in range(2 * capacity):
                _put(space, _keys(names, 1, 10_000 + 100 * place))
            _all(_get(space, keys), Status.OK)
        for place in range(2 * capacity):
            _put(space, _keys(names, 1, 1_000_000 + 100 * place))
        with space.lookup(keys) as found:
            _expect(found.prefix == 0, "released blocks leave")
        _expect(memory.stat()["leases"] == 0, "no lease is left")


def check_leases_end_with_their_handle(harness: Harness) -> None:
    """The leases of a closed handle end, by their time at the latest."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as watching:
        with harness.memory() as memory:
            _put(memory.attach(names), keys)
            found = memory.attach(names).lookup(keys, lease_s=2.0)
            _expect(found.lease is not None, "leased")
            _expect(watching.stat()["leases"] == 1, "one lease")
        eventually(lambda: watching.stat()["leases"] == 0, "the lease ends")


def check_leases_are_capped(harness: Harness) -> None:
    """Beyond a quarter of the memory for one tenant a lookup answers without a lease."""
    names = _names()
    keys = _keys(names, CAPACITY_BYTES // BLOCK_BYTES // 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        with space.lookup(keys, lease_s=10.0) as found:
            _expect(found.prefix == len(keys) // 16, "hits are shown")
            _expect(found.lease is None, "unleased, and it says so")
        _all(_get(space, keys), Status.OK)


def check_leases_end_by_the_clock(harness: Harness) -> None:
    """A lease nobody releases ends by itself."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        found = space.lookup(keys, lease_s=0.2)
        _expect(found.lease is not None, "leased")
        harness.advance(0.3)
        eventually(lambda: memory.stat()["leases"] == 0, "the lease ends by itself")


def check_time_to_live(harness: Harness) -> None:
    """After its time a block misses as expired, used or not; the next put is stored."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys)
        harness.advance(TTL_S / 2)
        _all(_get(space, keys), Status.OK)
        harness.advance(TTL_S / 2 + 1)
        with space.lookup(keys) as found:
            _expect(found.miss is Reason.EXPIRED, f"want expired, got {found.miss}")
        _all(_put(space, keys), Status.STORED)


def check_incomplete_blocks_end(harness: Harness) -> None:
    """A block whose parts never all come is taken back."""
    names = _names(parts=2)
    keys = _keys(names, 1)
    with harness.memory() as memory:
        space = memory.attach(names)
        _put(space, keys, part=0)
        harness.advance(31.0)
        with space.lookup(keys) as found:
            _expect(found.miss is Reason.ABSENT, f"want absent, got {found.miss}")
        _expect(memory.stat()["used_bytes"] == 0, "its bytes are free")


def check_closing(harness: Harness) -> None:
    """A closed memory says so; closing twice is harmless."""
    names = _names()
    with harness.memory() as memory:
        space = memory.attach(names)
        memory.close()
        memory.close()
        calls: list[Callable[[], Any]] = [
            lambda: space.lookup(_keys(names, 1)),
            lambda: _get(space, _keys(names, 1)),
            lambda: memory.attach(names),
        ]
        for call in calls:
            try:
                call()
            except ClosedError:
                continue
            raise AssertionError("a closed memory answered")


def check_misuse(harness: Harness) -> None:
    """Arguments that cannot be meant are ArgumentError, before anything is touched."""
    names = _names()
    keys = _keys(names, 2)
    with harness.memory() as memory:
        space = memory.attach(names)
        for what, call in _misuse.calls(space, keys, BLOCK_BYTES).items():
            try:
                call()
            except ArgumentError:
                continue
            raise AssertionError(f"{what} was accepted")
        passed = space.get_into(keys, bytearray(2 * BLOCK_BYTES), deadline_s=-1.0)
        _expect(all(o.status is Status.MISS for o in passed), "a deadline that has passed")


CHECKS: tuple[Check, ...] = (
    check_round_trip,
    check_handles_share_a_node,
    check_buffer_forms,
    check_nothing_here,
    check_prefix_and_gap,
    check_written_once,
    check_wrong_length,
    check_parts,
    check_identity,
    check_epochs,
    check_epochs_across_handles,
    check_drop,
    check_eviction_is_least_recently_used,
    check_leases_pin,
    check_leases_end_with_their_handle,
    check_leases_are_capped,
    check_leases_end_by_the_clock,
    check_time_to_live,
    check_incomplete_blocks_end,
    check_closing,
    check_misuse,
)


def check_memory(make_harness: Callable[[], Harness]) -> list[str]:
    """Runs every check, each on a harness of its own; returns what failed, one line each."""
    failures = []
    for check in CHECKS:
        try:
            check(make_harness())
        except NotApplicableError:
            continue
        except Exception as error:
            failures.append(f"{check.__name__}: {type(error).__name__}: {error}")
    return failures
