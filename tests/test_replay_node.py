"""A replay against a real node: bytes verified, and every counter equal to the node's own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import keepwarm
import numpy as np
import pytest
from keepwarm.testing import FakeMemory, FaultProxy, NodeProcess, Towards, blocks
from keepwarm.workload.replay import Pace, of_trace
from keepwarm.workload.replay.node import CLIENT, ClientError, NodePlan, replay_node
from keepwarm.workload.replay.node_client import Job, NodeClient, namespace_of
from nodes import LocalNode, short_folder
from replays import AS_IT_WAS, BLOCK, ListSource, Row, source

BYTES = 16 << 10
SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))


def agents(sessions: int = 6, turns: int = 8) -> ListSource:
    """Contexts that grow, with a prefix that all share, and a last block that is not full."""
    rows = []
    for turn in range(turns):
        for session in range(1, sessions + 1):
            ids = [1, 2, 3, *range(session * 1000, session * 1000 + 2 + 2 * turn)]
            at = (turn * sessions + session) * 0.005
            rows.append(Row(at, [*ids, session * 77777 + turn], len(ids) * BLOCK + 5, 1, session))
    return source(rows)


def plan_of(
    node: LocalNode, trace: ListSource, pace: Pace = AS_IT_WAS, **settings: Any
) -> NodePlan:
    return NodePlan(
        **{
            "address": f"unix:{node.path}",
            "arrivals": lambda: of_trace(trace, pace),
            "block_tokens": BLOCK,
            "block_bytes": BYTES,
            "lag_s_max": 30.0,  # these machines are busy; lag is another test's
            **settings,
        }
    )


def expected(trace: ListSource) -> tuple[int, int]:
    """Blocks asked for and hit by an unbounded memory, one request after the other."""
    seen: set[int] = set()
    asked = hits = 0
    for batch in trace.batches():
        for at in range(len(batch)):
            whole = int(batch.input_tokens[at]) // BLOCK
            askable = (int(batch.input_tokens[at]) - 1) // BLOCK
            ids = [int(each) for each in batch.blocks(at)[:whole]]
            asked += min(askable, whole)
            hits += next((n for n, each in enumerate(ids[:askable]) if each not in seen), askable)
            seen.update(ids)
    return asked, hits


@pytest.mark.parametrize("closed", [False, True])
def test_it_reconciles_with_the_node(node: LocalNode, closed: bool) -> None:
    trace = agents()
    result = asyncio.run(replay_node(plan_of(node, trace, closed=closed)))
    asked, hits = expected(trace)
    assert result["problems"] == []
    assert result["loop"] == ("closed" if closed else "open")
    assert any("closed loop" in note for note in result["notes"]) is closed
    assert (result["requests"], result["wrong_bytes"], result["not_sent"]) == (48, 0, 0)
    assert result["blocks_asked"] == asked
    assert result["hits_by_tier"] == {"dram": hits}
    assert sum(result["misses_by_reason"].values()) == asked - hits
    assert result["hit_rate"]["block"] == hits / asked
    assert result["bytes"]["get"] == hits * BYTES
    assert result["agrees"], result["reconciliation"]
    told = {row["counter"]: row["node"] for row in result["reconciliation"]}
    assert told["lookup_hits"] == told["reads"] == hits
    assert told["stored"] * BYTES == told["stored_bytes"] == result["bytes"]["put"]
    assert told["lookup_misses.absent"] > 0
    latencies = result["latencies_s"]
    assert latencies["lookup"]["count"] == latencies["lag"]["count"] == 48
    for name in ("restored_from_due", "done_from_due"):
        assert latencies[name]["p50"] >= latencies["lag"]["p50"]
    # Nothing of it is left behind: what a client may still map is hidden, and freed soon.
    with node.connect() as memory:
        assert [space["blocks"] for space in memory.stat()["namespaces"].values()] == [0]


def test_several_clients_add_up(node: LocalNode) -> None:
    result = asyncio.run(replay_node(plan_of(node, agents(), clients=3, closed=True)))
    assert (result["requests"], result["wrong_bytes"]) == (48, 0)
    assert result["agrees"], result["reconciliation"]
    total = result["hits_by_tier"]["dram"] + sum(result["misses_by_reason"].values())
    assert total == result["blocks_asked"] == expected(agents())[0]


def test_what_an_earlier_replay_left_is_hit(node: LocalNode) -> None:
    asyncio.run(replay_node(plan_of(node, agents(), keep=True)))
    result = asyncio.run(replay_node(plan_of(node, agents(), keep=True)))
    assert result["hit_rate"]["block"] == 1.0
    assert result["began_empty"] is False


def test_several_nodes_are_one_memory(node: LocalNode) -> None:
    with short_folder() as folder:
        other = LocalNode(folder)
        try:
            both = f"unix:{node.path},unix:{other.path}"
            result = asyncio.run(replay_node(plan_of(node, agents(), address=both)))
        finally:
            other.close()
    assert (result["requests"], result["wrong_bytes"]) == (48, 0)
    assert result["hits_by_tier"] == {"dram": expected(agents())[1]}
    told = {row["counter"]: row for row in result["reconciliation"]}
    assert told["reads"]["equal"]
    assert told["stored_bytes"]["equal"]


def test_clients_that_fall_behind_fail(node: LocalNode) -> None:
    result = asyncio.run(replay_node(plan_of(node, agents(), lag_s_max=0.0)))
    assert any("the clients fell behind" in problem for problem in result["problems"])
    closed = asyncio.run(replay_node(plan_of(node, agents(), lag_s_max=0.0, closed=True)))
    assert closed["problems"] == []


def test_warm_up_is_served_and_not_counted(node: LocalNode) -> None:
    pace = Pace(count_from_s=0.12)
    result = asyncio.run(replay_node(plan_of(node, agents(), pace)))
    assert (result["requests"], result["warm_up_requests"]) == (25, 23)
    assert result["agrees"], result["reconciliation"]


def test_wrong_bytes_are_found_and_fail(node: LocalNode) -> None:
    """Another content under the right key, with a checksum that fits: only the bytes tell."""
    plan = plan_of(node, source([Row(0.0, [1, 2, 3], 3 * BLOCK + 1)]), keep=True)
    with node.connect() as memory:
        space = memory.attach(namespace_of(plan.settings()))
        ids = [int(each).to_bytes(8, "little") for each in (1, 2, 3)]
        prompt = space.namespace.place(space.namespace.engine_keys(ids))
        data = bytearray(3 * BYTES)
        blocks.fill_many(prompt.keys, data)
        data[BYTES + 100 : BYTES + 107] = bytes(
            each ^ 1 for each in data[BYTES + 100 : BYTES + 107]
        )
        space.put_from(prompt, data)
    result = asyncio.run(replay_node(plan))
    assert (result["wrong_bytes"], result["wrong_blocks"]) == (7, 1)
    assert result["first_wrong_request"] == 0
    assert "7 wrong bytes in 1 blocks" in result["problems"][0]


def test_bytes_that_change_on_the_way_are_misses(folder: Path, node: LocalNode) -> None:
    with FaultProxy(f"unix:{node.path}", f"unix:{folder}/spoiled.sock") as proxy:
        proxy.set(Towards.CLIENT, corrupt_every=50_001)
        result = asyncio.run(replay_node(plan_of(node, agents(), address=proxy.address)))
    assert result["wrong_bytes"] == 0
    assert result["requests"] == 48
    reasons = result["misses_by_reason"]
    assert set(reasons) - {"absent", "after_gap"}, reasons
    total = sum(result["hits_by_tier"].values()) + sum(reasons.values())
    assert total == result["blocks_asked"]


def test_an_interruption_gives_a_partial_result(node: LocalNode) -> None:
    rows = [Row(at * 0.02, [at + 1], BLOCK + 1) for at in range(100_000)]

    async def main() -> dict[str, Any]:
        stop = asyncio.Event()
        seen = []

        def progress(sent: int, _: float) -> None:
            seen.append(sent)
            if sent == 10:
                stop.set()

        return await replay_node(plan_of(node, source(rows)), stop, progress)

    result = asyncio.run(main())
    assert result["interrupted"] is True
    assert 1 <= result["requests"] <= 10
    assert result["agrees"], result["reconciliation"]


def test_a_client_that_dies_is_an_error_and_no_hang(node: LocalNode) -> None:
    async def main() -> dict[str, Any]:
        def progress(sent: int, _: float) -> None:
            if sent == 5:
                for child in children():
                    os.kill(child, signal.SIGKILL)

        return await replay_node(plan_of(node, agents(), clients=2), None, progress)

    with pytest.raises(ClientError, match="a client of the replay ended"):
        asyncio.run(main())
    assert children() == []


def children() -> list[int]:
    """Clients that this process has started and that live."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    named = [(int(pid), Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in found]
    return [pid for pid, line in named if CLIENT.encode() in line]


