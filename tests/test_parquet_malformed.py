"""A Parquet file that is damaged, or is somebody else's, is refused or its rows are counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import sample_logs as logs
from keepwarm.errors import ArgumentError
from keepwarm.workload.anonymise import anonymise
from keepwarm.workload.readers import open_trace

pa = pytest.importorskip("pyarrow", reason="the workload extra is not installed")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "log").write_bytes(logs.openai())
    anonymise(open_trace(tmp_path / "log"), tmp_path / "good.parquet")
    return tmp_path / "good.parquet"


def read(path: Path) -> tuple[int, dict[str, int]]:
    source = open_trace(path)
    return logs.check(logs.all_of(source), source.info.block_tokens), source.skipped().counts


def test_damage_is_refused_in_one_line(good: Path) -> None:
    content = good.read_bytes()
    refused = 0
    for seed in range(150):
        rng = random.Random(f"{logs.SEED} {seed}")
        data = bytearray(content)
        for _ in range(rng.randint(1, 5)):
            at, kind = rng.randrange(len(data)), rng.randrange(3)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randint(1, 50)]
            else:
                data[at:at] = rng.randbytes(9)
        path = good.with_name("bad.parquet")
        path.write_bytes(data)
        try:
            read(path)
        except ArgumentError as error:
            refused += 1
            said = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        else:
            said = ""
        assert said.isprintable(), seed
    assert refused > 50


def of_other_columns(count: int) -> dict[str, list[Any]]:
    ids = pa.list_(pa.uint64())
    return {
        "time_s": [pa.array(["x"] * count), pa.array([float("nan")] * count)],
        "input_tokens": [pa.array([-1] * count), pa.array([1.5] * count)],
        "session": [pa.array(["s"] * count)],
        "block_ids": [
            *(pa.array([1] * count), pa.array([["x"]] * count), pa.array([[-1]] * count)),
            *(pa.array([[None]] * count, ids), pa.array([[1] * 999] * count, ids)),
        ],
    }


def test_columns_of_other_types_are_refused(good: Path) -> None:
    table = pq.read_table(good)
    for name, columns in of_other_columns(table.num_rows).items():
        for column in columns:
            all_of_them = [column if each == name else table[each] for each in table.schema.names]
            other = pa.table(all_of_them, names=table.schema.names)
            path = good.with_name("other.parquet")
            pq.write_table(other.replace_schema_metadata(table.schema.metadata), path)
            with pytest.raises(ArgumentError, match=r"column|null|no request could be read"):
                read(path)


def test_rows_that_no_request_can_be_are_counted(good: Path) -> None:
    table = pq.read_table(good)
    times = table["time_s"].to_pylist()
    times[1], times[-1] = -1.0, 0.0
    column = table.schema.get_field_index("time_s")
    spoilt = table.set_column(column, "time_s", pa.array(times))
    pq.write_table(spoilt.replace_schema_metadata(table.schema.metadata), good)
    assert read(good) == (
        table.num_rows - 2,
        {"time is no number, or negative": 1, "time runs back": 1},
    )


def test_a_trace_without_rows_is_refused(good: Path) -> None:
    table = pq.read_table(good)
    pq.write_table(table.slice(0, 0), good)
    with pytest.raises(ArgumentError, match="no request could be read: no rows"):
        read(good)
