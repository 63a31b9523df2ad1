"""Logs with text: who asked what when, and hashes that share exactly what the prompts share."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_logs as logs
from keepwarm.engines import folders
from keepwarm.layout.requests import Family, LoggedRequest, Usage
from keepwarm.testing import conversations, traces
from keepwarm.workload import parquet
from keepwarm.workload.hashing import Hasher, key_of_file
from keepwarm.workload.prompts import Prompts, render_settings, token_source
from keepwarm.workload.readers import open_requests, open_trace
from keepwarm.workload.trace import Batch, TokensAre

KEY = b"k" * 32
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


def read(folder: Path, content: bytes, **more: Any) -> tuple[Any, Batch]:
    path = folder / "log"
    path.write_bytes(content)
    source = open_trace(path, **more)
    return source, parquet.joined(logs.all_of(source))


def only(folder: Path, record: dict[str, Any], **more: Any) -> LoggedRequest:
    path = folder / "log"
    path.write_bytes(logs.lines([record]))
    (request,) = open_requests(path, **more)
    return request


def test_a_body_alone_is_a_request(tmp_path: Path) -> None:
    body = {"model": "m", "messages": MESSAGES, "temperature": 0.5}
    got = only(tmp_path, {"created": 1_700_000_000, "session_id": "s", **body})
    assert got.body == body
    assert (got.where, got.family) == ("log:1", Family.OPENAI_CHAT)
    assert (got.time_s, got.session) == (1_700_000_000.0, "s")


@pytest.mark.parametrize(
    ("record", "family"),
    [
        ({"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}, "chat"),
        ({"custom_id": "a", "params": {"system": "x", "messages": MESSAGES[1:]}}, "anthropic"),
        ({"request": {"method": "POST", "body": json.dumps({"prompt": "x"})}}, "completions"),
        ({"request": {"model": "m", "input": "x"}}, "responses"),
        ({"url": "https://h/v1/messages", "request": {"messages": MESSAGES[1:]}}, "anthropic"),
        ({"body": {"messages": MESSAGES[1:], "tools": [{"input_schema": {}}]}}, "anthropic"),
        ({"kwargs": {"model": "claude-x", "messages": MESSAGES}}, "chat"),
    ],
)
def test_bodies_are_found_and_told_apart(
    record: dict[str, Any], family: str, tmp_path: Path
) -> None:
    assert only(tmp_path, record).family.value.endswith(family)


def test_answers_usage_and_names_are_found(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    message = {"role": "assistant", "content": "hi"}
    record = {
        "time": "2026-11-30T10:00:00Z",
        "request": {"messages": MESSAGES, "metadata": {"session_id": "in", "who": {"team": 7}}},
        "response": {"choices": [{"message": message}], "usage": usage},
    }
    got = only(tmp_path, record, tenant_field="metadata.who.team")
    assert (got.session, got.tenant, got.reply) == ("in", "7", message)
    assert got.usage == Usage(9, 4, 3)
    anthropic = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 2}
    record = {"request": {"system": "x", "messages": MESSAGES[1:]}, "usage": anthropic}
    assert only(tmp_path, record).usage == Usage(97, None, 90, 2)


def test_what_tracers_and_agents_write_is_understood(tmp_path: Path) -> None:
    got = only(tmp_path, {"input": MESSAGES, "output": {"role": "assistant", "content": "hi"}})
    assert (got.body, got.reply) == (
        {"messages": MESSAGES},
        {"role": "assistant", "content": "hi"},
    )
    session = "0f8fad5b-d9cb-469f-a165-70867728950e"
    body = {"system": "x", "messages": MESSAGES[1:]}
    user = {"metadata": {"user_id": f"user_ab_account_cd_session_{session}"}}
    assert only(tmp_path, {"request": {**body, **user}}).session == session
    headers = {"X-Session-ID": "h"}
    assert only(tmp_path, {"request": {"headers": headers, "body": body}}).session == "h"


def test_a_count_of_zero_is_none(tmp_path: Path) -> None:
    record = {"messages": MESSAGES, "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    _, batch = read(tmp_path, logs.lines([record]))
    assert batch.input_tokens[0] > 5
    assert len(batch.block_ids) == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"response": {"choices": []}, "custom_id": "a"}, "an answer without its request"),
        ({"url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}, "asks for embeddings"),
        ({"body": {"model": "m", "input": "x", "previous_response_id": "r"}}, "endpoint stored"),
        ({"body": {"model": "m", "input": "x", "conversation": "c"}}, "endpoint stored"),
        ({"body": {"messages": MESSAGES}, "response": {"status_code": 429}}, "refused it"),
        ({"body": {"messages": [3]}}, "neither a prompt nor"),
        ({"note": "started"}, "no messages, prompt or input"),
    ],
)
def test_records_that_keep_nothing_are_counted(
    record: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    source, batch = read(tmp_path, logs.openai() + logs.lines([record]))
    if "neither" in reason:  # what has no form that is known renders to nothing but the frame
        assert len(batch) == 7
        return
    assert len(batch) == 6
    (found,) = source.skipped().counts
    assert reason in found
    assert source.skipped().places[found] == ["log:7"]


def test_spans_are_requests(tmp_path: Path) -> None:
    parts = [
        {"role": "user", "parts": [{"type": "text", "content": "hello"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {"a": 1}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "9"}]},
    ]
    facts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.system_instructions": [{"type": "text", "content": "be brief"}],
        "gen_ai.input.messages": json.dumps(parts),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", "name": "f"}]),
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "exporter.session.id": "s",
    }
    span = {"trace_id": "t", "start_time": "2026-02-25T10:00:00.5", "attributes": facts}
    other = {
        **span,
        "attributes": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "f"},
    }
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"spans": [other, span]}, indent=1))
    (got,) = open_requests(path)
    assert [each["role"] for each in got.body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert got.body["messages"][2]["tool_calls"][0]["function"] == {
        "name": "f",
        "arguments": {"a": 1},
    }
    assert got.body["tools"] == [{"type": "function", "name": "f"}]
    assert (got.session, got.usage) == ("s", Usage(40, None, 16))
    numbered = {
        "gen_ai.request.model": "m",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "be brief",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "hello",
    }
    assert only(tmp_path, {**span, "attributes": numbered}).body["messages"] == MESSAGES


def test_spans_without_prompts_have_lengths(tmp_path: Path) -> None:
    facts = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 40}
    span = {"spanId": "t", "startTimeUnixNano": "1700000000000000000", "attributes": facts}
    source, batch = read(tmp_path, logs.lines([span]))
    assert source.info.tokens_are is TokensAre.LENGTHS_ONLY
    assert batch.input_tokens.tolist() == [40]
    assert "nothing is known to repeat" in source.info.notes[0]


def test_vllm_lines_of_all_forms(tmp_path: Path) -> None:
    source, batch = read(tmp_path, logs.vllm())
    assert source.info.tokens_are is TokensAre.EXACT
    assert batch.input_tokens.tolist() == [len(logs.token_ids(each)) for each in logs.talks()]
    assert batch.output_tokens.tolist() == [3] * 6
    assert batch.times_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    older = (
        b"INFO 12-31 23:59:59 [logger.py:39] Received request cmpl-1: prompt: 'a, prompt_token_ids:"
        b" [9], b', params: SamplingParams(n=1), prompt_token_ids: [1, 2, 3], prompt_embeds shape: "
        b"None, lora_request: LoRARequest(lora_name='x', lora_int_id=1), prompt_adapter_request: "
        b"None.\n\x1b[90mINFO 01-01 00:00:02 [logger.py:39]\x1b[0m Received request c-2: prompt: "
        b"'a\\'b', params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None.\n"
    )
    path = tmp_path / "old"
    path.write_bytes(older)
    one, two = open_requests(path)
    assert (one.body["prompt"], one.body["lora"]) == ([1, 2, 3], "x")
    assert two.body["prompt"] == "a'b"
    assert one.time_s is not None
    assert two.time_s == one.time_s + 3.0  # New Year
    body = json.dumps({"model": "m", "messages": MESSAGES})
    path.write_text(f"DEBUG 11-30 10:00:00 [request_logger.py:60] Request N/A JSON body: {body}\n")
    (got,) = open_requests(path)
    assert (got.family, got.body["messages"]) == (Family.OPENAI_CHAT, MESSAGES)


def test_vllm_logs_in_json_and_answers_that_look_like_lines(tmp_path: Path) -> None:
    tell = "Generated response chatcmpl-0: output: 'x, output_token_ids: [1]', finish_reason: stop"
    ends = "Generated response chatcmpl-1 (streaming complete) details: output_token_ids: None"
    records = [{"asctime": "2026-12-01 10:00:00,500", "levelname": "INFO", "message": "ready"}]
    for place, line in enumerate([*logs.vllm().decode().splitlines(), tell, ends]):
        message = line.partition("] ")[2] or line
        at = f"2026-12-01 10:00:{place:02},500"
        records.append({"asctime": at, "levelname": "DEBUG", "message": message})
    source, batch = read(tmp_path, logs.lines(records))
    assert source.info.format == "vllm"
    assert batch.output_tokens.tolist() == [3] * 6
    assert batch.times_s.tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def test_bodies_in_a_vllm_log_are_for_who_wants_messages(tmp_path: Path) -> None:
    body = json.dumps({"messages": MESSAGES})
    line = f"DEBUG 11-30 10:00:00 [request_logger.py:74] Request ab JSON body: {body}\n"
    path = tmp_path / "log"
    path.write_bytes(logs.vllm() + line.encode())
    (got,) = open_requests(path)
    assert got.body == {"messages": MESSAGES}
    assert len(read(tmp_path, path.read_bytes())[1]) == 6


def test_a_vllm_log_without_prompts_says_how_to_get_them(tmp_path: Path) -> None:
    line = b"INFO 11-30 10:00:00 [x.py:1] Received request a: params: X(), lora_request: None.\n"
    with pytest.raises(Exception, match="VLLM_LOGGING_LEVEL=DEBUG"):
        read(tmp_path, line)


def test_sglang_events_of_all_levels(tmp_path: Path) -> None:
    source, batch = read(tmp_path, logs.sglang())
    assert source.info.tokens_are is TokensAre.EXACT
    assert batch.output_tokens.tolist() == [3] * 6
    meta = {"meta_info": {"prompt_tokens": 5000, "completion_tokens": 2, "e2e_latency": 2.0}}
    at = "2026-11-30T10:00:05"
    bare = {"timestamp": at, "event": "request.finished", "obj": {"rid": "a"}, "out": meta}
    source, batch = read(tmp_path, logs.lines([bare]))
    assert source.info.tokens_are is TokensAre.LENGTHS_ONLY
    assert batch.input_tokens.tolist() == [5000]
    cut = [*range(1024), "...", *range(1024)]
    level2 = {**bare, "obj": {"rid": "a", "input_ids": cut, "lora_path": "x"}}
    source, batch = read(tmp_path, logs.lines([level2]), block_tokens=100)
    assert batch.input_tokens.tolist() == [5000]
    assert len(batch.block_ids) == 10  # how the eleventh goes on is not known
    twice = {**bare, "obj": {"rid": ["a", "b"], "input_ids": [[1, 2], [3]]}, "out": [meta, meta]}
    assert len(read(tmp_path, logs.lines([twice]))[1]) == 2


def test_sglang_events_are_found_among_other_output(tmp_path: Path) -> None:
    noise = b"[2026-11-30 10:00:00] INFO: ready, #queue-req: 0\n" * 500
    first, *rest = logs.sglang().splitlines(keepends=True)
    source, batch = read(tmp_path, noise + first + noise + b"".join(rest))
    assert len(batch) == 6
    assert source.skipped().total() == 0


def test_a_turn_shares_all_whole_blocks_of_the_turn_before(tmp_path: Path) -> None:
    _, batch = read(tmp_path, logs.openai(), block_tokens=16)
    latest: dict[int, list[int]] = {}
    for k, session in enumerate(batch.sessions.tolist()):
        ids, before = batch.blocks(k).tolist(), latest.get(session, [])
        assert ids[: max(len(before) - 1, 0)] == before[:-1]
        latest[session] = ids
    one, other = latest.values()
    shared = next(k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert shared > 20  # tools and system prompt
    assert not set(one[shared:]) & set(other[shared:])


@pytest.mark.parametrize("exact", [False, True])
def test_prompts_share_the_ids_of_the_blocks_they_share_and_no_more(exact: bool) -> None:
    rng = random.Random(logs.SEED)
    hasher = Hasher(KEY)
    prompts = Prompts(hasher, token_source(None), render_settings(None, None), 16)
    for _ in range(200):
        head = rng.choices(range(5), k=rng.randint(0, 90))
        tails = [rng.choices(range(5), k=rng.randint(1, 90)) for _ in range(2)]
        both = [head + tail for tail in tails]
        if exact:
            bodies: list[Any] = [{"prompt": each} for each in both]
        else:
            bodies = [{"prompt": " ".join(f"w{n}" for n in each)} for each in both]
        made = [LoggedRequest("x", Family.OPENAI_COMPLETIONS, body) for body in bodies]
        tokens = [prompts.measure(each)[0].tokens.tolist() for each in made]
        ids = [next(prompts.blocks(each)).block_ids.tolist() for each in made]
        for one, other, count in ((0, 1, len(ids[0])), (1, 0, len(ids[1]))):
            assert count == -(-len(tokens[one]) // 16)
            for k in range(count):
                mine, yours = (tokens[side][: 16 * (k + 1)] for side in (one, other))
                is_shared = k < len(ids[other]) and ids[one][k] == ids[other][k]
                assert is_shared == (mine == yours)


@pytest.mark.parametrize("fact", ["model", "lora", "cache_salt", "lora_path"])
def test_what_keeps_prompts_apart_is_in_every_id(fact: str) -> None:
    prompts = Prompts(Hasher(KEY), token_source(None), render_settings(None, None), 16)

    def ids(value: str) -> set[int]:
        body = {"prompt": list(range(64)), fact: value}
        return set(next(prompts.blocks(LoggedRequest("x", Family.OPENAI_COMPLETIONS, body)))[2])

    assert ids("a") == ids("a")
    assert not ids("a") & ids("b")


def test_a_key_joins_traces_and_without_it_none_can_be(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"s" * 32)
    key = key_of_file(file)
    ids = [read(tmp_path, logs.openai(), key=each)[1].block_ids for each in (key, key, None, None)]
    assert np.array_equal(ids[0], ids[1])
    assert len({*ids[0].tolist()} & {*ids[2].tolist()}) == 0
    assert len({*ids[3].tolist()} & {*ids[2].tolist()}) == 0
    file.write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes: make one of 32 random bytes"):
        key_of_file(file)


def test_sessions_are_inferred_as_they_were(tmp_path: Path) -> None:
    asked = logs.talks(count=5, turns=4)
    bare = []
    for each in asked:
        record = json.loads(conversations.json_line(each))
        del record["session_id"]
        bare.append(record)
    source, batch = read(tmp_path, logs.lines(bare))
    truth: dict[str, set[int]] = {}
    for request, session in zip(asked, batch.sessions.tolist(), strict=True):
        truth.setdefault(str(request.session), set()).add(session)
    assert all(len(found) == 1 for found in truth.values())
    assert len(set().union(*truth.values())) == 5
    assert any("sessions: they are inferred" in note for note in source.info.notes)


def test_sessions_of_raw_prompts_are_inferred_from_their_blocks(tmp_path: Path) -> None:
    _, batch = read(tmp_path, logs.vllm(), block_tokens=16)
    names = [each.session for each in logs.talks()]
    by_name: dict[Any, set[int]] = {name: set() for name in names}
    for name, session in zip(names, batch.sessions.tolist(), strict=True):
        by_name[name].add(session)
    assert [len(each) for each in by_name.values()] == [1, 1]
    assert len(set().union(*by_name.values())) == 2


def test_counts_of_the_endpoint_are_used_and_compared(tmp_path: Path) -> None:
    prompts = Prompts(Hasher(KEY), token_source(None), render_settings(None, None), 64)
    records = []
    for each in logs.talks(4):
        record = json.loads(conversations.json_line(each))
        pieces = len(prompts.measure(each)[0].tokens)
        record["response"]["usage"] = {"prompt_tokens": pieces * 5 // 4, "completion_tokens": 1}
        records.append(record)
    source, batch = read(tmp_path, logs.lines(records))
    assert batch.input_tokens.tolist() == [r["response"]["usage"]["prompt_tokens"] for r in records]
    assert any("51 pieces stand for a block of 64" in note for note in source.info.notes)
    assert any("1.25 tokens for each" in note for note in source.info.notes)
    blocks = -(-batch.input_tokens.astype(np.int64) // 64)
    assert np.all(np.abs(np.diff(batch.offsets.astype(np.int64)) - blocks) <= 1)


def test_an_answer_without_a_count_is_counted_by_its_text(tmp_path: Path) -> None:
    record: dict[str, Any] = {"messages": MESSAGES, "response": {"choices": [{"message": {}}]}}
    _, silent = read(tmp_path, logs.lines([record]))
    answer = {"role": "assistant", "content": "one two three four five"}
    record["response"] = {"choices": [{"message": answer}]}
    _, told = read(tmp_path, logs.lines([record]))
    assert silent.output_tokens[0] <= 3  # the frame of a message
    assert 5 <= told.output_tokens[0] <= 8
    record["response"]["usage"] = {"completion_tokens": 77}
    assert read(tmp_path, logs.lines([record]))[1].output_tokens.tolist() == [77]


def test_a_log_without_times_says_that_some_are_assumed(tmp_path: Path) -> None:
    records = [{"messages": MESSAGES}, {"messages": [*MESSAGES, *MESSAGES]}]
    source, batch = read(tmp_path, logs.lines(records))
    assert batch.times_s.tolist() == [0.0, 1.0]
    assert any("one request a second is assumed" in note for note in source.info.notes)
    later = [{"messages": MESSAGES}, {"ts": 5, "messages": MESSAGES}, {"messages": MESSAGES}]
    source, batch = read(tmp_path, logs.lines(later))
    assert len(batch) == 2
    assert source.skipped().counts == {"it has no time, and none came before it": 1}


def test_the_models_own_tokens_are_exact(tmp_path: Path) -> None:
    folder = next(iter(folders.cache().glob("models/smollm2-*/tokenizer.json")), None)
    if folder is None:
        pytest.skip("no tokenizer is here: make demo-models makes one")
    source, batch = read(tmp_path, logs.openai(), tokenizer=folder)
    assert source.info.tokens_are is TokensAre.EXACT
    prompts = Prompts(Hasher(KEY), token_source(folder), render_settings(folder, None), 64)
    expected = [len(prompts.measure(each)[0].tokens) for each in logs.talks()]
    assert batch.input_tokens.tolist() == expected
    alone = tmp_path / "tokenizer.json"
    alone.write_bytes(folder.read_bytes())
    source, _ = read(tmp_path, logs.openai(), tokenizer=alone)
    assert source.info.tokens_are is TokensAre.APPROXIMATE
    assert source.info.notes[0].startswith("the model's own tokenizer, on messages laid out in")


def test_public_conversations_repeat_as_is_known(tmp_path: Path) -> None:
    """tau-bench's calls hit 94 % in blocks of 64 characters; SWE-agent's repeat as well."""
    found = conversations.public()
    if len(found) < 100:
        pytest.skip(f"no traces: set {traces.TRACES_VARIABLE}")
    asked = conversations.interleaved(found[:60])
    records = [json.loads(conversations.json_line(each)) for each in asked]
    names = [record.pop("session_id") for record in records]
    _, batch = read(tmp_path, logs.lines(records), block_tokens=16)
    pairs = set(zip(names, batch.sessions.tolist(), strict=True))
    assert len(pairs) == len(set(names)) == len(set(batch.sessions.tolist())) == 60
    seen: set[int] = set()
    hits = 0
    for k in range(len(batch)):
        ids = batch.blocks(k).tolist()
        hits += next((n for n, each in enumerate(ids) if each not in seen), len(ids))
        seen.update(ids)
    assert 0.90 < hits / len(batch.block_ids) < 0.97
