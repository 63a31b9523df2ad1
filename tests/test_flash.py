"""A node with flash, killed and stopped: each block is there and right afterwards, or gone."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keepwarm
import pytest
from keepwarm import Status
from keepwarm.config import load
from keepwarm.testing import blocks
from keepwarm.testing.node import NodeProcess
from nodes import keys_of, make

BLOCK_BYTES = 64 * 1024
BLOCKS = 96
ARENA_BYTES = 16 << 20
FLASH = "96MiB"
SCALE = int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))
KILLS = 20 if SCALE >= 10 else 4
SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))


def node_on(folder: Path, device: str) -> NodeProcess:
    extra = ("--state-dir", str(folder / "state"), "--flash", device, "--flash-admission", "all")
    return NodeProcess(folder, ARENA_BYTES, extra=extra)


def put_some(space: keepwarm.Space, keys: bytes, order: list[int]) -> None:
    data = bytearray(BLOCK_BYTES)
    for at in order:
        key = keys[at * 16 : at * 16 + 16]
        blocks.fill_many(key, data)
        space.put_from(key, data)


def verify_all(space: keepwarm.Space, keys: bytes) -> int:
    """Every block that comes back is right; returns how many did."""
    came, data = 0, bytearray(BLOCK_BYTES)
    for at in range(BLOCKS):
        key = keys[at * 16 : at * 16 + 16]
        (outcome,) = space.get_into(key, data, deadline_s=5)
        if outcome.status is Status.OK:
            assert blocks.check(key, data) is None, f"block {at} has other bytes"
            came += 1
    return came


def kill_again_and_again(folder: Path, device: str) -> None:
    rolls = random.Random(SEED)
    print(f"test_flash: KEEPWARM_TEST_SEED={SEED}")
    names = make()
    keys = keys_of(names, BLOCKS)
    node = node_on(folder, device)
    try:
        node.start()
        came = 0
        for _ in range(KILLS):
            node.wait_ready()
            with keepwarm.connect(node.address) as memory:
                space = memory.attach(names)
                order = rolls.sample(range(BLOCKS), BLOCKS)
                put_some(space, keys, order[: rolls.randrange(1, BLOCKS)])
                dropped = keys[order[0] * 16 : order[0] * 16 + 16]
                space.drop(dropped)
                # Some writes are under way now, some are not.
                node.kill()
                node.start()
                node.wait_ready()
                node.wait_claimed()
            with keepwarm.connect(node.address) as memory:
                space = memory.attach(names)
                assert space.lookup(dropped, lease_s=None).prefix == 0, "a drop came undone"
                came += verify_all(space, keys)
        assert came, "nothing ever survived"
    finally:
        node.stop()


def test_kill_on_a_file(folder: Path) -> None:
    kill_again_and_again(folder, f"{folder / 'flash'}={FLASH}")


@contextmanager
def loop_device(folder: Path) -> Iterator[str]:
    backing = folder / "backing"
    with backing.open("wb") as file:
        file.truncate(96 << 20)
    made = subprocess.run(
        ["losetup", "--find", "--show", str(backing)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop device needs root")
def test_kill_on_a_loop_device(folder: Path) -> None:
    with loop_device(folder) as device:
        kill_again_and_again(folder, device)


def test_sigterm_keeps_memory(folder: Path) -> None:
    names = make()
    keys = keys_of(names, BLOCKS)
    extra = ("--state-dir", str(folder / "state"), "--flash", f"{folder / 'flash'}={FLASH}")
    node = NodeProcess(folder, ARENA_BYTES, extra=extra)
    with node:
        with keepwarm.connect(node.address) as memory:
            put_some(memory.attach(names), keys, list(range(BLOCKS)))
        assert node.stat()["flash_written"] == 0, "not used again"
    assert f"wrote {BLOCKS} blocks" in node.last_line("keepwarm: wrote")
    with node:
        assert node.wait_claimed()["flash_recovered"] == BLOCKS
        with keepwarm.connect(node.address) as memory:
            assert verify_all(memory.attach(names), keys) == BLOCKS


def test_an_embedded_memory_keeps_its_blocks(folder: Path) -> None:
    names = make()
    keys = keys_of(names, 8)
    flash, state = f"{folder / 'flash'}={FLASH}", folder / "state"
    with keepwarm.open("8MiB", flash=flash, state_dir=state) as memory:
        put_some(memory.attach(names), keys, list(range(8)))
    with keepwarm.open("8MiB", flash=[folder / "flash"], state_dir=state) as memory:
        until = time.monotonic() + 10
        while memory.stat()["flash_recovering"]:
            assert time.monotonic() < until
        space = memory.attach(names)
        with space.lookup(keys) as found:
            assert (found.prefix, set(found.tiers)) == (8, {"flash"})
            assert found.restore_s > 0


def test_settings_say_what_is_wrong(folder: Path) -> None:
    flags = {"flash": [f"{folder}/a=1GiB", f"{folder}/b"], "flash_budget": "2TB"}
    config = load(flags, {}).config
    assert [str(device) for device in config.flash] == [f"{folder}/a=1.0 GiB", f"{folder}/b"]
    assert config.flash_budget == 2 * 10**12
    for wrong, says in (("a=", "give PATH"), ("a=big", "give bytes"), ("a,a", "twice")):
        with pytest.raises(keepwarm.ConfigError, match=says):
            load({"flash": wrong}, {})
    with pytest.raises(keepwarm.ConfigError, match="flag --format alone"):
        load({}, {"KEEPWARM_FORMAT": "true"})
    with pytest.raises(keepwarm.ConfigError, match="state_dir"):
        keepwarm.open("8MiB", flash=f"{folder / 'flash'}={FLASH}")
