"""A log written again with its requests repaired: nothing else changes, nobody else reads it."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from keepwarm.errors import ArgumentError
from keepwarm.layout.fix import Rules, fix
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.testing import conversations
from keepwarm.workload.readers.opening import Input
from keepwarm.workload.readers.request_log import Fields, request_of
from keepwarm.workload.repaired import Repaired, repair_log


def rules_of(_: LoggedRequest) -> Rules:
    return Rules()


def opened(*paths: Path) -> list[Input]:
    return [Input.open(str(path), path.name) for path in paths]


def repaired(out: Path, *paths: Path) -> Repaired:
    return repair_log(opened(*paths), out, rules_of)


def broken(seed: int) -> list[dict[str, Any]]:
    """Records of conversations whose tools turn round with every other request."""
    made = []
    requests = conversations.interleaved(conversations.generated(4, seed, turns=3))
    for number, request in enumerate(requests):
        record = json.loads(conversations.json_line(request))
        if number % 2:
            record["request"]["tools"].reverse()
        made.append(record)
    return made


def written(path: Path, records: Iterable[Any]) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests_are_repaired_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    records = broken(5)
    log, out = written(tmp_path / "log.jsonl", records), tmp_path / "out.jsonl"
    done = repaired(out, log)
    after = read(out)
    assert done.records == len(records) == len(after)
    assert done.changed == len(records) // 2
    assert done.changes == {"tool-order": done.changed}
    assert not done.left
    for record, new in zip(records, after, strict=True):
        assert {**new, "request": None} == {**record, "request": None}
        assert new["request"] == fix(record["request"], Family.OPENAI_CHAT).body
    tools = {json.dumps(each["request"]["tools"]) for each in after}
    assert len(tools) == 1
    again = tmp_path / "again.jsonl"
    assert not repaired(again, out).changes
    assert again.read_bytes() == out.read_bytes()


def test_only_its_owner_can_read_it_and_nothing_else_stays(tmp_path: Path) -> None:
    log, out = written(tmp_path / "log.jsonl", broken(1)), tmp_path / "out.jsonl"
    out.write_text("old")
    out.chmod(0o644)
    before = os.umask(0)
    try:
        repaired(out, log)
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"log.jsonl", "out.jsonl"}


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    log, out = written(tmp_path / "log.jsonl", broken(1)), tmp_path / "out.jsonl"
    out.write_text("old")

    def failing(_: LoggedRequest) -> Rules:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        repair_log(opened(log), out, failing)
    assert out.read_text() == "old"
    assert {each.name for each in tmp_path.iterdir()} == {"log.jsonl", "out.jsonl"}


@pytest.mark.parametrize("form", ["plain", "body", "text", "deep", "deep text"])
def test_a_request_is_found_wherever_a_log_has_it(tmp_path: Path, form: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "top_p": 0.50}
    body["tools"] = [{"type": "function", "function": {"name": name}} for name in "ba"]
    text = json.dumps(body)
    forms: dict[str, dict[str, Any]] = {
        "plain": body,
        "body": {"id": 1, "body": body},
        "text": {"id": 1, "request_body": text},
        "deep": {"request": {"url": "/v1/chat/completions", "body": body}},
        "deep text": {"request": json.dumps({"path": "/v1/chat/completions", "body": text})},
    }
    log, out = written(tmp_path / "log.jsonl", [forms[form]]), tmp_path / "out.jsonl"
    assert repaired(out, log).changes == {"tool-order": 1}
    (after,) = read(out)
    request = request_of(after, "out.jsonl:1", Fields())
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["a", "b"]
    assert b"0.5" in out.read_bytes()


def test_what_is_no_request_is_copied_or_counted(tmp_path: Path) -> None:
    line = '{"some": "thing",  "n": 1.0}'
    records = [*broken(2)[:2], line, "{broken", "[1]", {"response": {"body": {}}}]
    log, out = written(tmp_path / "log.jsonl", records), tmp_path / "out.jsonl"
    done = repaired(out, log)
    assert done.records == len(records) - 1
    assert line in out.read_text().splitlines()
    assert done.left == {
        "it is not whole JSON; left out": 1,
        "it is no request; copied as it is": 3,
    }


def test_compressed_logs_are_read_and_several_become_one(tmp_path: Path) -> None:
    records = broken(3)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    plain = written(tmp_path / "more.jsonl", records[:3])
    out = tmp_path / "out.jsonl"
    assert repaired(out, packed, plain).records == len(records) + 3
    assert len(read(out)) == len(records) + 3


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    records = broken(4)
    log = written(tmp_path / "log.jsonl", records)
    document = tmp_path / "log.json"
    document.write_text(json.dumps(records))
    out = tmp_path / "out.jsonl"
    with pytest.raises(ArgumentError, match="one record a line"):
        repaired(out, document)
    link = tmp_path / "link.jsonl"
    link.symlink_to(log)
    for same in (log, link):
        with pytest.raises(ArgumentError, match="would write over the log"):
            repaired(same, log)
    with pytest.raises(ArgumentError, match="no regular file"):
        repaired(tmp_path, log)
    with pytest.raises(ArgumentError, match=r"none/out\.jsonl: cannot be written"):
        repaired(tmp_path / "none" / "out.jsonl", log)
    assert not out.exists()
