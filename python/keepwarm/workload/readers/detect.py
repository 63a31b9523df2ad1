"""Tells a log's format from its content, and refuses what never can be read, with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Any

from keepwarm.errors import ArgumentError
from keepwarm.workload.readers import (
    lengths_csv,
    mooncake,
    otel,
    portable,
    request_log,
    sglang_log,
    vllm_log,
    weka,
)
from keepwarm.workload.readers.json_lines import DOCUMENT_BYTES_MAX, decode, is_document
from keepwarm.workload.readers.opening import Input
from keepwarm.workload.readers.skips import Skips

_RECORDS_LOOKED_AT = 64


class Format(StrEnum):
    """What can be read."""

    PARQUET = "parquet"  # our own hash form
    PORTABLE = "keepwarm-jsonl"  # the same as JSON lines
    MOONCAKE = "mooncake"  # Qwen's published traces as well
    WEKA = "weka"
    SGLANG = "sglang"
    OTEL = "otel"
    REQUESTS = "requests"  # OpenAI's and Anthropic's APIs
    VLLM = "vllm"
    CSV = "csv"


#: What each format is told by, in the words of an error.
LOOKED_FOR = (
    "block hashes (hash_ids with input_length), our own form (Parquet or JSON lines), "
    "coding-agent sessions (requests with hash_id_scope), SGLang's events (event with obj), "
    "OpenTelemetry spans (resourceSpans, or attributes with gen_ai.*), requests (messages, prompt "
    "or input, alone or under body, request, params), vLLM's log lines (Received request …), a CSV "
    "header (such as timestamp,input_tokens,output_tokens)"
)

# In this order: a format that is told by more comes before one that is told by less.
_BY_RECORD: tuple[tuple[Format, Callable[[dict[str, Any]], bool]], ...] = (
    (Format.PORTABLE, portable.matches),
    (Format.WEKA, weka.matches),
    (Format.MOONCAKE, mooncake.matches),
    (Format.SGLANG, sglang_log.matches),
    # A gateway's line may have a trace's id and attributes too, but no span has a request's body.
    (Format.REQUESTS, request_log.matches),
    (Format.OTEL, otel.matches),
)
# For a pipe whose first record is longer than what may be looked at.
_SGLANG_TEXT = re.compile(rb"(Receive|Finish): obj=\w+\(rid=")
_BY_BYTES = (
    (Format.PORTABLE, re.compile(rb'^\s*\{"format": ?"keepwarm trace"')),
    (Format.WEKA, re.compile(rb'"hash_id_scope"')),
    (Format.MOONCAKE, re.compile(rb'"hash_ids"')),
    (Format.SGLANG, re.compile(rb'"event": ?"request\.')),
    (Format.OTEL, re.compile(rb'"resourceSpans"|"gen_ai\.|"spans": ?\[')),
    (Format.REQUESTS, re.compile(rb'"(messages|prompt|input)": ?["\[]')),
)
_NEVER: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"\x80[\x02-\x05]"),
        "is a pickle, which may run any program when it is read, and is never read here: for "
        "SGLang use --log-requests --log-requests-format json, not a crash dump",
    ),
    (re.compile(rb"PK\x03\x04"), "is a zip archive: unpack it, and give what is in it"),
    (re.compile(rb"BZh|\xfd7zXZ|\x04\x22M\x18"), "is packed by bzip2, xz or lz4: use gzip or zstd"),
    (
        re.compile(rb"\xff\xfe|\xfe\xff"),
        "is UTF-16: convert it, with iconv -f UTF-16 -t UTF-8",
    ),
)


def told(log: Input, named: str | None) -> tuple[Format, dict[str, Any]]:
    """The format, and the first record that has it. Raises ArgumentError where none is known."""
    head = log.head()
    _refuse(log, head)
    known = {each.value for each in Format}
    if named is not None and named not in known:
        raise ArgumentError(f"no format is called {named!r}: choose of {', '.join(sorted(known))}")
    if head.startswith(b"PAR1"):
        return Format.PARQUET, {}
    if weka.is_archive(head):
        return Format.WEKA, {}
    form, record = _by_content(log, head, Format(named) if named else None)
    if (
        form is None
        and is_document(head)
        and not log.is_pipe
        and next(_records(log, head), None) is None
    ):
        raise ArgumentError(
            f"{log.name} begins like one JSON document and is none: jq -c . writes a record a line"
        )
    if form is None and _SGLANG_TEXT.search(head):
        raise ArgumentError(
            f"{log.name} is SGLang's request log as text, which is cut and not meant to be read "
            "again: use --log-requests-format json"
        )
    if form is None and request_log.is_answer(next(_records(log, head), {})):
        raise ArgumentError(
            f"{log.name} has answers without their requests, as a batch's output file: give the "
            "file that was sent"
        )
    if form is None:
        raise ArgumentError(
            f"{log.name} has no known format; looked for: {LOOKED_FOR}; where it only begins in "
            "another way, --format names it"
        )
    return form, record


def _refuse(log: Input, head: bytes) -> None:
    if not head.strip():
        raise ArgumentError(f"{log.name} is empty" if not head else f"{log.name} is blank")
    for pattern, reason in _NEVER:
        if pattern.match(head):
            raise ArgumentError(f"{log.name} {reason}")
    start = head[:4096]
    if (
        not weka.is_archive(head)
        and not head.startswith(b"PAR1")
        and start.count(0) * 10 > len(start)
    ):
        raise ArgumentError(
            f"{log.name} is no text in UTF-8: it has many NUL bytes (UTF-16 is converted with "
            "iconv -f UTF-16 -t UTF-8)"
        )


def _by_content(
    log: Input, head: bytes, named: Format | None
) -> tuple[Format | None, dict[str, Any]]:
    is_json = False
    for record in _records(log, head):
        is_json = True
        for form, matches in _BY_RECORD:
            if (named is None or form is named) and matches(record):
                return form, record
        if named in (None, Format.VLLM) and vllm_log.wrapped(record) is not None:
            return Format.VLLM, {}
    if named is not None:
        return named, {}
    if not is_json:
        for line in head.split(b"\n")[: 16 * _RECORDS_LOOKED_AT]:
            if vllm_log.matches(line):
                return Format.VLLM, {}
        if lengths_csv.columns_of(head.lstrip().split(b"\n", 1)[0]):
            return Format.CSV, {}
        for form, pattern in _BY_BYTES:
            if head.lstrip()[:1] in (b"{", b"[") and pattern.search(head):
                return form, {}
    return None, {}


def _records(log: Input, head: bytes) -> Iterator[dict[str, Any]]:
    """The first objects of a log in JSON; none where it is something else."""
    if is_document(head):
        try:
            source = log.first_part() if log.is_pipe else log
            found = decode(source.whole(Skips(), DOCUMENT_BYTES_MAX))
        except ValueError:  # ArgumentError among them: too large to be looked at
            return
        listed = found if isinstance(found, list) else [found]
        yield from (each for each in listed[:_RECORDS_LOOKED_AT] if isinstance(each, dict))
        return
    # A program's other output may stand before its first record, within the head.
    looked_at = log.first_part() if log.is_pipe else log
    lines = islice(looked_at.lines(Skips()), head.count(b"\n") + 1)
    begun = (line for _, line in lines if line.lstrip()[:1] == b"{")
    for line in islice(begun, _RECORDS_LOOKED_AT):
        try:
            record = decode(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
