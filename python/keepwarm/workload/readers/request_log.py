"""Requests to OpenAI's or Anthropic's API in JSON, as applications, proxies and batch files log.

A record is a body itself, or has one under `body`, `request`, `params` and the like (as JSON or as
text that holds JSON), beside it perhaps the answer, the usage, a time, a session and a tenant. The
API is told from the URL where there is one, else from the body's shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.layout.requests import Family, LoggedRequest, Usage
from keepwarm.workload.readers import times
from keepwarm.workload.readers.answers import reply_of, usage_of
from keepwarm.workload.readers.json_lines import decode, records
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.rows import BadRecordError
from keepwarm.workload.readers.skips import Skips

BODY = (
    *("body", "request", "request_body", "requestBody", "params", "payload", "kwargs", "input"),
    *("inputs", "raw_request", "data"),
)
ANSWER = ("response", "response_body", "responseBody", "completion", "result", "output", "reply")
TIME = (
    *("timestamp", "time", "ts", "@timestamp", "arrival_time", "request_time", "received_at"),
    *("start_time", "startTime", "created_at", "created", "date", "datetime"),
)
SESSION = ("session_id", "session", "sessionId", "conversation_id", "conversationId", "thread_id")
TENANT = (
    *("tenant", "tenant_id", "organization", "organization_id", "org_id", "team_id", "team"),
    *("user_api_key_team_id", "user_api_key_org_id"),  # as LiteLLM has them
)
#: Claude Code puts its session there, in `metadata.user_id`.
_IN_USER_ID = re.compile(r"session_([0-9a-f]{8}-[0-9a-f-]{27})$")
_SESSION_HEADERS = ("x-session-id", "session-id", "x-conversation-id", "x-session-affinity")
_URL = ("url", "path", "endpoint", "uri", "route")
#: No conversation has so many; a line of empty ones would take a hundred times its size.
_MESSAGES_MAX = 100_000
_ENVELOPE = {*ANSWER, *SESSION, *TENANT, *_URL, *TIME, "usage", "headers", "custom_id", "status"}


@dataclass(frozen=True, slots=True)
class Fields:
    """Where an operator's own log keeps a session and a tenant; empty: the usual names."""

    session: str = ""
    tenant: str = ""


def matches(record: dict[str, Any]) -> bool:
    """Whether a record is a request, or has one in it."""
    return _body_of(record) is not None


def is_answer(record: dict[str, Any]) -> bool:
    """Whether a record tells what came of a request, as a batch's output does, and not which."""
    named = any(isinstance(record.get(name), Mapping) for name in ("response", "result", "error"))
    return named and _body_of(record) is None


def requests(
    log: Input, skips: Skips, on_read: OnRead | None, fields: Fields
) -> Iterator[LoggedRequest]:
    """The requests of a log in its own order; records that are none are counted."""
    for where, record in records(log, skips, on_read):
        try:
            yield request_of(record, where, fields)
        except BadRecordError as error:
            skips.add(str(error), where)


def request_of(record: dict[str, Any], where: str, fields: Fields) -> LoggedRequest:
    """One record as a request. Raises BadRecordError."""
    found = _body_of(record)
    if found is None:
        if is_answer(record):
            raise BadRecordError("it is an answer without its request")
        raise BadRecordError("it has no messages, prompt or input")
    body, holder = found
    if any(
        len(each) > _MESSAGES_MAX
        for each in (body.get("messages"), body.get("input"))
        if isinstance(each, list)
    ):
        raise BadRecordError(f"it has more than {_MESSAGES_MAX:,} messages")
    url = _url(record, holder)
    if "embeddings" in url or "embed" in str(body.get("model", "")) or "rerank" in url:
        raise BadRecordError("it asks for embeddings, which keep nothing")
    if body.get("previous_response_id") or ("input" in body and body.get("conversation")):
        raise BadRecordError(
            "it continues a response that the endpoint stored: its prompt is not here"
        )
    answer = _answer(record)
    if _status(record, answer) >= 400:
        raise BadRecordError("the endpoint refused it")
    if isinstance(answer, Mapping) and isinstance(answer.get("body"), Mapping):
        answer = answer["body"]
    usage = usage_of(answer.get("usage") if isinstance(answer, Mapping) else None)
    return LoggedRequest(
        where=where,
        family=family_of(body, url),
        body=body,
        time_s=_time(record, answer),
        session=_session(fields, record, holder, body),
        tenant=_named(fields.tenant, TENANT, record, holder, body),
        usage=usage if usage != Usage() else usage_of(record.get("usage")),
        reply=reply_of(answer),
    )


