"""The simulated node against real ones: what each request finds, by tier.

Exactly, request by request, for one client with background work settled after each request (or,
of a node as `keepwarm serve` runs it, whose threads race within a request, after each call).
Within half a point for eight clients at once that nobody settles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import keepwarm
import numpy as np
import pytest
from keepwarm import ArgumentError, _core
from keepwarm.testing import synthetic, traces
from keepwarm.testing.node import NodeProcess
from keepwarm.testing.traces import Request
from keepwarm.testing.waiting import eventually
from keepwarm.workload.simulate import Level, Settings, simulate
from keepwarm.workload.trace import Batch, TokensAre, TraceInfo
from keepwarm.workload.twin import NodeFlash, NodeModel, NodeTwin
from node_replay import Asker, ask_at_once, batch_of
from nodes import LocalNode, make, short_folder
from numpy.typing import NDArray
from test_workload_verbs import as_json, told
from trace_models import MemoryTrace, written

SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))
POLICIES = [name for name in _core.policy_names() if name != "default"]
PAGE, MIB = 4096, 1 << 20
SEGMENT = 256 << 10
CLIENTS = 8
POINTS_APART_MAX = 0.005
#: Of an unsettled node: flash keeps up, or it sheds what no simulation without time can know.
BACKLOG_BLOCKS = 64
#: Figures of a node that a twin counts too.
COUNTED = {
    "stored": "blocks_stored",
    "evicted": "evicted",
    "written": "flash_written",
    "rewritten": "flash_rewritten",
    "promoted": "flash_promoted",
}


def flash_of(segments: int, admission: str, segment_bytes: int | None = SEGMENT) -> NodeFlash:
    return NodeFlash(MIB + segments * (segment_bytes or 4 * MIB), segment_bytes, admission)


def blocks_max(requests: Sequence[Request]) -> int:
    return max(len(request.block_ids) for request in requests)


def node_by_hand(folder: Path, model: NodeModel) -> LocalNode:
    """A node in this process on which nothing moves to or from flash by itself."""
    flash = model.flash
    row = state = None
    if flash is not None:
        devices = [(str(folder / "flash"), flash.device_bytes)]
        row = (devices, False, None, flash.admission, flash.segment_bytes, None)
        state = folder / "state"
    return LocalNode(
        folder,
        model.capacity_bytes,
        policy=model.policy,
        max_blocks=model.max_blocks,
        flash=row,
        state_dir=state,
        by_hand=model.ghost_seed,
    )


def assert_equal_by_hand(model: NodeModel, requests: Sequence[Request]) -> dict[str, int]:
    """Every request finds what the twin says; returns what moved."""
    twin = NodeTwin(model)
    wanted = twin.serve(batch_of(requests))
    with short_folder() as folder, ExitStack() as stack:
        node = node_by_hand(folder, model)
        stack.callback(node.close)
        memory = stack.enter_context(node.connect(transport="unix", connections_max=1))
        most = blocks_max(requests)
        asker = Asker(memory.attach(make()), model.block_bytes, most, node.store.settle_flash)
        for place, request in enumerate(requests):
            keys = twin.block_keys(np.array(request.block_ids, dtype=np.uint64))
            found = asker.ask(keys)
            assert found == tuple(wanted[place]), f"request {place} of {len(requests)}, {model}"
        counts, stat = twin.counts(), memory.stat()
    for ours, nodes in COUNTED.items():
        assert counts[ours] == stat.get(nodes, 0), f"{nodes}, {model}"
    return counts


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [60, 400])
def test_memory_alone(policy: str, blocks: int) -> None:
    """The smaller memory holds no two prompts, and sheds half of the longest."""
    requests = synthetic.chat(100, SEED, block_tokens=64).requests
    counts = assert_equal_by_hand(NodeModel(blocks * PAGE, PAGE, policy), requests)
    assert counts["evicted"] > 4 * blocks
    assert (counts["shed"] > 0) == (blocks == 60)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("blocks", "block_bytes", "flash"),
    [
        (150, PAGE, flash_of(8, "reuse")),
        (100, 8 * PAGE + 1, flash_of(40, "all")),
    ],
)
def test_flash_that_is_overrun(
    policy: str, blocks: int, block_bytes: int, flash: NodeFlash
) -> None:
    """Several times: segments are taken back, used blocks are written again, others come back."""
    requests = synthetic.chat(80, SEED, block_tokens=64).requests
    model = NodeModel(blocks * -(-block_bytes // PAGE) * PAGE, block_bytes, policy, flash, None, 7)
    counts = assert_equal_by_hand(model, requests)
    assert min(counts["promoted"] / 50, counts["rewritten"] / 20) > 1, counts
    assert counts["reclaimed"] > flash_segments(flash), counts


def flash_segments(flash: NodeFlash) -> int:
    return (flash.device_bytes - MIB) // (flash.segment_bytes or 1)


@pytest.mark.parametrize("policy", ["adaptive", "fifo"])
def test_memory_too_small_for_what_comes_back(policy: str) -> None:
    """Blocks that come back push out others of the same prompt, and some find no room at all."""
    requests = synthetic.rag(120, SEED, block_tokens=64).requests
    counts = assert_equal_by_hand(NodeModel(80 * PAGE, PAGE, policy, flash_of(10, "all")), requests)
    assert min(counts["promoted"], counts["shed"]) > 100, counts


def test_prompts_longer_than_a_call_on_the_wire() -> None:
    """A put of more than 256 blocks goes in groups, a get holds 64 blocks at a time."""
    shape = synthetic.AgentShape(context_tokens_max=40_000)
    requests = synthetic.coding_agents(8, 8, SEED, block_tokens=48, shape=shape).requests
    assert blocks_max(requests) > 2 * 256
    model = NodeModel(1_500 * PAGE, PAGE, "adaptive", flash_of(40, "reuse"))
    assert assert_equal_by_hand(model, requests)["evicted"] > 0


def test_a_few_remembered_evictions() -> None:
    """Seeds alike forget alike, and others do not."""
    requests = synthetic.chat(300, SEED, block_tokens=64).requests
    model = NodeModel(100 * PAGE, PAGE, "s3fifo", flash_of(40, "reuse"), max_blocks=100)
    assert_equal_by_hand(model, requests)
    found = [NodeTwin(replace(model, ghost_seed=seed)).serve(batch_of(requests)) for seed in (0, 1)]
    assert (found[0] != found[1]).any(), "the list of evictions never overflowed"


@pytest.mark.parametrize("policy", ["adaptive", "lru"])
def test_conversations(policy: str) -> None:
    path = traces.find(traces.MOONCAKE_FILE)
    if path is None:
        pytest.skip(f"no {traces.MOONCAKE_FILE}: set {traces.TRACES_VARIABLE}")
    requests = traces.read_mooncake(path).requests[:600]
    for blocks, flash in ((1_000, flash_of(60, "reuse")), (3_000, flash_of(200, "all"))):
        model = NodeModel(blocks * PAGE, PAGE, policy, flash)
        assert assert_equal_by_hand(model, requests)["written"] > 500


def trace_of(batch: Batch) -> MemoryTrace:
    return MemoryTrace(TraceInfo("chats", "made", "seed", 64, TokensAre.EXACT, True), [batch])


def test_simulate_takes_a_node_for_dram_and_flash() -> None:
    batch = batch_of(synthetic.chat(60, SEED, block_tokens=64).requests)
    trace = trace_of(batch)
    model = NodeModel(150 * PAGE, PAGE, "adaptive", flash_of(16, "reuse"))
    found = NodeTwin(model).serve(batch).sum(axis=0) / len(batch.block_ids)
    result = simulate(trace, Settings(levels=(), node=model)).to_json()
    rates = result["hit_rate"]["by_tier"]
    assert [rates["dram"]["block"], rates["flash"]["block"]] == pytest.approx(found)
    assert found.min() > 0
    halves = simulate(trace, Settings(levels=(), node=model, replicas=2, shared=False))
    assert halves.to_json()["hit_rate"]["block"] < result["hit_rate"]["block"]
    own = Level(tier="device", capacity_blocks=50)
    behind = simulate(trace, Settings(levels=(own,), node=model)).to_json()
    assert behind["hit_rate"]["by_tier"]["device"]["block"] > 0
    for wrong in (Level(tier="dram", capacity_blocks=5), Level(tier="object")):
        with pytest.raises(ArgumentError, match="a node is dram and flash"):
            simulate(trace, Settings(levels=(wrong,), node=model))
    with pytest.raises(ArgumentError, match="a node takes 1 to"):
        simulate(trace, Settings(levels=(), node=replace(model, block_bytes=1 << 30)))


def test_the_verb_takes_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = synthetic.chat(60, SEED, block_tokens=64)
    path = written(trace, tmp_path / "chats.jsonl")
    size = ("--capacity", f"dram={150 * PAGE}B", "--capacity", f"flash={9 * 4 * MIB}B")
    node = ("--as-node", "all", "--policy", "adaptive", "--kv-bytes-per-token", str(PAGE // 64))
    found = as_json(capsys, "simulate", path, *size, *node)
    flash = NodeFlash(9 * 4 * MIB, None, "all")
    batch = batch_of(trace.requests)
    wanted = NodeTwin(NodeModel(150 * PAGE, PAGE, "adaptive", flash)).serve(batch).sum(axis=0)
    rates = found["hit_rate"]["by_tier"]
    assert [rates["dram"]["block"], rates["flash"]["block"]] == pytest.approx(
        wanted / len(batch.block_ids)
    )
    assert found["settings"]["node"]["flash"]["admission"] == "all"
    for wrong, says in (
        (("--capacity", "dram=unbounded"), "of given sizes"),
        (("--capacity", "flash=1GiB"), "of given sizes"),
        ((*size, "--ttl", "5m"), "without --ttl"),
    ):
        assert says in " ".join(told(capsys, "simulate", path, *wrong, *node, code=2).split())


class Served:
    """`keepwarm serve` as a process of its own, with clients."""

    def __init__(self, stack: ExitStack, model: NodeModel, clients: int) -> None:
        folder = stack.enter_context(short_folder())
        extra = ["--max-blocks", str(model.max_blocks)] if model.max_blocks is not None else []
        if model.flash is not None:
            device = f"{folder / 'flash'}={model.flash.device_bytes}"
            extra += ["--flash", device, "--flash-admission", model.flash.admission]
            extra += ["--state-dir", str(folder / "state")]
        node = NodeProcess(folder, model.capacity_bytes, model.policy, extra)
        stack.enter_context(node)
        node.wait_claimed()
        connect: Callable[[], keepwarm.Memory] = lambda: stack.enter_context(  # noqa: E731
            keepwarm.connect(node.address, transport="unix", connections_max=1)
        )
        self.memories = [connect() for _ in range(clients)]

    def backlog(self, client: int = 0) -> int:
        """Blocks on their way to flash, or back, or held by a read."""
        stat = self.memories[client].stat()
        names = ("flash_queued", "flash_writing", "flash_returning", "reads_in_flight")
        return sum(int(stat.get(name, 0)) for name in names)

    def settle(self) -> None:
        """Returns when nothing moves any more."""
        eventually(lambda: self.backlog() == 0, "background work of the node settles")

    def pace(self, client: int) -> None:
        """Returns when flash has nearly kept up."""
        wait = lambda: self.backlog(client) <= BACKLOG_BLOCKS  # noqa: E731
        eventually(wait, "flash keeps up", patience_s=60.0)


def test_a_served_node_settled_after_each_call() -> None:
    """With all its threads. Fewer keys than its list of evictions remembers without a gap."""
    requests = synthetic.chat(24, SEED, block_tokens=64).requests
    block_bytes = 15 * PAGE
    flash = flash_of(4, "all", None)
    model = NodeModel(72 * block_bytes, block_bytes, "adaptive", flash, call_blocks=1)
    twin = NodeTwin(model)
    wanted = twin.serve(batch_of(requests))
    with ExitStack() as stack:
        node = Served(stack, model, 1)
        space = node.memories[0].attach(make())
        asker = Asker(space, block_bytes, blocks_max(requests), node.settle, call_blocks=1)
        found = ask_at_once(requests, twin, [asker])
        stat = node.memories[0].stat()
    assert found.tolist() == wanted.tolist()
    counts = twin.counts()
    assert {ours: stat[nodes] for ours, nodes in COUNTED.items()} == {
        ours: counts[ours] for ours in COUNTED
    }
    assert min(counts["promoted"] / 50, counts["reclaimed"] / 2) > 1, counts


def shares(found: NDArray[np.int64] | NDArray[np.uint32], blocks: int) -> list[float]:
    return [float(share) for share in found.sum(axis=0) / blocks]


@pytest.mark.parametrize(
    ("policy", "flash"),
    [
        ("adaptive", None),
        ("lru", flash_of(24, "reuse", None)),
        ("adaptive", flash_of(40, "all", None)),
    ],
)
def test_eight_clients_that_nobody_settles(policy: str, flash: NodeFlash | None) -> None:
    """In a memory that holds what they have under way many times over."""
    requests = synthetic.chat(700, SEED, block_tokens=256).requests
    block_bytes = 4 * PAGE
    model = NodeModel(600 * block_bytes, block_bytes, policy, flash, max_blocks=600)
    twin = NodeTwin(model)
    batch = batch_of(requests)
    wanted = shares(twin.serve(batch), len(batch.block_ids))
    with ExitStack() as stack:
        node = Served(stack, model, CLIENTS)
        askers = [
            Asker(
                memory.attach(make()),
                block_bytes,
                blocks_max(requests),
                partial(node.pace, client) if flash else lambda: None,
            )
            for client, memory in enumerate(node.memories)
        ]
        found = shares(ask_at_once(requests, twin, askers), len(batch.block_ids))
    print(f"{policy}, {flash}: {found} of the blocks, simulated {wanted}; {twin.counts()}")
    apart = [abs(ours - theirs) for ours, theirs in zip(wanted, found, strict=True)]
    assert max(apart) <= POINTS_APART_MAX, (wanted, found)
