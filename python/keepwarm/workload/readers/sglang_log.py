"""SGLang's request log in JSON: `--log-requests --log-requests-format json`, a line an event.

`request.received` and `request.finished` have the request as `obj` (`rid`, `text`, `input_ids`,
`lora_path`, `extra_key`), the latter also `out.meta_info` with token counts. Levels 0 and 1 leave
the prompt out, level 2 cuts it to its first and last 1,024 tokens or characters, level 3 has all.
Crash dumps of SGLang are pickles: these are never read, since a pickle may run any program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepwarm.layout.requests import Family, LoggedRequest, Usage
from keepwarm.workload.readers import times
from keepwarm.workload.readers.engine_logs import Waiting
from keepwarm.workload.readers.json_lines import records
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.request_log import Fields
from keepwarm.workload.readers.rows import BadRecordError
from keepwarm.workload.readers.skips import Skips

_CUT, _KEPT = "...", 1024
_EVENTS = ("request.received", "request.finished")
_FACTS = ("lora_path", "lora_id", "extra_key", "cache_salt")


def matches(record: dict[str, Any]) -> bool:
    """Whether a record is one of these events."""
    return record.get("event") in _EVENTS and isinstance(record.get("obj"), dict)


def requests(
    log: Input, skips: Skips, on_read: OnRead | None, fields: Fields
) -> Iterator[LoggedRequest]:
    """The requests of a log in order of arrival."""
    waiting = Waiting()
    for where, record in records(log, skips, on_read, among_others=True):
        try:
            if not matches(record):
                raise BadRecordError("it is no event of a request")
            yield from _event(record, where, waiting, fields)
        except BadRecordError as error:
            skips.add(str(error), where)
    yield from waiting.rest()


def _event(
    record: dict[str, Any], where: str, waiting: Waiting, fields: Fields
) -> Iterator[LoggedRequest]:
    obj, is_last = record["obj"], record["event"] == "request.finished"
    rids = obj.get("rid") if "rid" in obj else record.get("rid")
    several = isinstance(rids, list)
    names = [str(rid) for rid in rids] if isinstance(rids, list) else [str(rids)]
    metas = _metas(record.get("out")) if is_last else []
    for place, name in enumerate(names):
        usage = _usage(metas[place] if place < len(metas) else None)
        if name not in waiting:
            time_s = times.parsed(record.get("timestamp"))
            if is_last and place < len(metas):
                time_s = max(time_s - _latency_s(metas[place]), 0.0)
            request = LoggedRequest(
                where,
                Family.OPENAI_COMPLETIONS,
                _body(obj, place if several else None),
                time_s,
                session=_session(obj, fields),
                tenant=_text(obj.get(fields.tenant)) if fields.tenant else None,
            )
            prompt = request.body.get("prompt", ())
            size = len(prompt) if isinstance(prompt, str) else 8 * len(prompt)
            yield from waiting.add(name, request, size)
        if is_last:
            waiting.answer(name, usage)


def _body(obj: Mapping[str, Any], place: int | None) -> dict[str, Any]:
    """The prompt as a completion's, as far as it is known, with what keeps prefixes apart."""
    body: dict[str, Any] = {}
    ids, text = obj.get("input_ids"), obj.get("text")
    if place is not None:
        ids = ids[place] if isinstance(ids, list) and place < len(ids) else None
        text = text[place] if isinstance(text, list) and place < len(text) else None
    if isinstance(ids, list) and ids:
        body["prompt"] = ids[: ids.index(_CUT)] if _CUT in ids else ids
    elif isinstance(text, str) and text:
        is_cut = len(text) == 2 * _KEPT + len(_CUT) and text[_KEPT : _KEPT + len(_CUT)] == _CUT
        body["prompt"] = text[:_KEPT] if is_cut else text
    for name in _FACTS:
        if isinstance(obj.get(name), str):
            body[name] = obj[name]
    return body


def _metas(out: object) -> list[Mapping[str, Any]]:
    found = []
    for each in out if isinstance(out, list) else [out]:
        meta = each.get("meta_info") if isinstance(each, Mapping) else None
        found.append(meta if isinstance(meta, Mapping) else {})
    return found


def _usage(meta: Mapping[str, Any] | None) -> Usage:
    def count(name: str) -> int | None:
        value = meta.get(name) if meta else None
        return value if isinstance(value, int) and 0 <= value < 1 << 32 else None

    return Usage(count("prompt_tokens"), count("completion_tokens"), count("cached_tokens"))


def _latency_s(meta: Mapping[str, Any]) -> float:
    value = meta.get("e2e_latency")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e6 else 0.0


def _session(obj: Mapping[str, Any], fields: Fields) -> str | None:
    if fields.session:
        return _text(obj.get(fields.session))
    named = obj.get("session_params")
    return _text(named.get("id")) if isinstance(named, Mapping) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