def family_of(body: Mapping[str, Any], url: str = "") -> Family:
    """Whose API a body was sent to."""
    for part, family in (
        ("chat/completions", Family.OPENAI_CHAT),
        ("/completions", Family.OPENAI_COMPLETIONS),
        ("/responses", Family.OPENAI_RESPONSES),
        ("/messages", Family.ANTHROPIC),
    ):
        if part in url:
            return family
    if "messages" not in body:
        return Family.OPENAI_COMPLETIONS if "prompt" in body else Family.OPENAI_RESPONSES
    return Family.ANTHROPIC if _is_anthropic(body) else Family.OPENAI_CHAT


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    if any(name in body for name in ("system", "anthropic_version", "stop_sequences", "thinking")):
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(t, dict) and "input_schema" in t for t in tools):
        return True
    for message in body["messages"]:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result"):
                return True
    return "claude" in str(body.get("model", "")) and not _has_system_message(body["messages"])


def _has_system_message(messages: Sequence[Any]) -> bool:
    roles = {each.get("role") for each in messages if isinstance(each, dict)}
    return bool(roles & {"system", "developer", "tool"})


def _is_body(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("messages"), list) and value["messages"]:
        return True
    if isinstance(value.get("prompt"), str | list) and value["prompt"]:
        return True
    is_response = "model" in value or "instructions" in value
    return is_response and isinstance(value.get("input"), str | list) and bool(value["input"])


def _body_of(record: dict[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
    """The body, and the object that holds it."""
    if _is_body(record):
        return {key: value for key, value in record.items() if key not in _ENVELOPE}, record
    for name in BODY:
        inner = _unpacked(record.get(name))
        if isinstance(inner, list) and _has_roles(inner):  # messages alone, as tracers keep them
            model = record.get("model")
            return {"messages": inner} | ({"model": model} if model else {}), record
        if not isinstance(inner, dict):
            continue
        if _is_body(inner):
            return inner, record
        for deeper in BODY:
            body = _unpacked(inner.get(deeper))
            if isinstance(body, dict) and _is_body(body):
                return body, inner
    return None


def _has_roles(listed: list[Any]) -> bool:
    return bool(listed) and all(isinstance(each, dict) and "role" in each for each in listed)


def _unpacked(value: object) -> object:
    """A value, or what the text of one says in JSON."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return decode(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None
    return value


def _answer(record: dict[str, Any]) -> Any:
    for name in ANSWER:
        found = _unpacked(record.get(name))
        if isinstance(found, Mapping):
            return found
    return {"choices": record["choices"]} if "choices" in record else None


def _status(record: dict[str, Any], answer: object) -> int:
    for holder in (record, answer):
        if isinstance(holder, Mapping):
            for name in ("status_code", "status"):
                code = holder.get(name)
                if isinstance(code, int) and not isinstance(code, bool):
                    return code
    return 0


def _url(*holders: Mapping[str, Any]) -> str:
    for holder in holders:
        for name in _URL:
            if isinstance(holder.get(name), str):
                return str(holder[name])
    return ""


def _time(record: dict[str, Any], answer: object) -> float | None:
    for holder in (record, answer):
        if isinstance(holder, Mapping):
            for name in TIME:
                if holder.get(name) is not None:
                    return times.parsed(holder[name])
    return None


def _named(
    field: str, aliases: Sequence[str], record: dict[str, Any], *holders: Mapping[str, Any]
) -> str | None:
    """A session or tenant by the field that was named, else by the usual ones."""
    for holder in (record, *holders):
        if field:
            found = _at(holder, field)
        else:
            inside = holder.get("metadata")
            places = [holder, inside] if isinstance(inside, Mapping) else [holder]
            found = next(
                (p[a] for p in places for a in aliases if p.get(a) not in (None, "")), None
            )
            if isinstance(found, Mapping):  # a conversation by its id
                found = found.get("id")
        if isinstance(found, str | int) and not isinstance(found, bool):
            return str(found)
    return None


def _session(fields: Fields, record: dict[str, Any], *holders: Mapping[str, Any]) -> str | None:
    named = _named(fields.session, SESSION, record, *holders)
    if named is not None or fields.session:
        return named
    user = _at(holders[-1], "metadata.user_id")
    found = _IN_USER_ID.search(user) if isinstance(user, str) else None
    return found[1] if found else _in_headers(record, *holders)


def _at(holder: object, path: str) -> object:
    """The value at `a.b.c`."""
    for name in path.split("."):
        holder = holder.get(name) if isinstance(holder, Mapping) else None
    return holder


def _in_headers(*holders: Mapping[str, Any]) -> str | None:
    for holder in holders:
        headers = holder.get("headers")
        if isinstance(headers, Mapping):
            by_name = {str(name).lower(): value for name, value in headers.items()}
            for name in _SESSION_HEADERS:
                if isinstance(by_name.get(name), str):
                    return str(by_name[name])
    return None
