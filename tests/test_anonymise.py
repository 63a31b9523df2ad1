"""The portable form has neither text nor names, says the same, and appears whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_logs as logs
from keepwarm.cli import main
from keepwarm.errors import ArgumentError
from keepwarm.testing import conversations
from keepwarm.workload.anonymise import ENDINGS, anonymise
from keepwarm.workload.readers import open_trace
from keepwarm.workload.trace import Batch, Progress
from test_readers import equal

pyarrow = pytest.importorskip("pyarrow", reason="the workload extra is not installed")
zstandard = pytest.importorskip("zstandard", reason="the workload extra is not installed")
KEY = b"k" * 32
SECRET_NAME = "Ludmilla-Oberhuber-GmbH"


def plain_bytes(path: Path) -> bytes:
    """A file's content, and what it says when it is unpacked."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        return content + gzip.decompress(content)
    if path.suffix == ".zst":
        return content + bytes(zstandard.ZstdDecompressor().stream_reader(content).read())
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return content + json.dumps(table.to_pydict()).encode() + repr(table.schema).encode()
    return content


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_of(each)


def named_log(folder: Path) -> tuple[Path, list[str]]:
    """A log in which people, customers and models have names, and every text in it."""
    records = []
    for each in logs.talks(3):
        record = json.loads(conversations.json_line(each))
        record["session_id"] = f"session of {SECRET_NAME} {each.session}"
        record["tenant"] = f"{SECRET_NAME} Vertrieb"
        record["request"]["model"] = "internal-model-Xanthippe"
        record["request"]["messages"].append({"role": "user", "content": f"I am {SECRET_NAME}."})
        records.append(record)
    path = folder / f"{SECRET_NAME}.jsonl"
    path.write_bytes(logs.lines(records))
    return path, [*texts_of(records), SECRET_NAME]


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_eight_characters_of_any_text_or_name_are_in_it(ending: str, tmp_path: Path) -> None:
    log, texts = named_log(tmp_path)
    out = tmp_path / f"out{ending}"
    written = anonymise(open_trace(log), out)
    assert written.requests == 9
    assert written.bytes == out.stat().st_size
    content = plain_bytes(out)
    pieces = {text[k : k + 8].encode() for text in texts for k in range(max(len(text) - 7, 0))}
    assert len(pieces) > 5000
    found = [each for each in pieces if each in content]
    assert found == []
    # The same search finds a text that is there, so it would have found these.
    assert b"block_id" in content or b"hash_ids" in content


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ["requests", "mooncake", "csv", "vllm"])
def test_what_is_read_again_is_equal(name: str, ending: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(logs.ALL[name][0]())
    source = open_trace(log, key=KEY)
    out = tmp_path / f"out{ending}"
    anonymise(source, out)
    again = open_trace(out)
    assert equal(logs.all_of(source), logs.all_of(again))
    kept = ("block_tokens", "tokens_are", "notes", "synthetic")
    assert [getattr(again.info, each) for each in kept] == [
        getattr(source.info, each) for each in kept
    ]
    twice = tmp_path / "twice.jsonl"
    anonymise(again, twice)
    assert equal(logs.all_of(source), logs.all_of(open_trace(twice)))


class Breaking:
    """A trace whose reading fails after its first batch."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.info = replace(source.info)

    def batches(self, progress: Progress | None = None) -> Iterator[Batch]:
        yield from self._source.batches(progress)
        raise OSError(5, "the disk went away")

    def skipped(self) -> Any:
        return self._source.skipped()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_appears_whole_or_not_at_all(ending: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(logs.mooncake())
    out = tmp_path / f"out{ending}"
    with pytest.raises(OSError, match="went away"):
        anonymise(Breaking(open_trace(log)), out)
    assert sorted(tmp_path.iterdir()) == [log]
    anonymise(open_trace(log), out)
    first = out.read_bytes()
    with pytest.raises(ArgumentError, match="exists: give --force"):
        anonymise(open_trace(log), out)
    with pytest.raises(OSError, match="went away"):
        anonymise(Breaking(open_trace(log)), out, force=True)
    assert out.read_bytes() == first
    anonymise(open_trace(log), out, force=True)
    assert sorted(tmp_path.iterdir()) == [log, out]


def test_a_target_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(logs.mooncake())
    for out, reason in (
        (tmp_path / "out.csv", "ends in .parquet"),
        (tmp_path / "none" / "out.jsonl", "there is no folder"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            anonymise(open_trace(log), out)


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, texts = named_log(tmp_path)
    with log.open("ab") as file:
        file.write(b"{broken\n")
    out = tmp_path / "out.jsonl"
    (tmp_path / "key").write_bytes(b"s" * 32)
    more = ["--key-file", str(tmp_path / "key"), "--json"]
    assert main(["workload", "anonymise", str(log), str(out), *more]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["requests"] == 9
    assert told["skipped"] == {"it is not whole JSON": 1}
    assert told["tokens_are"] == "approximate"
    assert main(["workload", "anonymise", str(log), str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["workload", "anonymise", str(log), str(out), "--force"]) == 0
    shown = capsys.readouterr()
    assert "9 requests" in shown.out
    assert "1 record: it is not whole JSON" in shown.err
    assert not any(text in shown.out + shown.err for text in texts if len(text) > 40)
    assert main(["workload", "anonymise", str(out)]) == 2


def test_stdin_is_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(logs.mooncake())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    out = tmp_path / "out.jsonl"
    assert main(["workload", "anonymise", "-", str(out)]) == 0
    assert logs.check(logs.all_of(open_trace(out)), 512) == 3


def test_two_logs_with_one_key_share_their_blocks(tmp_path: Path) -> None:
    log, _ = named_log(tmp_path)
    (tmp_path / "key").write_bytes(b"s" * 32)
    ids = []
    for name in ("a.parquet", "b.jsonl.zst"):
        out = tmp_path / name
        key = ["--key-file", str(tmp_path / "key")]
        assert main(["workload", "anonymise", str(log), str(out), *key]) == 0
        ids.append(logs.all_of(open_trace(out))[0].block_ids.tolist())
    assert ids[0] == ids[1]
