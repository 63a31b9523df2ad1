"""Trace readers and generators; public data is used where it is present."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from keepwarm.testing import synthetic, traces


def request(ids: list[int], tokens: int, session: int = 0) -> traces.Request:
    return traces.Request(session, 0.0, tokens, 10, 64, array("Q", ids))


def test_equal_ids_give_equal_tokens_and_different_ids_do_not() -> None:
    one, other = request([1, 2, 3], 192).token_ids(), request([1, 2, 9], 192).token_ids()
    assert one.dtype == np.uint32
    assert len(one) == 192
    assert (one[:128] == other[:128]).all()
    assert (one[128:] != other[128:]).all()


def test_a_tail_without_an_id_belongs_to_its_session() -> None:
    mine, yours = request([1], 100, session=1).token_ids(), request([1], 100, session=2).token_ids()
    assert len(mine) == len(yours) == 100
    assert (mine[:64] == yours[:64]).all()
    assert (mine[64:] != yours[64:]).any()


def test_a_partial_last_block_is_cut_to_the_input() -> None:
    partial = request([1, 2], 100)
    assert len(partial.token_ids()) == 100
    assert partial.whole_blocks() == 1


def test_the_replay_evicts_the_tail_first() -> None:
    asked = [request([1, 2, 3], 192), request([7], 64), request([1, 2, 3], 192)]
    assert traces.replay(asked).hit_blocks == 3
    assert traces.replay(asked, 3).hit_blocks == 2


def test_mooncake_lines_are_read_and_bad_ones_named(tmp_path: Path) -> None:
    row = {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [4, 5]}
    good = tmp_path / "good.jsonl"
    good.write_text(json.dumps(row) + "\n", encoding="utf-8")
    trace = traces.read_mooncake(good)
    assert trace.requests[0].arrival_s == 1.5
    assert list(trace.requests[0].block_ids) == [4, 5]
    assert not trace.synthetic
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(row) + "\n{}\n", encoding="utf-8")
    with pytest.raises(traces.TraceError, match=r"bad\.jsonl:2: not a request"):
        traces.read_mooncake(bad)


def weka_document(first: int) -> dict[str, object]:
    def entry(at_s: float, ids: list[int]) -> dict[str, object]:
        return {"t": at_s, "type": "n", "in": first + 64 * len(ids), "out": 3, "hash_ids": ids}

    return {
        "block_size": 64,
        "requests": [
            entry(0.0, [1, 2]),
            {"t": 10.0, "type": "nested", "requests": [entry(1.0, [7]), entry(12.0, [7, 8])]},
            entry(20.0, [1, 2, 3]),
        ],
    }


def test_weka_sessions_are_shifted_merged_and_deduplicated(tmp_path: Path) -> None:
    for number, first in enumerate((0, 0, 5)):
        path = tmp_path / f"trace_{number:04}.json"
        path.write_text(json.dumps(weka_document(first)), encoding="utf-8")
    trace = traces.read_weka(tmp_path, sessions=9, stagger_s=5.0)
    assert trace.sessions() == 2
    early = [r for r in trace.requests if r.session == 0]
    assert [r.arrival_s for r in early] == [0.0, 11.0, 12.0, 20.0]
    second = [r for r in trace.requests if r.session == 1]
    assert list(second[0].block_ids) == [10, 11]
    assert not set(early[-1].block_ids) & set(second[-1].block_ids)
    assert traces.read_weka(tmp_path, sessions=1, skip=1).requests[0].input_tokens == 5 + 128


@pytest.mark.parametrize("name", sorted(synthetic.GENERATORS))
def test_generators_are_seeded_and_say_that_they_are_synthetic(name: str) -> None:
    trace = synthetic.GENERATORS[name](7)
    again = synthetic.GENERATORS[name](7)
    assert trace.synthetic
    assert "synthetic" in trace.describe()
    assert trace.requests == again.requests
    assert trace.requests != synthetic.GENERATORS[name](8).requests
    arrivals = [r.arrival_s for r in trace.requests]
    assert arrivals == sorted(arrivals)
    for made in trace.requests:
        assert len(made.block_ids) == made.input_tokens // made.block_tokens


def test_agents_share_their_system_prompt_and_grow() -> None:
    trace = synthetic.coding_agents(sessions=4, turns=30, seed=3)
    heads = {tuple(r.block_ids[:100]) for r in trace.requests}
    assert len(heads) <= 2
    rate = traces.replay(trace.requests).by_token()
    assert 0.85 < rate < 0.99


PUBLIC = traces.traces_root()
needs_public = pytest.mark.skipif(PUBLIC is None, reason=f"no traces: set {traces.TRACES_VARIABLE}")


@needs_public
def test_the_conversation_trace_gives_the_published_values() -> None:
    path = traces.find(traces.MOONCAKE_FILE)
    if path is None:
        pytest.skip(f"{traces.MOONCAKE_FILE} is not there")
    trace = traces.read_mooncake(path)
    assert len(trace.requests) == 12_031
    assert round(traces.replay(trace.requests, 1000).by_block(), 4) == 0.0445
    unbounded = traces.replay(trace.requests)
    assert round(unbounded.by_block(), 4) == 0.3664
    assert round(unbounded.by_token(), 4) == 0.3736


@needs_public
def test_recorded_sessions_are_read_from_the_archive() -> None:
    path = traces.find(traces.WEKA_FILE)
    if path is None:
        pytest.skip(f"{traces.WEKA_FILE} is not there")
    trace = traces.read_weka(path, sessions=3)
    assert trace.sessions() == 3
    assert trace.requests[0].input_tokens == 71_175
    assert traces.replay(trace.requests).by_token() > 0.9
