"""Logs become traces: every format, packed or not, from files and pipes."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import sample_logs as logs
from keepwarm.errors import ArgumentError
from keepwarm.testing import traces
from keepwarm.workload import parquet
from keepwarm.workload.readers import open_requests, open_trace
from keepwarm.workload.trace import Batch, TokensAre

KEY = b"k" * 32
zstandard = pytest.importorskip("zstandard", reason="the workload extra is not installed")


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


class Meter:
    """Takes what a reading tells of its progress."""

    read = 0
    all: int | None = None

    def __call__(self, read: int, all_bytes: int | None) -> None:
        assert read >= self.read
        self.read, self.all = read, all_bytes


def equal(one: list[Batch], other: list[Batch]) -> bool:
    joined = [parquet.joined(each) for each in (one, other)]
    return all(
        np.array_equal(getattr(joined[0], name), getattr(joined[1], name))
        for name in Batch.__dataclass_fields__
    )


@pytest.mark.parametrize("name", sorted(logs.ALL))
def test_each_format_is_told_by_its_content_and_read(name: str, tmp_path: Path) -> None:
    make, count = logs.ALL[name]
    path = written(tmp_path, "something.log", make())
    source = open_trace(path)
    assert source.info.format == ("requests" if name == "anthropic" else name)
    assert logs.check(logs.all_of(source), source.info.block_tokens) == count
    assert source.skipped().total() == 0
    forced = open_trace(path, format=source.info.format, key=KEY)
    assert equal(logs.all_of(forced), logs.all_of(forced))


@pytest.mark.parametrize("name", sorted(logs.ALL))
def test_packed_logs_and_pipes_give_the_same(name: str, tmp_path: Path) -> None:
    content = logs.ALL[name][0]()
    plain = logs.all_of(open_trace(written(tmp_path, "a", content), key=KEY))
    if name == "weka":  # a session is known by its file's name, among others
        return
    squeezed = zstandard.ZstdCompressor().compress(content)
    halves = gzip.compress(content[:99]) + gzip.compress(content[99:])
    for each in (squeezed, gzip.compress(content), halves):
        packed = written(tmp_path, "b", each)
        source = open_trace(packed, key=KEY)
        meter = Meter()
        assert equal(plain, list(source.batches(meter)))
        assert meter.read == meter.all == packed.stat().st_size
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(squeezed,))
    writer.start()
    source = open_trace(pipe, key=KEY)
    assert equal(plain, logs.all_of(source))
    writer.join()
    with pytest.raises(ArgumentError, match="is a pipe and was read"):
        logs.all_of(source)


def test_stdin_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(logs.mooncake())))
    source = open_trace("-")
    assert source.info.name == "stdin"
    assert logs.check(logs.all_of(source), 512) == 3


def test_mooncake_rows_mean_what_they_say(tmp_path: Path) -> None:
    source = open_trace(written(tmp_path, "m.jsonl", logs.mooncake()))
    (batch,) = source.batches()
    assert source.info.block_tokens == 512
    assert source.info.tokens_are is TokensAre.EXACT
    assert batch.times_s.tolist() == [0.0, 1.5, 1.5]
    assert batch.input_tokens.tolist() == [1000, 1200, 512]
    assert batch.output_tokens.tolist() == [5, 7, 1]
    assert [batch.blocks(k).tolist() for k in range(3)] == [[1, 2], [1, 2, 3], [9]]
    assert batch.sessions.tolist() == [0, 0, 0]


def test_times_since_1970_are_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 9, "output_length": 1, "hash_ids": [1]}
        for at in (1_764_000_000_000, 1_764_000_002_500)
    ]
    (batch,) = open_trace(written(tmp_path, "m.jsonl", logs.lines(rows))).batches()
    assert batch.times_s.tolist() == [0.0, 2.5]


def test_qwen_turns_find_their_session(tmp_path: Path) -> None:
    def row(chat: int, parent: int, at_s: float) -> dict[str, object]:
        named = {"chat_id": chat, "parent_chat_id": parent, "turn": 1, "type": "text"}
        return {**named, "timestamp": at_s, "input_length": 32, "output_length": 1, "hash_ids": [1]}

    rows = [row(1, -1, 0.5), row(2, -1, 1.0), row(3, 1, 60.25), row(4, 3, 61.0)]
    source = open_trace(written(tmp_path, "q.jsonl", logs.lines(rows)))
    (batch,) = source.batches()
    assert source.info.block_tokens == 16
    assert batch.times_s.tolist() == [0.0, 0.5, 59.75, 60.5]
    first, second, third, fourth = batch.sessions.tolist()
    assert first == third == fourth != second


def test_files_of_one_trace_are_interleaved_by_time(tmp_path: Path) -> None:
    def part(name: str, times: list[int], first: int) -> Path:
        rows = [
            {"timestamp": at, "input_length": 9, "output_length": 1, "hash_ids": [first + k]}
            for k, at in enumerate(times)
        ]
        return written(tmp_path, name, logs.lines(rows))

    late = part("late.jsonl", [9000, 9500], 50)
    one = part("one.jsonl", [0, 2000, 4000], 10)
    two = part("two.jsonl", [1000, 3000], 20)
    source = open_trace([late, one, two])
    (batch,) = source.batches()
    assert batch.block_ids.tolist() == [10, 20, 11, 21, 12, 50, 51]
    assert batch.times_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 9.5]
    assert "parts of one trace" in source.info.notes[0]


def test_late_lines_are_put_in_order_and_later_ones_moved(tmp_path: Path) -> None:
    times = [*range(0, 3_000_000, 1000), 2_999_500, 0]
    rows = [
        {"timestamp": at, "input_length": 9, "output_length": 1, "hash_ids": [at]} for at in times
    ]
    source = open_trace(written(tmp_path, "m.jsonl", logs.lines(rows)))
    got = logs.all_of(source)
    assert logs.check(got, 512) == 3002
    assert list(source.skipped().mended.values()) == [1]
    assert source.skipped().total() == 0
    assert parquet.joined(got).block_ids[-2:].tolist() == [2_999_000, 2_999_500]


def test_files_of_other_forms_or_clocks_are_refused_and_empty_ones_are_not(tmp_path: Path) -> None:
    empty = written(tmp_path, "empty", b"")
    good = written(tmp_path, "good", logs.mooncake())
    other = written(tmp_path, "other", logs.csv())
    assert logs.check(logs.all_of(open_trace([empty, good])), 512) == 3
    with pytest.raises(ArgumentError, match="good is of the form mooncake, other of csv"):
        open_trace([good, other])
    one, two = (written(tmp_path, name, logs.portable()) for name in "ab")
    with pytest.raises(ArgumentError, match="times begin at zero"):
        open_trace([one, two])
    with pytest.raises(ArgumentError, match="empty is empty"):
        open_trace([empty])


def test_a_file_that_begins_out_of_order_is_put_in_order_with_others(tmp_path: Path) -> None:
    def part(name: str, times: list[int]) -> Path:
        rows = [{"timestamp": at, "input_length": 9, "hash_ids": [at]} for at in times]
        return written(tmp_path, name, logs.lines(rows))

    whole = part("whole", list(range(0, 200_000, 1000)))
    late = part("late", [100_500, *range(100_501, 100_540), 50_500, 99_500])
    source = open_trace([whole, late])
    got = logs.all_of(source)
    assert logs.check(got, 512) == 242
    assert list(source.skipped().mended.values()) == [2]
    early = part("late", [100_500, 50_500, 99_500])
    source = open_trace([whole, early])
    joined = parquet.joined(logs.all_of(source))
    assert np.array_equal(joined.block_ids, np.sort(joined.block_ids))
    assert source.skipped().mended == {}


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(written(tmp_path / name, "log", logs.mooncake() + b"{}\n"))
    source = open_trace(paths)
    logs.all_of(source)
    (places,) = source.skipped().places.values()
    assert sorted(places) == [f"{path}:4" for path in paths]


def test_sessions_start_apart_and_share_nothing(tmp_path: Path) -> None:
    for place, first in enumerate((100, 100, 101)):
        document = logs.weka_document("a" if place < 2 else "b", first)
        written(tmp_path, f"trace_{place:04}.json", json.dumps(document).encode())
    source = open_trace(tmp_path, stagger_s=5.0)
    (batch,) = source.batches()
    assert batch.times_s.tolist() == [0.0, 5.0, 11.0, 12.0, 16.0, 17.0, 20.0, 25.0]
    assert len(set(batch.sessions.tolist())) == 2
    assert source.skipped().counts == {"an exact duplicate of another session": 1}
    ids: dict[int, set[int]] = {each: set() for each in batch.sessions.tolist()}
    for k in range(len(batch)):
        ids[int(batch.sessions[k])] |= set(batch.blocks(k).tolist())
    one, other = ids.values()
    assert not one & other
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(tmp_path.glob("trace_*")):
            tar.add(path, f"traces/{path.name}")
    packed = zstandard.ZstdCompressor().compress(archive.getvalue())
    source = open_trace(written(tmp_path, "sessions.tar.zst", packed), stagger_s=5.0)
    (again,) = source.batches()
    assert again.times_s.tolist() == batch.times_s.tolist()
    assert again.block_ids.tolist() == batch.block_ids.tolist()


def test_lengths_say_that_nothing_is_known_to_repeat(tmp_path: Path) -> None:
    source = open_trace(written(tmp_path, "a.csv", logs.csv()))
    (batch,) = source.batches()
    assert source.info.tokens_are is TokensAre.LENGTHS_ONLY
    assert batch.input_tokens.tolist() == [4808, 3180]
    assert batch.times_s[1] == pytest.approx(0.052, abs=1e-6)
    assert len(batch.block_ids) == 0
    burst = b"Timestamp;Model;Request tokens;Response tokens;Session ID\n5;m;472;18;a\n45;m;8;1;a\n"
    (batch,) = open_trace(written(tmp_path, "b.csv", burst)).batches()
    assert batch.times_s.tolist() == [0.0, 40.0]
    assert batch.output_tokens.tolist() == [18, 1]
    assert batch.sessions[0] == batch.sessions[1] != 0


def test_a_trace_without_text_is_none_for_lint(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="without text: give a log of requests"):
        open_requests(written(tmp_path, "m.jsonl", logs.mooncake()))
    with pytest.raises(ArgumentError, match="name at least one log"):
        open_trace([])


def test_the_published_traces_come_out_as_the_reference_has_them() -> None:
    mooncake = traces.find(traces.MOONCAKE_FILE)
    weka = traces.find(traces.WEKA_FILE)
    if mooncake is None or weka is None:
        pytest.skip(f"no traces: set {traces.TRACES_VARIABLE}")
    ours = parquet.joined(logs.all_of(open_trace(mooncake)))
    reference = traces.read_mooncake(mooncake).requests
    assert len(ours) == len(reference) == 12_031
    assert ours.block_ids.tolist() == [each for row in reference for each in row.block_ids]
    assert ours.times_s.tolist() == [row.arrival_s for row in reference]
    reader = open_trace(weka).batches()
    expected = iter(traces.read_weka(weka, sessions=40).requests)
    compared = 0
    for batch in reader:
        for k in range(len(batch)):
            if batch.times_s[k] >= 40 * 60.0:  # the next session has begun
                assert compared > 300
                return
            row = next(expected)
            assert batch.blocks(k).tolist() == list(row.block_ids)
            assert batch.times_s[k] == pytest.approx(row.arrival_s)
            compared += 1
