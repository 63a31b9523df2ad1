"""Generated traces: in order, the same for the same seed, of the shape that they claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from keepwarm import cli
from keepwarm.errors import ArgumentError
from keepwarm.workload import parquet
from keepwarm.workload.measures import measure
from keepwarm.workload.readers import open_trace
from keepwarm.workload.synth import Kind, Synthetic
from trace_models import trace_of


@pytest.mark.parametrize("kind", list(Kind))
def test_requests_come_in_order_and_blocks_fit(kind: Kind) -> None:
    made = Synthetic(kind, 20_001, seed=4, block_tokens=64)
    assert made.info.synthetic
    every = list(made.batches())
    whole = parquet.joined(every)
    assert len(whole) == 20_001
    assert max(map(len, every)) <= 8_192
    assert whole.times_s[0] == 0
    assert (np.diff(whole.times_s) >= 0).all()
    blocks = np.diff(whole.offsets).astype(np.int64)
    assert (blocks == -(-whole.input_tokens.astype(np.int64) // 64)).all()
    assert (whole.sessions != 0).all()
    assert (whole.tenants != 0).all()


def test_equal_ids_have_equal_prefixes() -> None:
    for kind in Kind:
        before: dict[int, int] = {}
        for batch in Synthetic(kind, 3_000, seed=9, block_tokens=128).batches():
            for at in range(len(batch)):
                parent = 0
                for block in batch.blocks(at).tolist():
                    assert before.setdefault(block, parent) == parent
                    parent = block


def test_a_seed_gives_one_trace() -> None:
    first, again, other = (
        parquet.joined(list(Synthetic(Kind.AGENTS, 500, seed).batches())) for seed in (1, 1, 2)
    )
    assert (first.block_ids == again.block_ids).all()
    assert (first.times_s == again.times_s).all()
    assert len(np.intersect1d(first.block_ids, other.block_ids)) == 0


def test_a_longer_trace_begins_with_the_shorter_one() -> None:
    short = parquet.joined(list(Synthetic(Kind.CHAT, 1_000, 3).batches()))
    long = next(Synthetic(Kind.CHAT, 5_000, 3).batches())
    assert (long.block_ids[: len(short.block_ids)] == short.block_ids).all()


def test_kinds_repeat_as_they_claim() -> None:
    told = {kind: measure(Synthetic(kind, 4_000, 7, 64)) for kind in Kind}
    assert told[Kind.AGENTS].reuse_by_prefix.tokens.value > 0.9
    assert 0.5 < told[Kind.CHAT].reuse_by_prefix.tokens.value < 0.9
    assert 0.15 < told[Kind.RAG].reuse_by_prefix.tokens.value < 0.6
    assert told[Kind.RAG].sessions.single_share.value == 1
    assert told[Kind.UNIQUE].reuse_by_prefix.blocks.value == 0
    assert told[Kind.AGENTS].sessions.requests.mean > 8
    assert told[Kind.AGENTS].hottest[0].tokens > 5_000


def test_both_forms_are_the_same_trace(tmp_path: Path) -> None:
    for name in ("trace.parquet", "trace.jsonl"):
        arguments = ["--kind", "rag", "--requests", "200", "--seed", "3"]
        assert cli.main(["workload", "synth", str(tmp_path / name), *arguments]) == 0
    one, other = (open_trace(tmp_path / name) for name in ("trace.parquet", "trace.jsonl"))
    assert one.info.synthetic
    assert other.info.synthetic
    left, right = (parquet.joined(list(each.batches())) for each in (one, other))
    np.testing.assert_array_equal(left.block_ids, right.block_ids)
    np.testing.assert_allclose(left.times_s, right.times_s)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.jsonl", "trace.parquet"]


def test_sizes_that_cannot_be_are_refused() -> None:
    for arguments in ((0, 0, 64), (1, -1, 64), (1, 0, 0)):
        with pytest.raises(ArgumentError, match="at least 1 request"):
            Synthetic(Kind.CHAT, *arguments)
    assert measure(trace_of([])).requests == 0
