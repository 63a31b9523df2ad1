"""Nothing grows: descriptors, threads and memory after a thousand times open and close."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keepwarm
import pytest
from nodes import LocalNode, eventually, keys_of, make

TIMES = 1000
GROWTH_BYTES_MAX = 12 << 20


class Held(NamedTuple):
    """What this process holds."""

    descriptors: int
    threads: int
    resident_bytes: int


def held() -> Held:
    gc.collect()
    status = Path("/proc/self/status").read_text()

    def number(name: str) -> int:
        match = re.search(rf"^{name}:\s*(\d+)", status, re.MULTILINE)
        assert match
        return int(match[1])

    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return Held(descriptors, number("Threads"), number("VmRSS") << 10)


def embedded(_: LocalNode) -> None:
    with keepwarm.open("1MiB") as memory:
        use(memory)


def connected(node: LocalNode) -> None:
    with node.connect(connections_max=2) as memory:
        use(memory)


def dropped(node: LocalNode) -> None:
    """Closed by nobody: its last reference goes."""
    use(node.connect(connections_max=2))


def use(memory: keepwarm.Memory) -> None:
    names = make()
    space, keys = memory.attach(names), keys_of(names, 2)
    space.put_from(keys, bytes(2 * 4096))
    with space.lookup(keys) as found:
        assert found.prefix == 2
    space.get_into(keys, bytearray(2 * 4096))


@pytest.mark.parametrize("way", [embedded, connected, dropped])
def test_opening_and_closing_leaves_nothing(
    node: LocalNode, way: Callable[[LocalNode], None]
) -> None:
    for _ in range(50):
        way(node)
    before = held()
    for _ in range(TIMES):
        way(node)

    def settled() -> bool:
        after = held()
        return after.descriptors <= before.descriptors and after.threads <= before.threads

    eventually(settled)
    growth = held().resident_bytes - before.resident_bytes
    print(f"{TIMES} times {way.__name__}: resident memory grew by {growth >> 10} KiB")
    assert growth < GROWTH_BYTES_MAX


def test_calls_leave_nothing(node: LocalNode) -> None:
    names = make()
    with node.connect() as memory:
        space, keys = memory.attach(names), keys_of(names, 64)
        data, into = bytes(64 * 512), bytearray(64 * 512)
        each = [memoryview(into)[at : at + 512] for at in range(0, len(into), 512)]

        def calls(times: int) -> None:
            for _ in range(times):
                space.put_from(keys, data)
                with space.lookup(keys) as found:
                    assert found.hits[0]
                space.get_into(keys, each)
                names.block_keys(range(64))

        calls(200)
        before = held()
        calls(2000)
        after = held()
    assert after.descriptors == before.descriptors
    assert after.threads == before.threads
    assert after.resident_bytes - before.resident_bytes < GROWTH_BYTES_MAX
