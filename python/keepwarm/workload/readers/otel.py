"""OpenTelemetry's GenAI spans: exported documents, a span a line, or OTLP in JSON, a batch a line.

Prompts are in `gen_ai.input.messages` (with `gen_ai.system_instructions` and
`gen_ai.tool.definitions`), in `gen_ai.prompt.N.*` or in `llm.input_messages.N.message.*`, on the
span or on an event of it; many exporters leave them out, and then only lengths are known. The
conversation is `gen_ai.conversation.id`, else a `session.id` of any prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from keepwarm.layout.requests import Family, LoggedRequest, Usage
from keepwarm.workload.readers import times
from keepwarm.workload.readers.json_lines import decode, records
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.otel_messages import as_chat, numbered, text_of
from keepwarm.workload.readers.request_log import Fields
from keepwarm.workload.readers.rows import TOKENS_MAX, BadRecordError
from keepwarm.workload.readers.skips import Skips

_CALLS = {"chat", "text_completion", "generate_content", "completion", "LLM", ""}
_TIMES = ("start_time", "startTimeUnixNano", "start_time_unix_nano", "startTime", "timestamp")
_SESSION = re.compile(r"(^|\.)(session\.id|session_id|thread\.id|thread_id)$")
_TENANT = re.compile(r"(^|\.)(tenant\.id|tenant_id|tenant|organization\.id)$")
_NESTING_MAX = 16


def matches(record: dict[str, Any]) -> bool:
    """Whether a record is a span, or has spans in it."""
    if "resourceSpans" in record or "resource_spans" in record:
        return True
    if isinstance(record.get("spans"), list):
        return True
    is_span = any(
        name in record for name in ("trace_id", "traceId", "context", "span_id", "spanId")
    )
    return is_span and "attributes" in record


def requests(
    log: Input, skips: Skips, on_read: OnRead | None, fields: Fields
) -> Iterator[LoggedRequest]:
    """The model calls among a log's spans; other spans are passed over."""
    for where, record in records(log, skips, on_read):
        if not matches(record):
            skips.add("it is no span", where)
            continue
        for place, (span, resource) in enumerate(_spans(record)):
            at = where if span is record else f"{where}#{place}"
            try:
                request = _request(span, resource, at, fields)
            except BadRecordError as error:
                skips.add(str(error), at)
                continue
            if request is not None:
                yield request


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    groups = record.get("resourceSpans", record.get("resource_spans"))
    if isinstance(groups, list):
        for group in groups:
            if not isinstance(group, Mapping):
                continue
            resource = _attributes(_get(group.get("resource"), "attributes"))
            for scope in _listed(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
                for span in _listed(scope, "spans"):
                    yield span, resource
    elif isinstance(record.get("spans"), list):
        for span in record["spans"]:
            yield span, _attributes(_get(span, "resource_attributes"))
    else:
        yield record, _attributes(_get(record.get("resource"), "attributes"))


def _get(holder: object, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else None


def _listed(holder: object, *names: str) -> list[Any]:
    for name in names:
        found = _get(holder, name)
        if isinstance(found, list):
            return found
    return []


def _attributes(given: object) -> dict[str, Any]:
    """Attributes as a dictionary, whether they come as one or as OTLP's pairs."""
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    found: dict[str, Any] = {}
    for pair in given if isinstance(given, list) else ():
        if isinstance(pair, Mapping) and isinstance(pair.get("key"), str):
            found[pair["key"]] = _value(pair.get("value"))
    return found


def _value(given: Any, depth: int = 0) -> Any:
    """An OTLP value as a plain one."""
    if not isinstance(given, Mapping) or depth > _NESTING_MAX:
        return given
    for name in ("stringValue", "boolValue", "doubleValue"):
        if name in given:
            return given[name]
    if "intValue" in given:
        try:
            return int(given["intValue"])
        except (TypeError, ValueError):
            return None
    if "arrayValue" in given:
        return [_value(each, depth + 1) for each in _listed(given["arrayValue"], "values")]
    if "kvlistValue" in given:
        pairs = _listed(given["kvlistValue"], "values")
        return {
            str(_get(pair, "key")): _value(_get(pair, "value"), depth + 1)
            for pair in pairs
            if isinstance(pair, Mapping)
        }
    return given


def _request(
    span: object, resource: Mapping[str, Any], where: str, fields: Fields
) -> LoggedRequest | None:
    """A span as a request; None if it is no call of a model."""
    if not isinstance(span, Mapping):
        raise BadRecordError("it is no JSON object")
    facts = _attributes(span.get("attributes"))
    for event in _listed(span, "events"):
        for name, value in _attributes(_get(event, "attributes")).items():
            facts.setdefault(name, value)
    kind = facts.get("gen_ai.operation.name", facts.get("openinference.span.kind", ""))
    has_model = any(name.startswith(("gen_ai.", "llm.")) for name in facts)
    if not isinstance(kind, str) or kind not in _CALLS or not has_model:
        return None
    body: dict[str, Any] = {}
    model = facts.get("gen_ai.request.model") or facts.get("llm.model_name")
    if isinstance(model, str):
        body["model"] = model
    messages = _messages(facts)
    if messages:
        body["messages"] = messages
        tools = _json(facts.get("gen_ai.tool.definitions"))
        if isinstance(tools, list) and tools:
            body["tools"] = tools
    usage = _usage(facts)
    if not messages and usage.input_tokens is None:
        raise BadRecordError("its span has neither messages nor a count of tokens")
    scope = {**resource, **facts}
    return LoggedRequest(
        where=where,
        family=Family.OPENAI_CHAT,
        body=body,
        time_s=_time(span),
        session=_session(scope, fields),
        tenant=_tenant(scope, fields),
        usage=usage,
        reply=_reply(facts),
    )


def _messages(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    for name in ("gen_ai.input.messages", "gen_ai.prompt", "llm.prompts"):
        found = as_chat(_json(facts.get(name)))
        if found:
            break
    else:
        found = numbered(facts, "gen_ai.prompt.", "") or numbered(
            facts, "llm.input_messages.", "message."
        )
    system = text_of(_json(facts.get("gen_ai.system_instructions")))
    return [{"role": "system", "content": system}, *found] if system else found


def _reply(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    found = as_chat(_json(facts.get("gen_ai.output.messages")))
    found = found or numbered(facts, "gen_ai.completion.", "")
    found = found or numbered(facts, "llm.output_messages.", "message.")
    if found:
        return {**found[0], "role": "assistant"}
    text = facts.get("gen_ai.output.text")
    return {"role": "assistant", "content": text} if isinstance(text, str) else None


def _json(value: Any) -> Any:
    """A value, or what a text of JSON says; a text that is none is a prompt by itself."""
    if isinstance(value, str):
        try:
            return decode(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return value
    return value


def _usage(facts: Mapping[str, Any]) -> Usage:
    def count(*names: str) -> int | None:
        for name in names:
            value = facts.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX:
                return value
        return None

    return Usage(
        count("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        count(
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.completion_tokens",
            "llm.token_count.completion",
        ),
        count("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
        count("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens"),
    )


def _time(span: Mapping[str, Any]) -> float | None:
    for name in _TIMES:
        value = span.get(name)
        if isinstance(value, list) and len(value) == 2:  # seconds and nanoseconds
            return times.parsed(value[0])
        if value is not None:
            return times.parsed(value)
    return None


def _session(scope: Mapping[str, Any], fields: Fields) -> str | None:
    if fields.session:
        return _word(scope.get(fields.session))
    named = _word(scope.get("gen_ai.conversation.id"))
    return named or next((_word(scope[n]) for n in scope if _SESSION.search(n)), None)


def _tenant(scope: Mapping[str, Any], fields: Fields) -> str | None:
    if fields.tenant:
        return _word(scope.get(fields.tenant))
    return next((_word(scope[n]) for n in scope if _TENANT.search(n)), None)


def _word(value: object) -> str | None:
    is_word = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value) or None if is_word else None
