"""What is measured of a trace: exact on small ones, within its stated error on sampled ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from keepwarm import _core
from keepwarm.errors import ArgumentError
from keepwarm.workload import measures
from keepwarm.workload.measures import Distribution, Estimate, Measures
from trace_models import BLOCK_TOKENS, Row, batch_of, lru, trace_of, tree_rows


def naive(rows: list[Row], long_tokens: int, long_share: float) -> dict[str, Any]:
    """Every measure by definition, slowly."""
    last: dict[int, tuple[float, int, int]] = {}
    uses: Counter[int] = Counter()
    order: list[int] = []  # the most recent last
    found: dict[str, Any] = {"distance": [], "time": [], "who": Counter(), "tenant": Counter()}
    blocks = prefix = prefix_tokens = tokens = long = sticky = 0
    for time_s, size, _, session, tenant, ids in rows:
        matched = 0
        while matched < len(ids) and ids[matched] in last:
            matched += 1
        blocks += len(ids)
        prefix += matched
        reusable = min(matched * BLOCK_TOKENS, size)
        prefix_tokens += reusable
        tokens += size
        long += reusable >= long_tokens and reusable >= long_share * size
        for block in ids[:matched]:
            before_s, by, of = last[block]
            found["time"].append(time_s - before_s)
            found["distance"].append(len(order) - 1 - order.index(block))
            who = "unknown" if 0 in (by, session) else "same" if by == session else "other"
            found["who"][who] += 1
            sticky += who == "same"
            which = "unknown" if 0 in (of, tenant) else "same" if of == tenant else "other"
            found["tenant"][which] += 1
        for block in reversed(ids):
            if block in last:
                order.remove(block)
            order.append(block)
            last[block] = (time_s, session, tenant)
        uses.update(ids)
    found |= {
        "distinct": len(uses),
        "never": sum(count == 1 for count in uses.values()) / len(uses),
        "prefix_blocks": prefix / blocks,
        "prefix_tokens": prefix_tokens / tokens,
        "sticky_blocks": sticky / blocks,
        "long": long / len(rows),
        "uses": blocks,
    }
    return found


def measured(rows: list[Row], **options: Any) -> Measures:
    return measures.measure(trace_of(rows), **options)


def assert_spread(told: Distribution, values: list[float]) -> None:
    assert told.count == len(values)
    assert told.rank_error == 0
    assert told.mean == pytest.approx(np.mean(values))
    assert (told.smallest, told.largest) == (min(values), max(values))
    for share, value in ((0.1, told.p10), (0.5, told.p50), (0.9, told.p90), (0.99, told.p99)):
        truth = float(np.quantile(values, share, method="inverted_cdf"))
        assert truth * (1 - 1 / 64) - 1e-6 <= value <= truth
    assert sum(row[2] for row in told.histogram) == pytest.approx(1)


def assert_exactly(told: Estimate, value: float) -> None:
    assert told.is_exact
    assert told.value == pytest.approx(value)


def test_a_small_trace_is_measured_exactly() -> None:
    rows = tree_rows(seed=3, requests=600)
    truth = naive(rows, 512, 0.5)
    told = measured(rows, long_prefix_tokens=512)
    assert (told.requests, told.block_uses) == (600, truth["uses"])
    assert told.requests_without_blocks == sum(not row[5] for row in rows) > 0
    assert told.span_s == rows[-1][0] - rows[0][0]
    assert told.input_tokens == sum(row[1] for row in rows)
    assert told.output_tokens == sum(row[2] for row in rows)
    assert told.distinct_blocks == Estimate(truth["distinct"])
    assert_exactly(told.never_reused, truth["never"])
    assert_exactly(told.reuse_by_prefix.blocks, truth["prefix_blocks"])
    assert_exactly(told.reuse_by_prefix.tokens, truth["prefix_tokens"])
    assert told.reuse_by_block == told.reuse_by_prefix
    assert_exactly(told.reuse_sticky.blocks, truth["sticky_blocks"])
    assert 0 < truth["long"] < 1
    assert_exactly(told.long_prefix_requests, truth["long"])
    for sharing, name in ((told.sharing_sessions, "who"), (told.sharing_tenants, "tenant")):
        total = sum(truth[name].values())
        for who in ("same", "other", "unknown"):
            assert getattr(sharing, who).value == pytest.approx(truth[name][who] / total)
    assert_spread(told.input_length, [row[1] for row in rows])
    assert_spread(told.output_length, [row[2] for row in rows])
    assert_spread(told.reuse_distance_blocks, truth["distance"])
    assert_spread(told.reuse_time_s, truth["time"])
    assert (told.watched_share, told.watched_blocks) == (1.0, truth["distinct"])


def test_sessions_are_measured_exactly() -> None:
    rows = tree_rows(seed=4, requests=500)
    rows.append((rows[-1][0] + 1, 32, 1, 777, 0, [5, 6]))
    told = measured(rows).sessions
    by_session: dict[int, list[Row]] = {}
    for row in rows:
        if row[3]:
            by_session.setdefault(row[3], []).append(row)
    pairs = [pair for each in by_session.values() for pair in pairwise(each)]
    assert told.sessions == Estimate(len(by_session))
    assert told.requests_unknown == sum(not row[3] for row in rows) > 0
    single = sum(len(each) == 1 for each in by_session.values())
    assert single
    assert_exactly(told.single_share, single / len(by_session))
    assert_spread(told.requests, [len(each) for each in by_session.values()])
    assert_spread(told.gap_s, [two[0] - one[0] for one, two in pairs])
    assert_spread(told.tokens_added, [max(0, two[1] - one[1]) for one, two in pairs])
    assert_spread(told.tokens_at_end, [each[-1][1] + each[-1][2] for each in by_session.values()])


def test_blocks_behind_a_broken_prefix_are_told_apart() -> None:
    told = measured([(0.0, 48, 1, 1, 1, [1, 2, 3]), (1.0, 48, 1, 1, 1, [1, 9, 3])])
    assert told.reuse_by_prefix.blocks.value == pytest.approx(1 / 6)
    assert told.reuse_by_block.blocks.value == pytest.approx(2 / 6)


def test_a_block_named_twice_by_one_request_was_not_used_before() -> None:
    told = measured([(0.0, 48, 1, 1, 1, [1, 2, 1])])
    assert told.reuse_by_block.blocks == Estimate(0.0)
    assert told.distinct_blocks == Estimate(2)
    assert told.never_reused == Estimate(1.0)


def test_an_empty_trace_has_no_figures_to_divide() -> None:
    lacking: list[Row] = [(0.0, 100, 5, 0, 0, [])]
    for rows in ([], lacking):
        told = measured(rows)
        assert told.requests == len(rows)
        assert told.reuse_by_prefix.blocks.value == told.reuse_by_prefix.tokens.value == 0
        assert told.reuse_time_s.histogram == ()


def test_hot_prefixes_are_counted_and_end_where_prompts_part() -> None:
    system = list(range(1, 9))
    rows: list[Row] = []
    for at in range(3_000):
        # Half go on with the same five tools.
        tools = list(range(20, 25)) if at % 2 else []
        ids = [*system, *tools, 1_000 + at]
        rows.append((float(at), 16 * len(ids), 1, 1, 1, ids))
    told = measured(rows)
    assert [(hot.blocks, hot.uses, hot.uses_missed_max) for hot in told.hottest] == [
        (8, 3_000, 0),
        (13, 1_500, 0),
    ]


def sketch_of(rows: list[Row], seed: int, watched: int) -> Measures:
    sketch = _core.TraceSketch(BLOCK_TOKENS, 512, 0.5, seed, watched, watched)
    sketch.feed(batch_of(rows))
    return measures.measured(sketch, trace_of([]).info, 512, 0.5)


def test_a_sampled_trace_is_within_its_stated_errors() -> None:
    rows = tree_rows(seed=5, requests=12_000, sessions=3_000)
    exact, seeds = measured(rows, long_prefix_tokens=512), 20
    truth = lru(rows, None)
    assert exact.watched_share == 1
    assert exact.reuse_by_prefix.blocks.value == pytest.approx(truth[0])
    figures: dict[str, Callable[[Measures], Estimate]] = {
        "distinct": lambda told: told.distinct_blocks,
        "never": lambda told: told.never_reused,
        "prefix": lambda told: told.reuse_by_prefix.blocks,
        "prefix tokens": lambda told: told.reuse_by_prefix.tokens,
        "sticky": lambda told: told.reuse_sticky.blocks,
        "long": lambda told: told.long_prefix_requests,
        "other session": lambda told: told.sharing_sessions.other,
        "same tenant": lambda told: told.sharing_tenants.same,
        "sessions": lambda told: told.sessions.sessions,
        "single": lambda told: told.sessions.single_share,
    }
    covered: Counter[str] = Counter()
    for seed in range(seeds):
        told = sketch_of(rows, seed, 2_048)
        assert told.watched_share < 0.2
        for name, figure in figures.items():
            estimate = figure(told)
            assert not estimate.is_exact
            covered[name] += abs(estimate.value - figure(exact).value) <= estimate.error
        wide = told.reuse_time_s
        below = sum(row[2] for row in exact.reuse_time_s.histogram if row[1] <= wide.p50)
        assert below <= 0.5 + wide.rank_error
    print(dict(covered))
    assert min(covered.values()) >= 0.9 * seeds, covered


def test_arguments_are_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="long_prefix_tokens is 0"):
        measured([], long_prefix_tokens=0)
    with pytest.raises(ArgumentError, match=r"long_share is 1\.5"):
        measured([], long_prefix_share=1.5)
    with pytest.raises(ArgumentError, match="watched_max is 3"):
        _core.TraceSketch(16, 1, 0.5, 0, 3)
    sketch = _core.TraceSketch(16, 1, 0.5)
    with pytest.raises(ArgumentError, match="a batch has no times_s"):
        sketch.feed(object())
    bad = batch_of([(0.0, 16, 1, 1, 1, [1])])
    object.__setattr__(bad, "offsets", np.array([0, 7], np.uint64))
    with pytest.raises(ArgumentError, match="offsets must grow"):
        sketch.feed(bad)
    object.__setattr__(bad, "block_ids", np.array([1.0]))
    with pytest.raises(ArgumentError, match="block_ids must be a contiguous array of 8 byte"):
        sketch.feed(bad)
