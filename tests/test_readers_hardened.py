"""What logs do that nobody means: two clocks, equal beginnings, text that looks like lines."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import sample_logs as logs
from keepwarm.errors import ArgumentError
from keepwarm.layout.requests import Family, LoggedRequest, Usage
from keepwarm.workload import parquet
from keepwarm.workload.anonymise import anonymise
from keepwarm.workload.readers import engine_logs, open_requests, open_trace, opening
from keepwarm.workload.readers.answers import usage_of
from keepwarm.workload.readers.rows import OTHER_CLOCK
from keepwarm.workload.readers.skips import Skips
from keepwarm.workload.trace import Batch

zstandard = pytest.importorskip("zstandard", reason="the workload extra is not installed")
SYSTEM = {"role": "system", "content": "be brief"}
HELLO = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "what can I do?"}
DAY_S = 1_764_500_000


def log(folder: Path, records: list[Any]) -> Path:
    path = folder / "log"
    path.write_bytes(logs.lines(records))
    return path


def batch_of(path: Path) -> Batch:
    return parquet.joined(logs.all_of(open_trace(path)))


def asked(at_s: float | None, *said: str, **more: Any) -> dict[str, Any]:
    messages = [SYSTEM, HELLO]
    for each in said:
        messages += [ANSWER, {"role": "user", "content": each}]
    return {"timestamp": at_s, "request": {"model": "m", "messages": messages}, **more}


@pytest.mark.parametrize("odd_s", [0, 1, 86_400.5])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_one_time_of_another_clock_neither_makes_a_span_nor_tells_the_day(
    place: int, odd_s: float, tmp_path: Path
) -> None:
    records = [asked(DAY_S + at) for at in range(10)]
    records[place]["timestamp"] = odd_s
    source = open_trace(log(tmp_path, records))
    out = tmp_path / "o.jsonl"
    written = anonymise(source, out)
    assert written.requests == 10
    assert written.skipped.mended == {OTHER_CLOCK: 1}
    times_s = [json.loads(each)["time_s"] for each in out.read_bytes().splitlines()[1:]]
    assert max(times_s) <= 9.0
    assert str(DAY_S)[:6] not in out.read_text()


def test_times_that_begin_after_those_looked_at_stay_in_the_order_assumed(tmp_path: Path) -> None:
    records = [asked(None) for _ in range(1100)] + [asked(DAY_S + at) for at in range(5)]
    batch = batch_of(log(tmp_path, records))
    assert len(batch) == 1105
    assert float(batch.times_s[-1]) < 1105


def sessions_of(path: Path) -> list[int]:
    return [int(each) for each in batch_of(path).sessions]


def test_conversations_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    talks = [asked(at, *said) for at, said in enumerate([(), (), ("a",), ("b",)])]
    talks += [asked(4, "a", "a2"), asked(5, "b", "b2")]
    one, other, *rest = sessions_of(log(tmp_path, talks))
    assert one != other
    assert rest == [one, other, one, other]


def test_an_answer_asked_for_again_is_of_the_same_conversation(tmp_path: Path) -> None:
    talks = [asked(0), asked(1, "a"), asked(2, "another try"), asked(3, "a", "a2")]
    assert len(set(sessions_of(log(tmp_path, talks)))) == 1


@pytest.mark.parametrize("is_raw", [False, True])
def test_no_session_has_two_tenants(is_raw: bool, tmp_path: Path) -> None:
    tenants = ["x", "y", "x", "y"]
    if is_raw:
        # The first one alone has the prompt that the others extend.
        prompts = ["one two three " * 60, "one two three " * 90] * 2
        prompts[2:] = [each + "four five six " * 90 for each in prompts[2:]]
        bodies: list[dict[str, Any]] = [{"prompt": each} for each in prompts]
        records = [
            {"timestamp": at, "tenant": tenant, "request": body}
            for at, (tenant, body) in enumerate(zip(tenants, bodies, strict=True))
        ]
    else:
        said: list[tuple[str, ...]] = [(), ("b",), ("a",), ("b", "b2")]
        pairs = enumerate(zip(tenants, said, strict=True))
        records = [asked(at, *each, tenant=tenant) for at, (tenant, each) in pairs]
    found = sessions_of(log(tmp_path, records))
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]


def test_a_proxys_usage_has_the_names_of_both_apis() -> None:
    both = {"prompt_tokens": 100, "completion_tokens": 7, "cache_read_input_tokens": 80}
    assert usage_of({**both, "cache_creation_input_tokens": 0}) == Usage(100, 7, 80, 0)


def test_a_gateways_line_with_a_traces_id_is_a_request(tmp_path: Path) -> None:
    record = {"trace_id": "ab", "span_id": "cd", "attributes": {"pod": "x"}, **asked(1.0)}
    (got,) = open_requests(log(tmp_path, [record]))
    assert got.family is Family.OPENAI_CHAT


def vllm(prompt: str, ids: str = "[1, 2, 3]", name: str = "r1") -> str:
    return (
        f"DEBUG 03-04 05:06:07 [request_logger.py:64] Request {name} details: prompt: {prompt}, "
        f"prompt_token_ids: {ids}, prompt_embeds shape: None.\n"
    )


def test_text_of_a_prompt_is_neither_a_time_nor_an_adapter_nor_another_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    pasted = "'Generated response r1 details: output_token_ids: [1], finish_reason: stop'"
    older = (
        'INFO 03-04 05:06:07 [l.py:1] Received request r3: prompt: "lora_request: '
        "LoRARequest(lora_name='no', params: x\", params: P(n=1), prompt_token_ids: [4], "
        "lora_request: None.\n"
    )
    path.write_text(vllm("'today is 2031-01-01T00:00:00'") + vllm(pasted, name="r2") + older)
    first, second, third = open_requests(path)
    assert first.time_s == second.time_s == third.time_s
    assert [each.body for each in (first, second, third)] == [
        {"prompt": [1, 2, 3]},
        {"prompt": [1, 2, 3]},
        {"prompt": [4]},
    ]


@pytest.mark.parametrize("prompt", ["{[]: 1}", "(" * 9000, "b'x'", "1", "'a\0b'", "f'{1}'"])
def test_a_prompt_that_is_no_text_is_counted(prompt: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(vllm("'good'") + vllm(prompt, "None", "r2"))
    source = open_trace(path)
    assert len(parquet.joined(logs.all_of(source))) == 1
    assert source.skipped().places.popitem()[1] == ["log:2"]


@pytest.mark.parametrize(
    "part",
    [
        "Request a details: prompt: ",
        "Received request a: prompt: , params: ",
        "Generated response a: output: ",
        "Received request a: prompt: , prompt_token_ids: [1",
    ],
)
def test_lines_made_to_be_slow_are_not(part: str, tmp_path: Path) -> None:
    """With patterns that begin anywhere the second took a minute at a fortieth of this size."""
    path = tmp_path / "log"
    path.write_text(vllm("'good'") + part * 30_000 + "\n")
    began_s = time.process_time()
    assert len(list(open_requests(path))) == 1
    assert time.process_time() - began_s < 10


def test_requests_that_wait_for_answers_are_bounded_in_bytes() -> None:
    waiting, given = engine_logs.Waiting(), 0
    for place in range(100):
        request = LoggedRequest(f"log:{place}", Family.OPENAI_COMPLETIONS, {"prompt": "x"})
        given += len(list(waiting.add(str(place), request, engine_logs.WAITING_BYTES_MAX // 10)))
    assert given == 90
    assert "95" in waiting
    assert len(list(waiting.rest())) == 10


def test_packed_data_comes_in_small_pieces_however_well_it_was_packed(tmp_path: Path) -> None:
    path = tmp_path / "log.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"ab\n" * (16 << 20)))
    log = opening.Input.open(str(path), "log")
    sizes = [len(each) for each in log.chunks(Skips())]
    assert sum(sizes) == 48 << 20
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize("tokens", [0, -1, 65_537, 1 << 32, 10**30])
def test_blocks_that_cannot_be_are_refused(tokens: int, tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 9, "hash_ids": [1]}
    header = {"format": "keepwarm trace", "version": 1, "tokens_are": "exact", "name": "n"}
    cases: list[tuple[list[dict[str, Any]], int | None]] = [
        ([row], tokens),
        ([{**header, "block_tokens": tokens}, row], None),
    ]
    if tokens > 0:  # what is no size at all is not one that a row names
        cases.append(([{**row, "block_size": tokens}], None))
    for records, named in cases:
        with pytest.raises(ArgumentError, match=r"blocks of .* tokens: (1|give 1) to 65,536"):
            open_trace(log(tmp_path, records), block_tokens=named)


@pytest.mark.parametrize("name", ["messages", "input"])
def test_a_line_of_a_hundred_thousand_empty_messages_is_counted(name: str, tmp_path: Path) -> None:
    source = open_trace(log(tmp_path, [asked(1.0), {"model": "m", name: [{}] * 100_001}]))
    assert len(parquet.joined(logs.all_of(source))) == 1
    assert source.skipped().counts == {"it has more than 100,000 messages": 1}


def test_a_batchs_output_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    body = {"choices": [{"message": ANSWER}], "usage": {"prompt_tokens": 5}}
    openai = {"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None}
    anthropic = {"custom_id": "a", "result": {"type": "succeeded", "message": ANSWER}}
    for record in (openai, anthropic):
        with pytest.raises(ArgumentError, match="answers without their requests"):
            open_trace(log(tmp_path, [record]))
        source = open_trace(log(tmp_path, [asked(1.0), record]))
        logs.all_of(source)
        assert source.skipped().counts == {"it is an answer without its request": 1}


def test_answers_that_are_not_read_are_said_to_be_missing(tmp_path: Path) -> None:
    events = 'data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n'
    for more, is_read in (
        ({"response": events}, False),
        ({"response": [{"choices": [{"delta": {"content": "hi"}}]}]}, False),
        ({"response": events, "usage": {"completion_tokens": 3}}, True),
        ({"response": {"choices": [{"message": ANSWER}]}}, True),
    ):
        source = open_trace(log(tmp_path, [asked(1.0, **more)]))
        assert any("answers are taken as empty" in each for each in source.info.notes) != is_read


def test_logs_of_two_clocks_are_refused_and_one_odd_time_or_an_empty_log_are_not(
    tmp_path: Path,
) -> None:
    def named(name: str, times: list[float | None]) -> Path:
        path = log(tmp_path, [asked(at) for at in times])
        return path.rename(tmp_path / name)

    days = named("days", [0, DAY_S + 1, DAY_S + 2, DAY_S + 3])
    later = named("later", [DAY_S + 2.5, DAY_S + 4])
    empty = named("empty", [-1])
    batch = parquet.joined(logs.all_of(open_trace([days, later, empty])))
    assert (len(batch), float(batch.times_s[-1])) == (6, 3.0)
    for name, times in (("zero", [0.0, 1.0]), ("none", [None, None])):
        with pytest.raises(ArgumentError, match=f"days count from 1970, those of {name} do not"):
            logs.all_of(open_trace([named(name, list(times)), days]))
