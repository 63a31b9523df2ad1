"""What is wrong with a log is counted with its place, or refused with the reason; nothing else."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_logs as logs
from keepwarm.errors import ArgumentError
from keepwarm.workload.readers import open_requests, open_trace, opening

zstandard = pytest.importorskip("zstandard", reason="the workload extra is not installed")
GOOD = logs.mooncake()
ODD: list[Any] = [
    *(None, True, -1, -0.5, 10**30, 1e308, "", "x", "12", [], {}, [[]], [None], {"a": 1}),
    *("\ud800", "\0", [1, "..."], 2**63, [-1], [2**70], "2023-11-16", 1e17),
]


def reading(tmp_path: Path, content: bytes, **more: Any) -> tuple[int, dict[str, int], list[str]]:
    """Requests, what was left out, and where."""
    path = tmp_path / "log"
    path.write_bytes(content)
    source = open_trace(path, **more)
    count = logs.check(logs.all_of(source), source.info.block_tokens)
    skipped = source.skipped()
    return count, skipped.counts, [place for places in skipped.places.values() for place in places]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"timestamp": 1, "input_length": 9, "hash_ids": [1', "it is not whole JSON"),
        (b'{"a": "\xe9t\xe9"}', "it is not UTF-8"),
        (b"\0\0\0\0", "it is not whole JSON"),
        (b"[1]", "it is no JSON object"),
        (b"{}", "it has no timestamp or no hash_ids"),
        (b'{"timestamp": -5, "input_length": 9, "hash_ids": [1]}', "its time is negative"),
        (b'{"timestamp": "x", "input_length": 9, "hash_ids": [1]}', "its time is no number"),
        (b'{"timestamp": 1e300, "input_length": 9, "hash_ids": [1]}', "its time is out of range"),
        (
            b'{"timestamp": 1, "input_length": 99999999999, "hash_ids": [1]}',
            "its input tokens are negative or over 2^32",
        ),
        (
            b'{"timestamp": 1, "input_length": null, "hash_ids": [1]}',
            "its input tokens are no whole number",
        ),
        (b'{"timestamp": 1, "input_length": 9, "hash_ids": "ab"}', "its block ids are no list"),
        (
            b'{"timestamp": 1, "input_length": 9, "hash_ids": [1.5]}',
            "its block ids are no whole numbers",
        ),
        (
            b'{"timestamp": 1, "input_length": 9, "hash_ids": [36893488147419103232]}',
            "its block ids have more than 64 bits",
        ),
        (
            b'{"timestamp": 1, "input_length": 9, "hash_ids": [1], "block_size": 16}',
            "its blocks are not of 512 tokens",
        ),
        (b'{"a": ' * 5000, "it is nested too deep"),
    ],
)
def test_a_bad_line_is_counted_with_its_number(line: bytes, reason: str, tmp_path: Path) -> None:
    count, skipped, places = reading(tmp_path, GOOD + line + b"\n" + GOOD)
    assert count == 6
    assert skipped == {reason: 1}
    assert places == ["log:4"]


def test_more_ids_than_blocks_asks_for_the_block_size(tmp_path: Path) -> None:
    count, skipped, places = reading(tmp_path, GOOD, block_tokens=4096)
    assert (count, places) == (1, ["log:1", "log:2"])
    assert next(iter(skipped)).endswith("blocks of 4096 (is the block size right?)")


def test_of_a_key_that_comes_twice_the_last_counts(tmp_path: Path) -> None:
    twice = GOOD + b'{"timestamp": 1, "timestamp": 2000, "input_length": 9, "hash_ids": [1]}\n'
    assert reading(tmp_path, twice)[:2] == (4, {})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n\n", "is blank"),
        (b"hello\nworld\n", "has no known format; looked for: block hashes"),
        (GOOD.decode().encode("utf-16"), "is UTF-16: convert it, with iconv"),
        (GOOD.decode().encode("utf-16-le"), "many NUL bytes"),
        (pickle.dumps([{"hash_ids": [1]}]), "is a pickle, which may run any program"),
        (gzip.compress(GOOD)[:20], "is empty|has no known format"),
        (b'{"x": 1}\n' * 9, "has no known format"),
        (
            b"[x] INFO: Receive: obj=GenerateReqInput(rid='a', text='b')\n",
            "log-requests-format json",
        ),
        (b'{\n "a": 1\n}\n{\n "a": 2\n}\n', "jq -c . writes a record a line"),
        (b"PAR1" + b"x" * 99, "is no Parquet file"),
        (b'{"format": "keepwarm trace", "version": 9}\n', "only version 1 of this form is known"),
        (b"time,input_tokens\n", "there is no request in it"),
        (b"time,input_tokens\nx,y\n,\n", "no request could be read of 2 records"),
        (
            GOOD.replace(b"timestamp", b"when"),
            r"no request could be read of 3.*log:1, log:2, log:3",
        ),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=reason):
        reading(tmp_path, content)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n")
    assert reading(tmp_path, content)[:2] == (3, {})
    csv = b"\xef\xbb\xbf" + logs.csv().replace(b"\n", b"\r\n")
    assert reading(tmp_path, csv)[:2] == (2, {})


def test_mixed_schemas_are_read_as_the_first_is(tmp_path: Path) -> None:
    count, skipped, _ = reading(tmp_path, GOOD + logs.openai())
    assert (count, sum(skipped.values())) == (3, 6)
    count, skipped, _ = reading(tmp_path, logs.openai() + logs.anthropic() + GOOD)
    assert (count, sum(skipped.values())) == (12, 3)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed_data_that_is_cut_or_spoilt_gives_what_came_before(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    rng = random.Random(logs.SEED)
    rows = [
        {"timestamp": k, "input_length": 9000, "hash_ids": [rng.getrandbits(63) for _ in range(9)]}
        for k in range(20_000)
    ]
    packed = pack(logs.lines(rows))
    count, skipped, _ = reading(tmp_path, packed[: len(packed) * 2 // 3])
    assert 8_000 < count < 20_000
    assert skipped["the file ends within its compressed data"] == 1
    middle = len(packed) // 2
    spoilt = packed[:middle] + bytes(64) + packed[middle + 64 :]
    try:
        count, skipped, _ = reading(tmp_path, spoilt)
    except ArgumentError:
        pytest.fail("half of it could be read")
    assert 0 < count < 20_000
    assert sum(skipped.values()) >= 1


def test_a_line_of_a_gigabyte_is_counted_and_never_held(tmp_path: Path) -> None:
    """As zst, so that the test writes no gigabyte: what is unpacked is what counts."""
    path = tmp_path / "long.jsonl.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        packed.write(GOOD)
        packed.write(b'{"timestamp": 1, "hash_ids": [')
        for _ in range(1024):
            packed.write(b"1, " * (1 << 18) + b" " * (1 << 18))
        packed.write(b"1]}\n")
        packed.write(GOOD)
    source = open_trace(path)
    tracemalloc.start()
    try:
        count = logs.check(logs.all_of(source), 512)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 6
    assert source.skipped().counts == {"a line of more than 64 MiB": 1}
    assert source.skipped().places == {"a line of more than 64 MiB": ["long.jsonl.zst:4"]}
    assert peak < 3 * opening.LINE_BYTES_MAX


def test_what_is_held_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for rows in (20_000, 40_000):
        path = tmp_path / f"{rows}.jsonl"
        with path.open("wb") as file:
            for k in range(rows):
                file.write(
                    b'{"timestamp": %d, "input_length": 2000, "hash_ids": [1, %d, %d, %d]}\n'
                    % (k, k, k + 1, k + 2)
                )
        tracemalloc.start()
        try:
            assert sum(len(batch) for batch in open_trace(path).batches()) == rows
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]


def test_places_that_are_no_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, reason in (
        (tmp_path, "is a folder without coding-agent sessions"),
        (tmp_path / "none", "No such file"),
        ("a\0b", "is not a path"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            open_trace(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(opening, "_FIFO_WAIT_MS", 1)
    with pytest.raises(ArgumentError, match="nobody wrote to this pipe"):
        open_trace(pipe)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.jsonl", GOOD)
    with pytest.raises(ArgumentError, match="is a zip archive"):
        open_trace(tmp_path / "a.zip")
    (tmp_path / "good").write_bytes(GOOD)
    with pytest.raises(ArgumentError, match="no format is called 'toml'"):
        open_trace(tmp_path / "good", format="toml")


def test_parquet_with_other_columns_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "other.parquet"
    parquet.write_table(pyarrow.table({"a": [1, 2], "prompt": ["x", "y"]}), path)
    with pytest.raises(ArgumentError, match="is no keepwarm trace"):
        open_trace(path)


def bytes_spoilt(rng: random.Random, content: bytes) -> bytes:
    """A log in which something went wrong with the bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            del data[at : at + rng.randint(1, 200)]
        elif kind == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 20))
        elif kind == 2:
            data[at : at + 1] = rng.choice([b"\0", b"\n", b"\r", b'"', b"{", b"]", b"\xff", b","])
        elif kind == 3:
            data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randint(1, 500)]
        elif kind == 4:
            data[at:at] = rng.choice(list(logs.ALL.values()))[0]()
        else:
            del data[at:]
        if not data:
            return b"{"
    return bytes(data)