def test_a_node_that_is_not_there_is_an_error(folder: Path, node: LocalNode) -> None:
    with pytest.raises(keepwarm.NodeError):
        asyncio.run(replay_node(plan_of(node, agents(), address=f"unix:{folder}/no.sock")))


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_node_that_goes_meanwhile_leaves_what_clients_saw(folder: Path, comes_back: bool) -> None:
    """Killed halfway: the requests until then hit, and those after it miss; no result is lost."""
    rows = [Row(at * 0.01, [1 + at % 3], BLOCK + 1) for at in range(40)]
    with NodeProcess(folder, 16 << 20) as process:

        def progress(sent: int, _: float) -> None:
            if sent == 20:
                process.kill()
                if comes_back:
                    process.start()

        made = NodePlan(
            address=process.address,
            arrivals=lambda: of_trace(source(rows), AS_IT_WAS),
            block_tokens=BLOCK,
            block_bytes=BYTES,
            deadline_s=1.0,
            lag_s_max=60.0,
        )
        result = asyncio.run(replay_node(made, None, progress))
    assert result["requests"] == 40
    assert [each[:27] for each in result["problems"]] == ["the node went away or was s"]
    assert (result["agrees"], result["reconciliation"]) == (False, [])
    assert result["hits_by_tier"]["dram"] > 0
    assert result["misses_by_reason"]["store_down"] > 0


