"""The portable trace: what is written is read, in bounded groups; bad rows and files are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.workload import parquet
from keepwarm.workload.measures import Estimate
from keepwarm.workload.trace import Batch, TokensAre, TraceInfo

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
import pyarrow.parquet as pq  # noqa: E402

INFO = TraceInfo("a name", "made", "tests", 16, TokensAre.APPROXIMATE, True, ("one note",))


def batch(rng: np.random.Generator, requests: int, start_s: float = 0.0) -> Batch:
    lengths = rng.integers(0, 9, requests)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    return Batch(
        start_s + np.sort(rng.random(requests)),
        (lengths * 16).astype(np.uint32),
        rng.integers(0, 100, requests).astype(np.uint32),
        rng.integers(0, 1 << 63, requests).astype(np.uint64),
        np.zeros(requests, np.uint64),
        offsets,
        rng.integers(0, 1 << 64, int(offsets[-1]), dtype=np.uint64),
    )


def assert_equal(one: Batch, other: Batch) -> None:
    for name in Batch.__slots__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    wanted = [batch(rng, count, float(at)) for at, count in enumerate((5, 20_000, 1, 0, 3))]
    path = tmp_path / "trace.parquet"
    assert parquet.write(path, INFO, iter(wanted)) == 20_009
    trace = parquet.ParquetTrace(path)
    assert trace.requests() == 20_009
    assert (trace.info.name, trace.info.block_tokens) == ("a name", 16)
    assert trace.info.synthetic
    assert trace.info.tokens_are is TokensAre.APPROXIMATE
    assert trace.info.notes == ("one note",)
    seen: list[tuple[int, int | None]] = []
    read = list(trace.batches(lambda done, size: seen.append((done, size))))
    assert_equal(parquet.joined(read), parquet.joined(wanted))
    assert trace.skipped().total() == 0
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert all(len(each) <= parquet.READ_REQUESTS for each in read)
    assert [each.name for each in tmp_path.iterdir()] == ["trace.parquet"]


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BLOCKS", 100)
    monkeypatch.setattr(parquet, "GROUP_REQUESTS", 30)
    rng = np.random.default_rng(8)
    wanted = [batch(rng, 500), batch(rng, 7, 1.0)]
    path = tmp_path / "trace.parquet"
    parquet.write(path, INFO, wanted)
    groups = pq.ParquetFile(path).metadata
    rows = [groups.row_group(at).num_rows for at in range(groups.num_row_groups)]
    assert sum(rows) == 507
    assert max(rows) <= 30
    assert_equal(parquet.joined(list(parquet.ParquetTrace(path).batches())), parquet.joined(wanted))


def test_rows_that_no_request_can_be_are_counted_with_their_place(tmp_path: Path) -> None:
    made = Batch(
        np.array([0.0, 2.0, 1.0, np.nan, -1.0, 3.0, 2.5]),
        np.array([16, 16, 16, 16, 16, 16, 16], np.uint32),
        np.zeros(7, np.uint32),
        np.arange(7, dtype=np.uint64),
        np.zeros(7, np.uint64),
        np.array([0, 1, 2, 3, 4, 5, 7, 8], np.uint64),
        np.arange(8, dtype=np.uint64),
    )
    path = tmp_path / "bad.parquet"
    parquet.write(path, INFO, [made])
    trace = parquet.ParquetTrace(path)
    (read,) = trace.batches()
    assert list(read.times_s) == [0.0, 2.0]
    assert list(read.block_ids) == [0, 1]
    assert trace.skipped().counts == {
        "time is no number, or negative": 2,
        "time runs back": 2,
        "more blocks than tokens": 1,
    }
    assert trace.skipped().places["time runs back"] == ["bad.parquet:3", "bad.parquet:7"]


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    text = tmp_path / "text.parquet"
    text.write_text("no parquet", encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"text\.parquet is no Parquet file"):
        parquet.ParquetTrace(text)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(ArgumentError, match=r"other\.parquet is no keepwarm trace"):
        parquet.ParquetTrace(other)
    cut = tmp_path / "cut.parquet"
    parquet.write(cut, INFO, [batch(np.random.default_rng(9), 100)])
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(ArgumentError, match=r"cut\.parquet"):
        parquet.ParquetTrace(cut)


def test_an_estimate_without_error_is_exact() -> None:
    assert Estimate(0.5).is_exact
    assert not Estimate(0.5, 0.01).is_exact
