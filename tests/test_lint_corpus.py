"""Every planted breaker, from a log's lines to what the command writes: found in its field."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import planting
import pytest
from keepwarm.cli import main
from keepwarm.layout.findings import Breaker
from keepwarm.layout.requests import LoggedRequest
from keepwarm.testing import conversations
from test_layout_sarif import check
from test_layout_tokens import made_tokenizer

DAY_S = 86_400.0


def written(path: Path, requests: list[LoggedRequest]) -> Path:
    path.write_text("".join(conversations.json_line(each) + "\n" for each in requests))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code = main(["lint", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    return json.loads(out)


def found_in(document: Any, planted: planting.Planted) -> bool:
    return any(
        each["breaker"] == planted.breaker.value and planted.pointer.match(each["pointer"])
        for each in document["findings"]
    )


@pytest.mark.parametrize("plant", planting.PLANTS, ids=lambda plant: plant.__name__)
def test_each_is_found_from_a_log(
    plant: planting.Plant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 60 if plant is planting.block_straddle else 12  # a habit of many short prefixes
    planted = plant(conversations.generated(count, 3, turns=5), random.Random(3))
    if planted.template is not None:
        pytest.skip("needs its template: below")
    log = written(tmp_path / "log.jsonl", planted.requests)
    document = run(capsys, log, "--json", "--fail-on", "none")
    assert document["log"]["requests"] == len(planted.requests)
    assert found_in(document, planted), [
        (each["breaker"], each["pointer"]) for each in document["findings"]
    ]
    check(run(capsys, log, "--sarif", "-"), "log", "")


def test_a_models_own_tokens_and_template_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = planting.template_date(conversations.generated(6, 3, turns=3), random.Random(3))
    assert planted.template is not None
    folder = tmp_path / "model"
    folder.mkdir()
    made_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(planted.template)
    late = [
        dataclasses.replace(each, time_s=(each.time_s or 0.0) + DAY_S * (at % 2))
        for at, each in enumerate(planted.requests)
    ]
    log = written(tmp_path / "log.jsonl", late)
    document = run(capsys, log, "--tokenizer", folder, "--json")
    assert document["tokens"]["exact"] is True
    assert any(each["breaker"] == Breaker.TEMPLATE_DATE.value for each in document["findings"])
    without = run(capsys, log, "--json")
    assert without["tokens"]["exact"] is False
    assert not any(each["breaker"] == Breaker.TEMPLATE_DATE.value for each in without["findings"])


def test_a_template_that_refuses_all_is_no_clean_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_tokenizer(tmp_path)
    template = "{{ raise_exception('odd: ' + messages[0].content) }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    requests = conversations.interleaved(conversations.generated(2, 3))
    log = written(tmp_path / "log.jsonl", requests)
    assert main(["lint", str(log), "--tokenizer", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"refused all {len(requests)} requests, as log.jsonl:1" in err
    assert str(requests[0].body["messages"][0]["content"])[:20] not in err


def test_public_conversations_raise_few_alarms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most 2 % of requests, each counted for each of its findings; generated ones: none."""
    given = conversations.public()
    asked = conversations.interleaved(given or conversations.generated(20, 9))
    document = run(capsys, written(tmp_path / "log.jsonl", asked), "--json")
    alarms = sum(each["requests"] for each in document["findings"] if not each["expected"])
    assert alarms <= (0.02 * len(asked) if given else 0)
