"""Sampled curves: exact on small traces, their intervals true on large ones, memory bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from keepwarm import _core, cli
from keepwarm.errors import ArgumentError
from keepwarm.testing import traces
from keepwarm.workload import parquet
from keepwarm.workload.curve import POLICIES, measure_curve
from keepwarm.workload.synth import Kind, Synthetic
from keepwarm.workload.trace import TraceSource
from trace_models import MemoryTrace, Row, batch_of, lru, recorded, rows_of, trace_of, tree_rows

SCALE = int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))
# All of them for every trace and policy: KEEPWARM_TEST_SCALE=10.
SEEDS = 20
SEEDS_OF_MORE = min(SEEDS, 10 * SCALE)
WATCHED = 32_768  # at least three quarters remain: more than 20,000
CAPACITIES = [1_000, 3_000, 5_860, 10_000, 30_000, 50_000, 100_000]
Rates = list[tuple[tuple[float, float], tuple[float, float]]]


def points(
    source: TraceSource,
    capacities: list[int],
    seed: int = 0,
    watched: int = 1 << 24,
    policy: str = "lru",
) -> tuple[Rates, int]:
    core = _core.TraceCurve(source.info.block_tokens, capacities, seed, watched, policy)
    for batch in source.batches():
        core.feed(batch)
    return core.points([*capacities, None]), core.watched()[1]


@cache
def synthetic() -> MemoryTrace:
    made = Synthetic(Kind.CHAT, 40_000, seed=11, block_tokens=512)
    return MemoryTrace(made.info, list(made.batches()))


@cache
def conversation() -> MemoryTrace:
    path = traces.find(traces.MOONCAKE_FILE)
    if path is None:
        pytest.skip("the conversation trace is not here")
    return recorded(traces.read_mooncake(path))


@cache
def agents() -> MemoryTrace:
    path = traces.find(traces.WEKA_FILE)
    if path is None:
        pytest.skip("the coding-agent sessions are not here")
    return recorded(traces.read_weka(path, 25 if SCALE > 1 else 12))


def test_a_small_trace_gives_every_capacity_exactly() -> None:
    rows = tree_rows(seed=1, requests=800)
    capacities = [1, 2, 7, 30, 64, 100, 333, 1_000, 5_000]
    curve = measure_curve(trace_of(rows), capacities=capacities)
    assert [point.capacity_blocks for point in curve.points] == [*capacities, None]
    for point in curve.points:
        assert point.blocks.is_exact
        truth = lru(rows, point.capacity_blocks)
        assert [point.blocks.value, point.tokens.value] == pytest.approx(truth)
    assert (curve.watched_share, curve.watched_blocks) == (
        1.0,
        len({b for r in rows for b in r[5]}),
    )


def test_other_policies_are_exact_on_a_small_trace() -> None:
    rows = tree_rows(seed=2, requests=400)
    for capacity in (10, 100, 500):
        (point, unbounded) = measure_curve(
            trace_of(rows), policy="fifo", capacities=[capacity]
        ).points
        assert point.blocks.value == pytest.approx(fifo(rows, capacity))
        assert point.blocks.is_exact
        assert unbounded.blocks.value == pytest.approx(lru(rows, None)[0])


def fifo(rows: list[Row], capacity: int) -> float:
    held: dict[int, None] = {}
    hits = blocks = 0
    for *_, ids in rows:
        for block in ids:
            if block not in held:
                break
            hits += 1
        blocks += len(ids)
        for block in reversed(ids):
            if block not in held:
                if len(held) == capacity:
                    del held[next(iter(held))]
                held[block] = None
    return hits / blocks


def assert_covered(source: TraceSource, policy: str = "lru", seeds: int = SEEDS) -> None:
    exact, _ = points(source, CAPACITIES, policy=policy)
    covered: Counter[tuple[int | None, str]] = Counter()
    worst, widest = 0.0, 0.0
    for seed in range(seeds):
        found, watched = points(source, CAPACITIES, seed, WATCHED, policy)
        assert watched >= 20_000
        for at, capacity in enumerate([*CAPACITIES, None]):
            for by, name in enumerate(("block", "token")):
                value, error = found[at][by]
                off = abs(value - exact[at][by][0])
                covered[capacity, name] += off <= error
                worst, widest = max(worst, off), max(widest, error)
    print(f"{policy}: worst {worst:.4f}, widest {widest:.4f}, least {min(covered.values())}")
    assert len(covered) == 2 * len(CAPACITIES) + 2
    assert min(covered.values()) >= 0.9 * seeds, covered
    assert worst <= 0.02
    assert 0 < widest < 0.05  # an interval that says something


def test_intervals_cover_the_truth_on_a_generated_trace() -> None:
    assert_covered(synthetic())


def test_intervals_cover_the_truth_on_the_conversation_trace() -> None:
    assert_covered(conversation())


def test_intervals_cover_the_truth_on_coding_agents() -> None:
    assert_covered(agents(), seeds=SEEDS_OF_MORE)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "lru"])
def test_intervals_of_other_policies_cover_the_truth(policy: str) -> None:
    assert_covered(conversation(), policy, SEEDS_OF_MORE)


def test_the_conversation_trace_gives_the_reference_values() -> None:
    rates, _ = points(conversation(), CAPACITIES)
    found = [(f"{blocks[0]:.4f}", f"{tokens[0]:.4f}") for blocks, tokens in rates]
    assert found == [
        ("0.0445", "0.0454"),
        ("0.0653", "0.0666"),
        ("0.1361", "0.1388"),
        ("0.2116", "0.2157"),
        ("0.3257", "0.3322"),
        ("0.3546", "0.3615"),
        ("0.3637", "0.3708"),
        ("0.3664", "0.3736"),
    ]


def test_coding_agents_agree_with_a_plain_replay() -> None:
    rows = [row for batch in agents().held for row in rows_of(batch)][:600]
    trace = trace_of(rows, 64)
    for (blocks, tokens), capacity in zip(points(trace, [3_000])[0], [3_000, None], strict=True):
        assert [blocks[0], tokens[0]] == pytest.approx(lru(rows, capacity, 64))


def test_heavy_blocks_are_counted_exactly() -> None:
    for source in (synthetic(), recorded_or_none()):
        if source is None:
            continue
        uses: Counter[int] = Counter()
        core = _core.TraceCurve(source.info.block_tokens, [], 3, WATCHED)
        for batch in source.batches():
            core.feed(batch)
            ids, counts = np.unique(batch.block_ids, return_counts=True)
            uses.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        total = sum(uses.values())
        heavy = [block for block, count in uses.items() if count > total / 1_000]
        assert heavy
        assert core.watched()[3] == total
        assert core.heavy_uses(heavy) == [(uses[block], 0) for block in heavy]


def recorded_or_none() -> MemoryTrace | None:
    return conversation() if traces.find(traces.MOONCAKE_FILE) is not None else None


def test_memory_is_bounded_and_cost_grows_linearly(tmp_path: Path) -> None:
    """Three sizes in a process each."""
    seconds, peaks = [], []
    sizes = [each * min(SCALE, 2) for each in (12_500, 25_000, 50_000)]
    for size in sizes:
        path = tmp_path / f"{size}.parquet"
        made = Synthetic(Kind.CHAT, size, seed=5, block_tokens=512)
        parquet.write(path, made.info, made.batches())
        figures = json.loads(
            subprocess.run(
                [sys.executable, str(Path(__file__).with_name("trace_costs.py")), str(path)],
                check=True,
                capture_output=True,
                text=True,
                timeout=300,
            ).stdout
        )
        assert figures["requests"] == size
        seconds.append(figures["describe_cpu_s"] + figures["curve_cpu_s"])
        peaks.append(figures["peak_bytes"])
    print(seconds, peaks)
    # Twice as many requests cost twice as much; the machine may be busy, so 3.5 times passes.
    for less, more in pairwise(seconds):
        assert more <= 3.5 * less + 0.1
    assert max(peaks) < 600 << 20
    assert peaks[-1] - peaks[0] < 100 << 20


def test_a_long_trace_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    made = Synthetic(Kind.UNIQUE, 200_000, seed=6, block_tokens=16)
    parquet.write(path, made.info, made.batches())
    tracemalloc.start()
    blocks = sum(len(batch.block_ids) for batch in parquet.ParquetTrace(path).batches())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert blocks > 3_000_000
    assert peak < 20 << 20  # what Python and numpy held at a time


def test_the_verbs_show_and_print_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.parquet"
    options = ["--kind", "agents", "--requests", "300", "--seed", "2", "--block-tokens", "512"]
    assert cli.main(["workload", "synth", str(path), *options]) == 0
    assert "300 synthetic requests" in capsys.readouterr().out
    for policy in POLICIES:
        arguments = ["workload", "curve", str(path), "--policy", policy, "--points", "500,100"]
        assert cli.main([*arguments, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["policy"] == policy
        assert shown["trace"]["synthetic"] is True
        assert [each["capacity_blocks"] for each in shown["points"]] == [100, 500, None]
        assert shown["points"][-1]["hit_rate"]["token"] > 0.5
    assert cli.main(["workload", "curve", str(path)]) == 0
    table = capsys.readouterr().out
    assert "exact: all" in table
    assert "unbounded" in table


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    trace = trace_of([])
    with pytest.raises(ArgumentError, match="policy 'mru' is not known"):
        measure_curve(trace, policy="mru")
    with pytest.raises(ArgumentError, match="a capacity of 0 blocks"):
        measure_curve(trace, capacities=[0])
    with pytest.raises(ArgumentError, match="more than 64 capacities"):
        measure_curve(trace, policy="fifo", capacities=list(range(1, 100)))
    core = _core.TraceCurve(16, [10], policy="fifo")
    core.feed(batch_of([(0.0, 16, 1, 1, 1, [1])]))
    with pytest.raises(ArgumentError, match="at the capacities that it was made for"):
        core.points([11])
    assert cli.main(["workload", "synth", str(tmp_path / "x.csv")]) != 0