def client_on(memory: FakeMemory, block_bytes: int = BYTES) -> NodeClient:
    settings = {"block_bytes": block_bytes, "block_tokens": BLOCK}
    space: Any = memory.attach(namespace_of(settings))
    return NodeClient(space, block_bytes, 1.0, clock=memory.clock.now_s)


def job(ids: list[int], due_s: float = 0.0) -> Job:
    return Job(due_s, 0, len(ids) * BLOCK + 1, True, np.array(ids, np.uint64))


def test_latencies_count_from_the_due_time() -> None:
    memory = FakeMemory(capacity_bytes=8 << 20)
    client = client_on(memory)
    client.serve(job([1, 2, 3]))
    memory.faults.slow_s = 0.25
    memory.clock.advance(2.0)
    client.serve(job([1, 2, 3], due_s=0.5))
    lag_s = client.latencies["lag"].max_s
    assert lag_s == pytest.approx(1.5)
    # Lookup and get, a quarter of a second each, after a second and a half of waiting.
    assert client.latencies["restored_from_due"].max_s == pytest.approx(lag_s + 0.5)
    assert client.latencies["lookup"].max_s == pytest.approx(0.25)


@pytest.mark.parametrize("fault", ["dead", "stalled", "corrupt", "full"])
def test_a_node_at_fault_is_misses_by_reason(fault: str) -> None:
    memory = FakeMemory(capacity_bytes=8 << 20)
    client = client_on(memory)
    client.serve(job([1, 2, 3]))
    setattr(memory.faults, fault, True)
    client.serve(job([1, 2, 3, 4]))
    counts = client.counts
    assert counts.wrong_bytes == 0
    assert counts.hit_blocks.total() + counts.missed_blocks.total() == counts.blocks == 7
    wanted = {"dead": "store_down", "stalled": "deadline", "corrupt": "corrupt", "full": "absent"}
    assert wanted[fault] in counts.missed_blocks


def test_long_prompts_go_through_a_bounded_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    from keepwarm.workload.replay import node_client

    monkeypatch.setattr(node_client, "BUFFER_BYTES", 4 * BYTES)
    memory = FakeMemory(capacity_bytes=8 << 20)
    client = client_on(memory)
    client.serve(job(list(range(1, 12))))
    client.serve(job(list(range(1, 12))))
    assert client.counts.hit_blocks == Counter({"dram": 11})
    assert client.counts.all_calls["reads"] == 11
    assert client.counts.read_bytes == 11 * BYTES
