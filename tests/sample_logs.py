"""Small logs of every format that is read, with the same three turns of two conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from keepwarm.testing import conversations
from keepwarm.workload.trace import Batch, TraceSource

SEED = 20_261_201


def talks(count: int = 2, turns: int = 3) -> list[Any]:
    """Requests of some conversations, in order of time, with their text."""
    made = conversations.generated(count, SEED, turns)
    return conversations.interleaved(made, stagger_s=7.0)


def lines(records: list[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


def mooncake() -> bytes:
    return lines(
        [
            {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]},
            {"timestamp": 1500, "input_length": 1200, "output_length": 7, "hash_ids": [1, 2, 3]},
            {"timestamp": 1500, "input_length": 512, "output_length": 1, "hash_ids": [9]},
        ]
    )


def portable() -> bytes:
    header = {
        "format": "keepwarm trace",
        "version": 1,
        "block_tokens": 64,
        "tokens_are": "exact",
        "name": "n",
    }
    row = {"timestamp": 0, "time_s": 0.25, "input_length": 100, "output_length": 5}
    return lines([header, {**row, "hash_ids": [5, 6], "session": 7, "tenant": 0}])


def weka_document(name: str, first: int = 100) -> dict[str, Any]:
    def entry(at_s: float, ids: list[int]) -> dict[str, Any]:
        return {"t": at_s, "type": "n", "in": first + 64 * len(ids), "out": 3, "hash_ids": ids}

    return {
        "id": name,
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            entry(0.0, [1, 2]),
            {"t": 10.0, "type": "subagent", "requests": [entry(1.0, [7]), entry(12.0, [7, 8])]},
            entry(20.0, [1, 2, 3]),
        ],
    }


def weka() -> bytes:
    return json.dumps(weka_document("trace_1")).encode()


def csv() -> bytes:
    return (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        b"2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    )


def openai() -> bytes:
    return "".join(conversations.json_line(each) + "\n" for each in talks()).encode()


def anthropic() -> bytes:
    records = []
    for each in talks():
        system, *rest = each.body["messages"]
        plain = [
            {
                "role": "assistant" if m["role"] == "assistant" else "user",
                "content": m["content"] or "-",
            }
            for m in rest
        ]
        body = {"model": "claude-example", "system": system["content"], "messages": plain}
        usage = {"input_tokens": 10, "cache_read_input_tokens": 900, "output_tokens": 4}
        records.append(
            {
                "ts": each.time_s,
                "session_id": each.session,
                "body": body,
                "response": {"usage": usage},
            }
        )
    return lines(records)


def otlp() -> bytes:
    """A batch of spans a line, as a collector's file exporter writes them."""
    records = []
    for each in talks():
        texts = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "example",
            "gen_ai.conversation.id": each.session,
            "gen_ai.input.messages": json.dumps(each.body["messages"]),
        }
        pairs = [{"key": name, "value": {"stringValue": text}} for name, text in texts.items()]
        pairs.append({"key": "gen_ai.usage.output_tokens", "value": {"intValue": "4"}})
        start_ns = str(int((1_700_000_000 + each.time_s) * 1e9))
        span = {"traceId": "a", "spanId": "b", "startTimeUnixNano": start_ns, "attributes": pairs}
        records.append({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    return lines(records)


def token_ids(each: Any) -> list[int]:
    """Stand-in token ids of a request: a character each."""
    return list(json.dumps(each.body["messages"])[:-1].encode())


def vllm() -> bytes:
    out = []
    for place, each in enumerate(talks()):
        head = f"(APIServer pid=7) DEBUG 11-30 10:00:{place:02} [request_logger.py:44] "
        out.append(
            f"{head}Request chatcmpl-{place} details: prompt: {'x' * 9!r}, "
            f"prompt_token_ids: {token_ids(each)}, prompt_embeds shape: None."
        )
        out.append(
            f"{head.replace('DEBUG', 'INFO')}Received request chatcmpl-{place}: params: "
            "SamplingParams(n=1, max_tokens=7), lora_request: None."
        )
        out.append(
            f"{head}Generated response chatcmpl-{place} details: output_token_ids: [4, 5, 6]"
        )
    return ("\n".join(out) + "\n").encode()


def sglang() -> bytes:
    records: list[Any] = []
    for place, each in enumerate(talks()):
        obj = {"rid": f"r{place}", "text": None, "input_ids": token_ids(each), "stream": False}
        at = f"2026-11-30T10:00:{place:02}.5"
        records.append(
            {"timestamp": at, "event": "request.received", "rid": f"r{place}", "obj": obj}
        )
        meta = {"prompt_tokens": len(token_ids(each)), "completion_tokens": 3, "e2e_latency": 0.4}
        out = {"text": "", "meta_info": meta}
        records.append(
            {
                "timestamp": at,
                "event": "request.finished",
                "rid": f"r{place}",
                "obj": obj,
                "out": out,
            }
        )
    return lines(records)


#: Every format by its name, with how many requests its log has.
ALL: dict[str, tuple[Callable[[], bytes], int]] = {
    "mooncake": (mooncake, 3),
    "keepwarm-jsonl": (portable, 1),
    "weka": (weka, 4),
    "csv": (csv, 2),
    "requests": (openai, 6),
    "anthropic": (anthropic, 6),
    "otel": (otlp, 6),
    "vllm": (vllm, 6),
    "sglang": (sglang, 6),
}


def all_of(source: TraceSource) -> list[Batch]:
    return list(source.batches())


def check(batches: list[Batch], block_tokens: int) -> int:
    """Holds batches to their contract; returns how many requests there are."""
    latest = 0.0
    for batch in batches:
        assert len(batch)
        assert np.all(np.diff(batch.times_s) >= 0)
        assert batch.times_s[0] >= latest
        latest = float(batch.times_s[-1])
        assert np.isfinite(latest)
        blocks = -(-batch.input_tokens.astype(np.int64) // block_tokens)
        assert np.all(np.diff(batch.offsets.astype(np.int64)) <= blocks)
    return sum(len(batch) for batch in batches)
