"""Several nodes as one memory, from Python: addresses, prompts, what commands show."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import keepwarm
import pytest
from keepwarm import ArgumentError, ConfigError, Event, NodeError, Status
from keepwarm.config import parse_addresses
from keepwarm.testing import blocks, eventually, namespace
from served import Served, run, served

NODES = 3
BLOCKS = 160
BLOCK_BYTES = 4096
NAMES = namespace(block_tokens=2, run_blocks=4)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    with ExitStack() as stack:
        made = []
        for _ in range(NODES):
            folder = tmp_path_factory.mktemp("n")
            file = folder / "keepwarm.toml"
            file.write_text("weight = 1\n")
            made.append(stack.enter_context(served(folder, "--config", str(file))))
        yield made


def addresses(nodes: list[Served]) -> list[str]:
    return [f"unix:{node.address}" for node in nodes]


def prompt_of(number: int) -> keepwarm.Prompt:
    return NAMES.prompt(range(number * 1000, number * 1000 + 2 * BLOCKS))


def put(space: keepwarm.Space, prompt: keepwarm.Prompt) -> set[Status]:
    data = bytearray(BLOCK_BYTES * len(prompt))
    blocks.fill_many(prompt.keys, data)
    return {outcome.status for outcome in space.put_from(prompt, data)}


def test_a_prompt_is_spread_and_found_again(nodes: list[Served]) -> None:
    with (
        keepwarm.connect(addresses(nodes)) as memory,
        keepwarm.connect(",".join(reversed(addresses(nodes)))) as other,
    ):
        prompt = prompt_of(1)
        assert put(memory.attach(NAMES), prompt[:7]) == {Status.STORED}
        assert put(memory.attach(NAMES), prompt[7:]) == {Status.STORED}
        space = other.attach(NAMES)
        with space.lookup(prompt) as found:
            assert found.prefix == BLOCKS
        into = bytearray(BLOCK_BYTES * (BLOCKS - 5))
        got = space.get_into(prompt[5:], into)
        assert {outcome.status for outcome in got} == {Status.OK}
        for key, share in blocks.shares(prompt[5:].keys, into):
            assert blocks.check(key, share) is None
        assert space.touch(prompt) == BLOCKS
        async_got = asyncio.run(space.aio.get_into(prompt[5:], into))
        assert async_got == got
        stat = other.stat()
        assert len(stat["nodes"]) == NODES
        each = [node["figures"]["blocks"] for node in stat["nodes"]]
        assert sum(each) == stat["blocks"] >= BLOCKS
        assert all(each), "every node has a part"
        health = other.health()
        assert (health["transport"], health["state"]) == ("fleet", "up")
        assert {node["state"] for node in health["nodes"]} == {"steady"}
        assert sum(node["share"] for node in health["nodes"]) == pytest.approx(1.0)


def test_plain_keys_are_refused_where_positions_matter(nodes: list[Served]) -> None:
    with keepwarm.connect(addresses(nodes)) as memory:
        space, prompt = memory.attach(NAMES), prompt_of(2)
        for call in (
            lambda: space.lookup(prompt.keys),
            lambda: space.get_into(prompt.keys, bytearray(BLOCKS)),
            lambda: space.put_from(prompt.keys, bytes(BLOCKS)),
            lambda: space.touch(prompt.keys),
        ):
            with pytest.raises(ArgumentError, match="pass a Prompt"):
                call()
        with space.lookup(prompt.keys, first_position=0) as found:
            assert found.prefix == 0
        alone = memory.attach(namespace(run_blocks=1))
        assert alone.put_from(bytes(16), b"b")[0].status is Status.STORED
        assert space.drop(prompt.keys) == 0


def test_events_name_their_node_and_go_on(nodes: list[Served]) -> None:
    with keepwarm.connect(addresses(nodes)) as memory:
        space = memory.attach(NAMES)
        with space.subscribe(wait_s=0.05) as stream:
            eventually(lambda: bool(next(stream)) and len(stream.since or ()) == NODES, "snapshots")
            since = stream.since
        put(space, prompt_of(3))
        events: list[tuple[str | None, Event]] = []
        with space.subscribe(since, wait_s=0.05) as stream:

            def more() -> bool:
                batch = next(stream)
                events.extend((batch.node, event) for event in batch.events)
                return len(events) == BLOCKS

            eventually(more, "each block's event")
        assert {event.kind for _, event in events} == {"stored"}
        assert {node for node, _ in events} == set(addresses(nodes))


def test_weight_is_read_again_and_a_node_drains(nodes: list[Served]) -> None:
    with keepwarm.connect(addresses(nodes)) as memory:
        space, node = memory.attach(NAMES), nodes[2]
        file = node.address.parent / "keepwarm.toml"

        def weigh(weight: float) -> None:
            file.write_text(f"weight = {weight}\n")
            os.kill(node.process.pid, signal.SIGHUP)

        def state() -> str:
            return str(memory.health()["nodes"][2]["state"])

        weigh(0)
        eventually(lambda: state() == "draining", "clients hear of it")
        before = memory.stat()["nodes"][2]["figures"]["blocks"]
        put(space, prompt_of(4))
        assert memory.stat()["nodes"][2]["figures"]["blocks"] == before
        with space.lookup(prompt_of(4)) as found:
            assert found.prefix == BLOCKS
        weigh(2)
        eventually(lambda: memory.health()["nodes"][2]["share"] == 0.5, "and of its new share")
        shown = run("stat", "--address", ",".join(addresses(nodes)))
        assert "50.0 %" in shown.stdout
        assert "3, of which 3 answered" in shown.stdout
        weigh(1)


def test_a_node_that_is_gone_is_named(nodes: list[Served], tmp_path: Path) -> None:
    gone = f"unix:{tmp_path / 'gone.sock'}"
    where = [*addresses(nodes), gone]
    with keepwarm.connect(where) as memory:
        space, prompt = memory.attach(NAMES), prompt_of(5)
        with space.lookup(prompt) as found:
            assert found.miss is not None
        assert space.bump_epoch(1) is keepwarm.EpochOutcome.NOT_REACHED
        assert space.behind == [gone]
        with pytest.raises(NodeError, match=r"gone\.sock"):
            space.drop()
        shown = run("stat", "--json", KEEPWARM_ADDRESS=",".join(where))
        rows = {node["name"]: node for node in json.loads(shown.stdout)["nodes"]}
        assert rows[gone]["up"] == 0
        assert rows[gone]["figures"] is None


def test_addresses_as_people_give_them(tmp_path: Path) -> None:
    assert parse_addresses("/a, unix:/b") == ["/a", "/b"]
    assert parse_addresses(["/a", "tcp://h"]) == ["/a", "tcp://h:9478"]
    assert parse_addresses(tmp_path / "a,b") == [str(tmp_path / "a,b")]
    assert parse_addresses("dns://cache.internal") == ["dns://cache.internal:9478"]
    for wrong, says in (
        ("/a,,/b", "empty"),
        (["/a", 7], "address is 7"),
        ([], "give unix:/path"),
        ("dns://a b", "no host"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_addresses(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="twice"):
        keepwarm.connect("/absent/x,/absent/x")


def test_a_name_stands_for_its_nodes() -> None:
    with keepwarm.connect("dns://localhost:1") as memory:
        assert [node["name"] for node in memory.health()["nodes"]] == ["tcp://127.0.0.1:1"]
    with keepwarm.connect("dns://nowhere.invalid:1") as memory:
        assert memory.health()["nodes"] == []
        with memory.attach(NAMES).lookup(prompt_of(6)) as found:
            assert found.miss is keepwarm.Reason.STORE_DOWN
