"""JSON lines of block hashes, as Mooncake's and Qwen's published traces have them.

Mooncake: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512 tokens each.
Qwen: the same with `chat_id`, `parent_chat_id` and `turn`; `timestamp` in s, blocks of 16 tokens.
A row's `block_size` says otherwise. Several files are parts of one trace: equal ids are equal.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from keepwarm.workload.hashing import Hasher
from keepwarm.workload.readers.json_lines import records
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.rows import (
    BadRecordError,
    Row,
    Timed,
    as_ids,
    as_time,
    as_tokens,
    fitting,
)
from keepwarm.workload.readers.skips import Skips

MOONCAKE_BLOCK_TOKENS = 512
QWEN_BLOCK_TOKENS = 16
_CHATS_MAX = 200_000


def matches(record: dict[str, Any]) -> bool:
    """Whether a record has this form."""
    return "hash_ids" in record and "input_length" in record


def block_tokens_of(record: dict[str, Any]) -> int:
    """Tokens a block by what the first record says, or by whose form it has."""
    named = record.get("block_size")
    if isinstance(named, int) and not isinstance(named, bool) and named > 0:
        return named
    return QWEN_BLOCK_TOKENS if _is_qwen(record) else MOONCAKE_BLOCK_TOKENS


def _is_qwen(record: dict[str, Any]) -> bool:
    return "chat_id" in record and "turn" in record


class Rows:
    """Reads one file; remembers a bounded number of chats, so that turns find their session."""

    def __init__(self, block_tokens: int, hasher: Hasher, fields: tuple[str, str]) -> None:
        self._block_tokens = block_tokens
        self._hasher = hasher
        self._session_field, self._tenant_field = fields
        self._roots: OrderedDict[str, str] = OrderedDict()

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """One row a record; what is none is counted."""
        for where, record in records(log, skips, on_read):
            try:
                yield self._timed_row(record)
            except BadRecordError as error:
                skips.add(str(error), where)

    def _timed_row(self, record: dict[str, Any]) -> tuple[float, Row]:
        if "hash_ids" not in record or "timestamp" not in record:
            raise BadRecordError("it has no timestamp or no hash_ids")
        if record.get("block_size", self._block_tokens) != self._block_tokens:
            raise BadRecordError(f"its blocks are not of {self._block_tokens} tokens")
        per_second = 1.0 if _is_qwen(record) else 1000.0
        tokens = as_tokens(record.get("input_length"), "input")
        ids = fitting(as_ids(record["hash_ids"]), tokens, self._block_tokens)
        time_s = as_time(record["timestamp"], per_second)
        return time_s, Row(
            tokens,
            as_tokens(record.get("output_length", 0), "output"),
            self._session(record),
            self._name("tenant", record.get(self._tenant_field or "tenant")),
            ids,
        )

    def _session(self, record: dict[str, Any]) -> int:
        if self._session_field:
            return self._name("session", record.get(self._session_field))
        if not _is_qwen(record):
            return self._name("session", record.get("session_id"))
        chat, parent = str(record["chat_id"]), str(record.get("parent_chat_id"))
        root = self._roots.get(parent, chat)
        self._roots[chat] = root
        if len(self._roots) > _CHATS_MAX:
            self._roots.popitem(last=False)
        return self._hasher.name("session", root)

    def _name(self, kind: str, value: object) -> int:
        if isinstance(value, str | int) and value != "":
            return self._hasher.name(kind, str(value))
        return 0
