"""What a chat template does to prefixes, read from the template itself, without any traffic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from keepwarm.errors import ArgumentError
from keepwarm.layout import breakers
from keepwarm.layout.chat_template import ChatTemplate
from keepwarm.layout.findings import Breaker, Finding, Place, Severity
from keepwarm.layout.rendering import Rendered, RenderSettings, render
from keepwarm.layout.requests import Family, LoggedRequest

_DATE_VARIABLE = re.compile(r"\bdate_string\b")
_FIXED_DATE = re.compile(r"date_string\s*=\s*[\"']")
_TOOL_MARK, _SYSTEM_MARK, _THOUGHT = "kwtoolmark", "kwsystemmark", "kwthoughtmark"


@dataclass(frozen=True, slots=True)
class _Seen:
    breaker: Breaker
    severity: Severity
    explanation: str
    repair: str
    is_expected: bool = False


def lint_template(folder: Path) -> list[Finding]:
    """Findings about a model's own template, by reading it and by rendering small prompts.

    Raises ArgumentError where the folder has no template that can be read.
    """
    template = ChatTemplate.from_folder(folder)
    seen = [*_dates(template), *_tools(template), *_reasoning(template)]
    file = folder / "chat_template.jinja"
    where = str(file if file.is_file() else folder / "tokenizer_config.json")
    return [
        Finding(
            breaker=each.breaker,
            severity=each.severity,
            place=Place(where, "", 0, 0),
            compared_with="",
            requests=0,
            lost_tokens=0,
            lost_money=None,
            explanation=each.explanation,
            repair=each.repair,
            is_fixable=False,
            is_expected=each.is_expected,
        )
        for each in seen
    ]


def _dates(template: ChatTemplate) -> list[_Seen]:
    about = breakers.ABOUT[Breaker.TEMPLATE_DATE]
    if template.asks_for_date() and not _is_pinned(template):
        severity = Severity.WARNING
        return [_Seen(Breaker.TEMPLATE_DATE, severity, about.explanation, about.repair)]
    if template.asks_for_date() or _DATE_VARIABLE.search(template.source):
        has_default = _FIXED_DATE.search(template.source) is not None
        default = "a fixed date" if has_default else "no date"
        text = f"the chat template takes date_string, and writes {default} without it"
        repair = "give every request of a role the same date_string, or none"
        return [_Seen(Breaker.TEMPLATE_DATE, Severity.NOTE, text, repair)]
    return []


def _is_pinned(template: ChatTemplate) -> bool:
    """Whether two days give one prompt: the call is not on the path of a plain request."""
    days = [_render(template, _request(tools=True), datetime(2025, 3, day)) for day in (4, 21)]
    known = [day for day in days if day is not None]
    return len(known) == 2 and known[0].text == known[1].text


def _tools(template: ChatTemplate) -> list[_Seen]:
    rendered = _render(template, _request(tools=True))
    if rendered is None or _TOOL_MARK not in rendered.text:
        return []
    tool, system = rendered.text.find(_TOOL_MARK), rendered.text.find(_SYSTEM_MARK)
    if system < 0 or tool > system:
        return []
    text = "the chat template writes tools before the system prompt: any change of tools loses all"
    about = breakers.ABOUT[Breaker.TOOL_SET]
    return [_Seen(Breaker.TOOL_SET, Severity.NOTE, text, about.repair, is_expected=True)]


def _reasoning(template: ChatTemplate) -> list[_Seen]:
    """Whether reasoning that is in a prompt goes when the user speaks again."""
    before = _render(template, _request(asked_again=False))
    after = _render(template, _request(asked_again=True))
    if before is None or after is None or _THOUGHT in after.text:
        return []
    if _THOUGHT in before.text:
        text = "the chat template drops reasoning once the user speaks again"
    else:
        text = "the chat template never writes reasoning: what the model thought is computed again"
    repair = (
        "expect one miss at each user turn, from the first dropped reasoning on; a template that "
        "keeps reasoning avoids it"
    )
    return [_Seen(Breaker.REASONING_STRIPPED, Severity.NOTE, text, repair, is_expected=True)]


def _render(
    template: ChatTemplate, request: LoggedRequest, day: datetime | None = None
) -> Rendered | None:
    settings = RenderSettings(template, day) if day else RenderSettings(template)
    try:
        return render(request, settings)
    except ArgumentError:  # it refuses this shape: nothing is learnt about it
        return None


def _request(tools: bool = False, asked_again: bool = False) -> LoggedRequest:
    call = {"id": "call00000", "type": "function"}
    call_made = {**call, "function": {"name": _TOOL_MARK, "arguments": "{}"}}
    messages: list[dict[str, object]] = [
        {"role": "system", "content": _SYSTEM_MARK},
        {"role": "user", "content": "go"},
    ]
    if not tools:
        messages += [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": _THOUGHT,
                "tool_calls": [call_made],
            },
            {"role": "tool", "tool_call_id": "call00000", "content": "done"},
        ]
    if asked_again:
        messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    function = {"name": _TOOL_MARK, "description": "", "parameters": {"type": "object"}}
    body: dict[str, object] = {"model": "m", "messages": messages}
    if tools:
        body["tools"] = [{"type": "function", "function": function}]
    return LoggedRequest("template", Family.OPENAI_CHAT, body)
