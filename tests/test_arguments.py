"""Every argument that cannot be meant is refused by name, with what to do; no byte moves."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from keepwarm import ArgumentError, ClosedError, ConfigError, Memory, Namespace, Space
from nodes import BLOCK_BYTES, keys_of, make

KEYS = 2
Call = Callable[[Space, bytes], Any]


@pytest.fixture
def space(memory: Memory) -> Space:
    return memory.attach(make())


def overlapping() -> list[memoryview]:
    whole = memoryview(bytearray(2 * BLOCK_BYTES))
    return [whole[:BLOCK_BYTES], whole[BLOCK_BYTES - 1 : -1]]


def get(buffers: Any) -> Call:
    return lambda space, keys: space.get_into(keys, buffers)


def put(buffers: Any) -> Call:
    return lambda space, keys: space.put_from(keys, buffers)


STRIDED = np.zeros((KEYS * BLOCK_BYTES, 2), dtype=np.uint8)[:, 0]
BAD: dict[str, tuple[Call, str]] = {
    "half a key": (
        lambda space, keys: space.lookup(keys[:-1]),
        "keys has 31 bytes, which is no contiguous multiple of 16: pass 16 bytes per key",
    ),
    "keys in a list": (
        lambda space, keys: space.lookup([keys]),  # type: ignore[arg-type]
        "keys is list: pass one buffer with 16 bytes per key",
    ),
    "keys as text": (
        lambda space, _: space.touch("k" * 16),  # type: ignore[arg-type]
        "keys is str: pass one buffer",
    ),
    "strided keys": (
        lambda space, keys: space.lookup(memoryview(keys + keys)[::2]),
        "keys has 32 bytes, which is no contiguous multiple",
    ),
    "a million keys": (
        lambda space, _: space.lookup(bytes(16_000_000)),
        "keys holds 1000000 keys, more than 65536 for one call: split it",
    ),
    "a million keys to get": (
        lambda space, _: space.get_into(bytes(16_000_000), bytearray(1_000_000)),
        "keys holds 1000000 keys, more than 65536",
    ),
    "uneven": (
        get(bytearray(2 * BLOCK_BYTES + 1)),
        "buffers has 131073 bytes, which do not split evenly over 2 keys: pass a multiple of 2",
    ),
    "a buffer too few": (
        get([bytearray(9)]),
        "buffers has 1 entries for 2 keys: pass one per key",
    ),
    "a buffer too many": (put([b"a"] * 3), "buffers has 3 entries for 2 keys: pass one per key"),
    "read-only": (get(bytes(2)), "buffers is read-only: pass writable memory, such as a bytearray"),
    "one read-only": (get([bytearray(1), b"1"]), r"buffers\[1\] is read-only"),
    "read-only array": (get(np.frombuffer(b"12", np.uint8)), "buffers is read-only"),
    "strided": (get(STRIDED), "buffers is not C-contiguous: pass a contiguous slice, or copy"),
    "strided put": (put([b"a", STRIDED]), r"buffers\[1\] is not C-contiguous"),
    "fortran": (put(np.zeros((2, 4), order="F")), "buffers is not C-contiguous"),
    "empty": (get(bytearray()), "buffers is empty: a block has one byte or more"),
    "one empty": (put([b"a", b""]), r"buffers\[1\] is empty"),
    "null": (get([bytearray(1), (0, 5)]), r"buffers\[1\] is a null pointer"),
    "null put": (put((0, 10)), "buffers is a null pointer: pass the address"),
    "zero length": (put([(1 << 40, 0), b"a"]), r"buffers\[0\] is empty"),
    "beyond the end": (
        put([((1 << 64) - 4, 8), b"a"]),
        r"buffers\[0\] goes beyond the end of the address space",
    ),
    "negative pointer": (get([(-1, 8), bytearray(1)]), r"buffers\[0\] is no \(pointer, length\)"),
    "overlap": (
        get(overlapping()),
        r"buffers\[0\] and buffers\[1\] overlap: give each key its own",
    ),
    "overlapping pointers": (
        get([(1 << 40, 8), ((1 << 40) + 7, 8)]),
        r"buffers\[0\] and buffers\[1\] overlap",
    ),
    "no buffer": (get(7), "buffers is int: pass one buffer, or a sequence"),
    "none": (put(None), "buffers is NoneType: pass one buffer, or a sequence"),
    "no buffer inside": (put([b"a", 7]), r"buffers\[1\] is int: pass an object with the buffer"),
    "text": (put("ab"), r"buffers\[0\] is str: pass an object with the buffer"),
    "objects": (put(np.array([None, None])), "buffers holds Python objects"),
    "part": (
        lambda space, keys: space.get_into(keys, bytearray(2), part=256),
        "part is 256: pass a whole number from 0 to 255",
    ),
    "negative part": (lambda space, keys: space.put_from(keys, b"ab", part=-1), "part is -1"),
    "position": (lambda space, keys: space.lookup(keys, -1), "first_position is -1"),
    "no position": (
        lambda space, keys: space.lookup(keys, "0"),  # type: ignore[arg-type]
        "first_position is '0'",
    ),
    "no deadline": (
        lambda space, keys: space.lookup(keys, deadline_s="soon"),  # type: ignore[arg-type]
        "deadline_s is 'soon': pass seconds, such as 0.5",
    ),
    "endless deadline": (
        lambda space, keys: space.put_from(keys, b"ab", deadline_s=float("inf")),
        "deadline_s is inf: pass seconds",
    ),
    "lease": (lambda space, keys: space.lookup(keys, lease_s=-2), "lease_s is -2: pass seconds"),
    "no lease": (
        lambda space, keys: space.lookup(keys, lease_s="2s"),  # type: ignore[arg-type]
        "lease_s is '2s': pass seconds",
    ),
    "no hold": (lambda space, _: space.renew(7, None), "hold_s is None"),  # type: ignore[arg-type]
    "no hashes": (
        lambda space, keys: space.put_from(keys, b"ab", engine_hashes=5),  # type: ignore[arg-type]
        "engine_hashes is 5: pass one number, or None, a key",
    ),
    "half a place": (
        lambda space, _: space.subscribe(since=(1,)),  # type: ignore[arg-type]
        r"since is \(1,\): pass \(incarnation, sequence\)",
    ),
    "negative place": (lambda space, _: space.subscribe(since=(-1, 2)), r"since\[0\] is -1"),
    "hashes": (
        lambda space, keys: space.put_from(keys, b"ab", engine_hashes=[1]),
        "engine_hashes has 1 entries for 2 keys: pass one per key, None where there is none",
    ),
    "hash": (
        lambda space, keys: space.put_from(keys, b"ab", engine_hashes=[1, 1 << 64]),
        r"engine_hashes\[1\] is 18446744073709551616: pass a whole number",
    ),
    "report of two": (lambda space, keys: space.report(keys, 1), "key has not exactly 16 bytes"),
    "generation": (lambda space, keys: space.report(keys[:16], -1), "generation is -1"),
    "epoch": (lambda space, _: space.bump_epoch(1 << 32), "epoch is 4294967296"),
    "lease number": (lambda space, _: space.release(-5), "lease is -5"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments_are_named(space: Space, what: str) -> None:
    call, names = BAD[what]
    keys = keys_of(space.namespace, KEYS)
    with pytest.raises(ArgumentError, match=names):
        call(space, keys)
    with space.lookup(keys) as found:
        assert found.prefix == 0
    assert space.put_from(keys, b"ab")[0].status == "stored"


@pytest.mark.parametrize("passed", [-1e-6, float("-inf"), float("nan")])
def test_a_deadline_that_has_passed_is_no_error(space: Space, passed: float) -> None:
    keys = keys_of(space.namespace, KEYS)
    space.lookup(keys, deadline_s=passed).release(passed)
    for outcome in space.get_into(keys, bytearray(2), deadline_s=passed):
        assert outcome == ("miss", "deadline")
    for outcome in space.put_from(keys, b"ab", deadline_s=passed):
        assert outcome == ("shed", "deadline")
    assert space.touch(keys, passed) == 0
    assert (
        asyncio.run(space.aio.get_into(keys, bytearray(2), deadline_s=passed))
        == [("miss", "deadline")] * KEYS
    )


def test_attach_names_its_arguments(memory: Memory) -> None:
    with pytest.raises(ArgumentError, match=r"namespace is dict: pass a keepwarm\.Namespace"):
        memory.attach({})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="epoch is -1"):
        memory.attach(make(), epoch=-1)


def test_a_sequence_that_lies_about_its_length(space: Space) -> None:
    class Liar(list[Any]):
        def __len__(self) -> int:
            return KEYS

    for given in ([b"a"], [b"a", b"b", b"c"]):
        keys = keys_of(space.namespace, KEYS)
        with pytest.raises(ArgumentError, match="changed its length"):
            space.put_from(keys, Liar(given))


def test_an_exporter_that_fails(space: Space) -> None:
    released = memoryview(bytearray(2))
    released.release()
    with pytest.raises((ArgumentError, ValueError), match=r"buffers|released"):
        space.get_into(keys_of(space.namespace, KEYS), released)


def test_a_lookup_keeps_nothing_of_a_bad_put(space: Space) -> None:
    keys = keys_of(space.namespace, 3)
    with pytest.raises(ArgumentError):
        space.put_from(keys, [b"a", b"b", (0, 0)])
    assert space.lookup(keys, lease_s=None).hits == [False] * 3


def test_structures_are_bytes(space: Space) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint64), ("b", ctypes.c_uint64))

    key = keys_of(space.namespace, 1)
    assert space.put_from(key, Pair(7, 9))[0].status == "stored"
    landed = Pair()
    assert space.get_into(key, landed)[0].status == "ok"
    assert (landed.a, landed.b) == (7, 9)


def test_after_close(memory: Memory) -> None:
    names: Namespace = make()
    space = memory.attach(names)
    keys = keys_of(names, 1)
    found = space.lookup(keys)
    memory.close()
    memory.close()
    calls: list[Callable[[], Any]] = [
        lambda: space.lookup(keys),
        lambda: space.get_into(keys, bytearray(1)),
        lambda: space.put_from(keys, b"a"),
        lambda: space.touch(keys),
        lambda: space.renew(7),
        lambda: space.release(7),
        lambda: space.report(keys, 1),
        lambda: space.drop(),
        lambda: space.bump_epoch(1),
        lambda: space.subscribe(),
        lambda: space.epoch,
        lambda: memory.stat(),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="closed"):
            call()
    with pytest.raises(ClosedError, match="closed"):
        memory.attach(names)
    with found:
        pass
    assert memory.health()["state"] == "closed"
    assert "closed" in repr(memory)


def test_settings_of_open_and_connect_are_named(folder: Any) -> None:
    import keepwarm

    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: keepwarm.open(10**30), "capacity is 10+: give at most 1024 PiB"),
        (lambda: keepwarm.open("9" * 400 + "GiB"), "capacity is '9.*: give at most 1024 PiB"),
        (lambda: keepwarm.connect(b"/tmp/x"), "address is b'/tmp/x'"),  # type: ignore[arg-type]
        (lambda: keepwarm.open("much"), "capacity is 'much': give bytes, such as 16GiB"),
        (lambda: keepwarm.open(True), "capacity is True"),
        (lambda: keepwarm.open("1KiB"), "capacity"),
        (
            lambda: keepwarm.open("1MiB", policy="best"),
            'policy is "best": give one of default, adaptive, lru, fifo',
        ),
        (lambda: keepwarm.open("1MiB", ttl_s=0), "ttl_s is 0: give seconds above 0"),
        (lambda: keepwarm.open("100TiB"), "(?i)memory|capacity"),
        (lambda: keepwarm.connect(""), "address is empty"),
        (lambda: keepwarm.connect("ftp://a:1"), "of a kind that this version does not know"),
        (lambda: keepwarm.connect("tcp://::1"), "has an IPv6 address without brackets"),
        (lambda: keepwarm.connect("/" + "x" * 200), "201 bytes, at most 107 fit"),
        (lambda: keepwarm.connect(folder), "is not a socket: give the path of a node's socket"),
        (lambda: keepwarm.connect("/x", connections_max=0), "connections_max is 0"),
    ]
    for call, names in bad:
        with pytest.raises(ConfigError, match=names) as caught:
            call()
        assert caught.value.setting
    with pytest.raises(ArgumentError, match="ttl_s is '1h': pass seconds"):
        keepwarm.open("1MiB", ttl_s="1h")  # type: ignore[arg-type]
