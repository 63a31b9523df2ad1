"""Figures of the same host: shared memory, the Unix socket, small blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keepwarm
from keepwarm.bench.context import BLOCK, MIB, Context, Found, Group, UnavailableError
from keepwarm.bench.limits import BareServer, Blocks, Shape, copy
from keepwarm.bench.nodes import Client, Node
from keepwarm.bench.pairs import Round, interleave, speeds

SMALL = 64 << 10
SMALL_BATCH = 256


def arena_bytes(*shapes: Shape) -> int:
    """Room for all blocks of these shapes, and as much again, so that nothing is evicted."""
    return 2 * sum(shape.block * shape.total for shape in shapes) + 64 * MIB


@contextmanager
def filled(memory: keepwarm.Memory, node: Node, source: Blocks, to: Blocks) -> Iterator[Client]:
    """A client whose blocks are all there, and whose first get gave the right bytes."""
    client = Client(memory, source.shape, "bench", node.pid)
    client.fill(source)
    client.check(source, to)
    yield client


def _shm(context: Context) -> Found:
    shape = context.shape()
    source, to = Blocks(shape, fill=True), Blocks(shape)
    pool = Blocks(shape, fill=True)
    with (
        Node(arena_bytes(shape)) as node,
        keepwarm.connect(node.address) as memory,
        filled(memory, node, source, to) as client,
    ):
        transport = memory.health()["transport"]
        if transport != "shm":
            raise UnavailableError(f"clients reach a node over {transport}, not shared memory")
        gets = interleave(
            context.pairs,
            lambda number: copy("memcpy", to, pool, number),
            lambda number: client.get(to, number),
        )
        puts = interleave(
            context.pairs,
            lambda number: copy("memcpy", to, source, number),
            lambda number: client.put(source, number),
        )
    return {"shm_get_over_memcpy": speeds(gets), "shm_put_over_memcpy": speeds(puts)}


def _verify(context: Context) -> Found:
    shape = context.shape()
    source, to = Blocks(shape, fill=True), Blocks(shape)
    pairs = interleave(
        2 * context.pairs,
        lambda number: copy("unhashed", to, source, number),
        lambda number: copy("hashed", to, source, number),
    )
    return {"verify_on_over_off": speeds(pairs)}


def _unix(context: Context) -> Found:
    shape = context.shape()
    source, to = Blocks(shape, fill=True), Blocks(shape)
    with (
        Node(arena_bytes(shape)) as node,
        keepwarm.connect(node.address, transport="unix") as memory,
        filled(memory, node, source, to) as client,
        BareServer(shape, context.folder / "unix") as bare,
    ):
        gets = interleave(context.pairs, lambda n: bare.get(to, n), lambda n: client.get(to, n))
        puts = interleave(
            context.pairs, lambda n: bare.put(source, n), lambda n: client.put(source, n)
        )
    return {"unix_get_over_socket": speeds(gets), "unix_put_over_socket": speeds(puts)}


def _small(context: Context) -> Found:
    """The same bytes a round, in calls of 16 MiB: 256 blocks of 64 KiB, or 8 of 2 MiB."""
    call = SMALL * SMALL_BATCH
    large, small = context.shape(BLOCK, call), context.shape(SMALL, call)
    sources = Blocks(large, fill=True), Blocks(small, fill=True)
    targets = Blocks(large), Blocks(small)
    calls = 2 if context.quick else 4
    with Node(arena_bytes(large, small)) as node, keepwarm.connect(node.address) as memory:
        clients = [
            Client(memory, shape, name, node.pid)
            for shape, name in ((large, "large"), (small, "small"))
        ]
        for client, source, to in zip(clients, sources, targets, strict=True):
            client.fill(source)
            client.check(source, to)

        def several(client: Client, to: Blocks, number: int) -> Round:
            rounds = [client.get(to, number * calls + each) for each in range(calls)]
            seconds = sum(each.seconds for each in rounds)
            return Round(seconds, sum(each.nbytes for each in rounds))

        pairs = interleave(
            context.pairs,
            lambda number: several(clients[0], targets[0], number),
            lambda number: several(clients[1], targets[1], number),
        )
        transport = memory.health()["transport"]
    return {"small_block_ratio": speeds(pairs, transport=transport)}


GROUPS = (
    Group(("shm_get_over_memcpy", "shm_put_over_memcpy"), _shm),
    Group(("verify_on_over_off",), _verify),
    Group(("unix_get_over_socket", "unix_put_over_socket"), _unix),
    Group(("small_block_ratio",), _small),
)
