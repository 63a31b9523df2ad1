"""A fleet against a naive one in plain Python: lists, and schedules made anew at every request."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from keepwarm.workload.costs import CostModel
from keepwarm.workload.simulate import Level, Router
from simulated import BLOCK_TOKENS, Listed, costs, run

DEVICE_BLOCKS, DRAM_BLOCKS, REPLICAS = 12, 60, 3


@dataclass
class Lru:
    """The next to leave stands last."""

    capacity: int
    blocks: list[int] = field(default_factory=list)

    def prefix(self, asked: list[int]) -> int:
        """Of it, so many from the beginning on are here."""
        return next((at for at, each in enumerate(asked) if each not in self.blocks), len(asked))

    def serve(self, asked: list[int]) -> int:
        """Hits; then all are used, the last one first."""
        found = self.prefix(asked)
        for block in reversed(asked):
            if block in self.blocks:
                self.blocks.remove(block)
            elif len(self.blocks) == self.capacity:
                self.blocks.pop()
            self.blocks.insert(0, block)
        return found


@dataclass
class Replica:
    device: Lru
    dram: Lru
    wire: list[float]  # when dram's link is free again; one list for all where it is shared
    jobs: list[tuple[float, int, float]] = field(default_factory=list)  # ready, request, seconds
    computed: int = 0

    def schedule(self, until_s: float) -> tuple[dict[int, float], float]:
        """When each job that is ready by then begins, and when the last of them ends."""
        begun: dict[int, float] = {}
        free_s = 0.0
        for ready_s, request, seconds in sorted(self.jobs):
            if ready_s <= until_s:
                begun[request] = max(free_s, ready_s)
                free_s = begun[request] + seconds
        return begun, free_s

    def queue_s(self, now_s: float) -> float:
        _, free_s = self.schedule(now_s)
        later = sum(seconds for ready_s, _, seconds in self.jobs if ready_s > now_s)
        return max(free_s - now_s, 0.0) + later


def arrives_s(replica: Replica, found: int, now_s: float, model: CostModel) -> float:
    if not found:
        return now_s
    rate = model.restore["dram"]
    wire_s = found * BLOCK_TOKENS / rate.bytes_per_s
    return max(replica.wire[0], now_s) + rate.latency_s + wire_s


def prefill_s(tokens: int, hit: int, model: CostModel) -> float:
    first = min(hit, tokens - 1)
    return sum(model.prefill_token_s + model.prefill_position_s * at for at in range(first, tokens))


def promised(fleet: list[Replica], asked: list[int], now_s: float, model: CostModel) -> int:
    tokens = len(asked) * BLOCK_TOKENS
    queues = [replica.queue_s(now_s) for replica in fleet]
    bound_s = 1.25 * sum(queues) / len(fleet) + prefill_s(tokens, 0, model)
    promises = []
    for at, replica in enumerate(fleet):
        near = replica.device.prefix(asked)
        far = replica.dram.prefix(asked[near:])
        ready_s = arrives_s(replica, far, now_s, model) - now_s
        seconds = prefill_s(tokens, (near + far) * BLOCK_TOKENS, model)
        promises.append((max(queues[at], ready_s) + seconds, replica.computed, at))
    return min(each for each in promises if queues[each[2]] <= bound_s)[2]


def naive(
    prompts: list[list[int]],
    times_s: list[float],
    model: CostModel,
    shared: bool,
    replicas: list[int] | None,
) -> dict[str, list[float]]:
    """As the simulator; `replicas` where a hash says which, else those that promise most."""
    one, wire = Lru(DRAM_BLOCKS), [0.0]
    fleet = [
        Replica(
            Lru(DEVICE_BLOCKS),
            one if shared else Lru(DRAM_BLOCKS // REPLICAS),
            wire if shared else [0.0],
        )
        for _ in range(REPLICAS)
    ]
    found: dict[str, list[float]] = {"replica": [], "near": [], "far": [], "restore_s": []}
    for request, (asked, now_s) in enumerate(zip(prompts, times_s, strict=True)):
        chosen = promised(fleet, asked, now_s, model) if replicas is None else replicas[request]
        replica = fleet[chosen]
        near = replica.device.serve(asked)
        far = replica.dram.serve(asked[near:])
        ready_s = arrives_s(replica, far, now_s, model)
        if far:
            replica.wire[0] = ready_s - model.restore["dram"].latency_s
        tokens, hit = len(asked) * BLOCK_TOKENS, (near + far) * BLOCK_TOKENS
        replica.computed += tokens - hit
        replica.jobs.append((ready_s, request, prefill_s(tokens, hit, model)))
        for name, value in zip(found, (chosen, near, far, ready_s - now_s), strict=True):
            found[name].append(value)
    begun: dict[int, float] = {}
    for replica in fleet:
        begun |= replica.schedule(float("inf"))[0]
    ready = {request: ready_s for each in fleet for ready_s, request, _ in each.jobs}
    found["wait_s"] = [begun[request] - ready[request] for request in range(len(prompts))]
    return found


def drawn(seed: int) -> tuple[list[list[int]], list[float], list[int]]:
    """Conversations that grow, share a beginning now and then, and come in bursts."""
    draw = random.Random(seed)
    talks: list[list[int]] = [[] for _ in range(9)]
    prompts, times_s, sessions, now_s, fresh = [], [], [], 0.0, 100
    for _ in range(250):
        session = draw.randrange(len(talks))
        if not talks[session] or len(talks[session]) > 9:
            talks[session] = [draw.randrange(3)]
        for _ in range(draw.randint(1, 2)):
            fresh += 1
            talks[session].append(fresh)
        now_s += draw.choice((0.0, 0.25, 4.0, 11.5))
        prompts.append(list(talks[session]))
        times_s.append(now_s)
        sessions.append(session + 1)
    return prompts, times_s, sessions


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("router", ["round-robin", "sticky", "prefix-hash", "kv-aware"])
def test_a_fleet_is_what_a_naive_one_is(router: Router, shared: bool) -> None:
    for seed in range(4):
        prompts, times_s, sessions = drawn(seed)
        # Sums of these are exact, so that ties are ties on both sides.
        model = costs(0.125, 0.0078125, dram=(0.5, 8.0))
        result = run(
            Listed(prompts, times_s=times_s, sessions=sessions, batch=40),
            Level(tier="device", capacity_blocks=DEVICE_BLOCKS, policy="lru"),
            Level(tier="dram", capacity_blocks=DRAM_BLOCKS, policy="lru"),
            replicas=REPLICAS,
            router=router,
            shared=shared,
            costs=model,
        )
        chosen = {
            "round-robin": [at % REPLICAS for at in range(len(prompts))],
            "kv-aware": None,
        }.get(router, result.replica.tolist())
        wanted = naive(prompts, times_s, model, shared, chosen)
        assert result.replica.tolist() == wanted["replica"], f"seed {seed}"
        assert result.hit_blocks[0].tolist() == wanted["near"], f"seed {seed}"
        assert result.hit_blocks[2].tolist() == wanted["far"], f"seed {seed}"
        assert result.restore_s.tolist() == pytest.approx(wanted["restore_s"]), f"seed {seed}"
        assert result.wait_s.tolist() == pytest.approx(wanted["wait_s"]), f"seed {seed}"
        # The drawn load is one in which all of it matters.
        assert max(wanted["wait_s"]) > 0
        assert sum(wanted["far"]) > 0