def values_spoilt(rng: random.Random, value: Any, odds: float = 0.05) -> Any:
    """A JSON value in which some values are others."""
    if rng.random() < odds:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {
            (rng.choice(["x", key]) if rng.random() < odds / 3 else key): values_spoilt(rng, each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        few = value[: rng.choice([len(value), 2])]
        return [values_spoilt(rng, each, odds if len(few) < 20 else odds / 50) for each in few]
    return value


def spoilt(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.4 or not content.startswith(b"{"):
        return bytes_spoilt(rng, content)
    records = [json.loads(line) for line in content.splitlines()]
    first, *rest = records
    kept = [first] if rng.random() < 0.5 else [values_spoilt(rng, first)]
    return logs.lines(kept + [values_spoilt(rng, each) for each in rest])


def whole_trace(path: Path, form: str | None) -> int:
    source = open_trace(path, format=form)
    return logs.check(logs.all_of(source), source.info.block_tokens)


def whole_log(path: Path, form: str | None) -> int:
    return sum(bool(each.where) for each in open_requests(path, format=form))


@pytest.mark.parametrize("name", sorted(logs.ALL))
def test_whatever_is_wrong_it_is_counted_or_refused(name: str, tmp_path: Path) -> None:
    content = logs.ALL[name][0]()
    read = 0
    for seed in range(60):
        rng = random.Random(f"{logs.SEED} {name} {seed}")
        path = tmp_path / f"{seed}"
        path.write_bytes(spoilt(rng, content))
        form = None if rng.random() < 0.7 else "requests" if name == "anthropic" else name
        for use in (whole_trace, whole_log):
            try:
                read += use(path, form)
            except ArgumentError as error:
                refused = str(error)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}, {use.__name__}") from error
            else:
                refused = ""
            assert "\n" not in refused
        path.unlink()
    assert read > 50


def test_a_damaged_archive_gives_what_came_before_or_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for place in range(4):
            data = json.dumps(logs.weka_document(f"s{place}", 100 + place)).encode()
            member = tarfile.TarInfo(f"traces/trace_{place}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    content = packed.getvalue()
    read = 0
    for seed in range(200):
        rng = random.Random(f"{logs.SEED} {seed}")
        spoiled = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(spoiled) + 1)
            if rng.random() < 0.4:
                del spoiled[at : at + rng.randint(1, 700)]
            else:
                spoiled[at : at + rng.randint(0, 512)] = rng.choices(b"01234567 /x\0", k=99)
        path = tmp_path / "sessions.tar"
        path.write_bytes(spoiled)
        try:
            read += whole_trace(path, rng.choice([None, "weka"]))
        except ArgumentError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        else:
            said = ""
        assert "\n" not in said, seed
    assert read > 500
