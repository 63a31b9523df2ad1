"""Published hit rates, to the last digit that is given, on recorded traces; skipped where these are
not there. `KEEPWARM_TRACES` names their folder."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import keepwarm.cli
import pytest
from keepwarm.testing.traces import MOONCAKE_FILE, WEKA_FILE, find, replay, traces_root
from keepwarm.testing.traces import read_weka as weka_requests
from keepwarm.workload.outcomes import SimulationResult
from keepwarm.workload.readers import open_trace
from keepwarm.workload.simulate import Level, Settings, simulate
from keepwarm.workload.trace import TraceSource
from simulated import Listed
from trace_models import MemoryTrace

CAPACITIES = (1_000, 3_000, 5_860, 10_000, 30_000, 50_000, 100_000, None)
#: Reference values of the conversation trace: blocks, and for LRU tokens.
LRU = (0.0445, 0.0653, 0.1361, 0.2116, 0.3257, 0.3546, 0.3637, 0.3664)
LRU_TOKENS = (0.0454, 0.0666, 0.1388, 0.2157, 0.3322, 0.3615, 0.3708, 0.3736)
FIFO = (0.0445, 0.0637, 0.1254, 0.1820, 0.2950, 0.3336, 0.3563, 0.3664)
LFU = (0.0481, 0.0750, 0.0969, 0.1322, 0.2761, 0.3438, 0.3631, 0.3664)


@cache
def _conversation() -> TraceSource | None:
    path = find(MOONCAKE_FILE)
    if path is None:
        return None
    opened = open_trace(path)
    return MemoryTrace(opened.info, list(opened.batches()))


@pytest.fixture
def conversation() -> TraceSource:
    found = _conversation()
    if found is None:
        pytest.skip(f"{MOONCAKE_FILE} is not there: set KEEPWARM_TRACES")
    return found


def run(
    source: TraceSource, policy: str, capacity: int | None, **settings: Any
) -> SimulationResult:
    level = Level(tier="dram", capacity_blocks=capacity, policy=policy)
    return simulate(source, Settings(levels=(level,), **settings))


@pytest.mark.parametrize(
    ("policy", "blocks", "tokens"),
    [("lru", LRU, LRU_TOKENS), ("fifo", FIFO, None), ("lfu", LFU, None)],
)
def test_lru_fifo_and_lfu(
    conversation: TraceSource,
    policy: str,
    blocks: tuple[float, ...],
    tokens: tuple[float, ...] | None,
) -> None:
    rates = [run(conversation, policy, capacity).hit_rate() for capacity in CAPACITIES]
    assert tuple(round(rate.block, 4) for rate in rates) == blocks
    if tokens is not None:
        assert tuple(round(rate.token, 4) for rate in rates) == tokens


def test_the_verb_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    path = find(MOONCAKE_FILE)
    if path is None:
        pytest.skip(f"{MOONCAKE_FILE} is not there: set KEEPWARM_TRACES")
    flags = ["--policy", "lru", "--capacity-blocks", "10000", "--json", str(path)]
    assert keepwarm.cli.main(["workload", "simulate", *flags]) == 0
    rate = json.loads(capsys.readouterr().out)["hit_rate"]
    assert (round(rate["block"], 4), round(rate["token"], 4)) == (0.2116, 0.2157)


def test_lru_head_first(conversation: TraceSource) -> None:
    unique = run(conversation, "lru", None).distinct_blocks
    assert unique == 182_790
    shares = (0.01, 0.05, 0.10, 0.25, 0.50)
    rates = [run(conversation, "lru", int(unique * share), head_first=True) for share in shares]
    assert [round(each.hit_rate().block, 3) for each in rates] == [
        0.052,
        0.195,
        0.278,
        0.353,
        0.363,
    ]


@pytest.mark.parametrize(
    ("capacity", "fifo", "lru", "opt"),
    [
        (819, 4.5, 4.6, 18.0),
        (3_276, 7.1, 7.3, 32.0),
        (6_553, 14.3, 15.3, 38.6),
        (13_107, 21.6, 25.0, 39.8),
        (26_214, 29.0, 33.0, 39.8),
        (52_428, 34.9, 37.8, 39.8),
    ],
)
def test_the_last_half_with_opt(
    conversation: TraceSource, capacity: int, fifo: float, lru: float, opt: float
) -> None:
    """As another simulator printed them, whose FIFO stores a prompt's first block first."""
    assert _last_half(conversation, capacity) == (fifo, lru, opt)


def _last_half(source: TraceSource, capacity: int) -> tuple[float, ...]:
    """FIFO, LRU, OPT: per cent of tokens that have an id, one digit behind the point."""
    rates = (
        run(source, "fifo", capacity, count_from=0.5, head_first=True),
        run(source, "lru", capacity, count_from=0.5),
        run(source, "opt", capacity, count_from=0.5),
    )
    return tuple(round(100 * each.hit_rate().covered_token, 1) for each in rates)


def _listed(path: Path, sessions: int) -> Listed:
    """So many coding-agent sessions merged, one starting each minute."""
    trace = weka_requests(path, sessions)
    return Listed(
        [each.block_ids for each in trace.requests],
        times_s=[each.arrival_s for each in trace.requests],
        sessions=[each.session + 1 for each in trace.requests],
        tokens=[each.input_tokens for each in trace.requests],
        batch=512,
        block_tokens=trace.block_tokens,
    )


def test_merged_coding_agents_as_published() -> None:
    """The published figures are of the whole set of sessions, of which the usual archive holds two
    thirds: they need the set's own folder."""
    root = traces_root()
    folder = None if root is None else root / "weka-claude-code" / "traces"
    if folder is None or not (folder / "trace_0003.json").is_file():
        pytest.skip("no weka-claude-code/traces with all sessions: set KEEPWARM_TRACES")
    source = _listed(folder, 40)
    assert len(source.blocks) == 3_330
    assert _last_half(source, 3_276) == (59.2, 72.4, 79.7)
    assert _last_half(source, 13_107) == (90.8, 94.2, 95.4)
    assert _last_half(source, 52_428) == (94.7, 95.4, 95.7)
    capacities = (4_000, 8_000, 16_000, 32_000, 64_000, None)
    rates = [run(source, "lru", capacity).hit_rate().token for capacity in capacities]
    published = [0.5631, 0.7613, 0.9123, 0.9442, 0.9493, 0.9514]
    assert [round(rate, 4) for rate in rates] == published


def test_merged_coding_agents_of_the_archive() -> None:
    """What the archive holds: LRU as an independent replay in Python has it; OPT above it, and the
    default never more than a point below."""
    path = find(WEKA_FILE)
    if path is None:
        pytest.skip(f"{WEKA_FILE} is not there: set KEEPWARM_TRACES")
    source, requests = _listed(path, 20), weka_requests(path, 20).requests
    capacity = 4_000
    lru = run(source, "lru", capacity).hit_rate()
    other = replay(requests, capacity)
    assert (lru.block, lru.token) == (other.by_block(), other.by_token())
    assert run(source, "opt", capacity).hit_rate().token > lru.token
    assert run(source, "default", capacity).hit_rate().block > lru.block - 0.01
