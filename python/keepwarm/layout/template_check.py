"""A chat template on its own: what in it breaks prefixes, whatever the requests are.

Its source is searched for what changes by itself, and it is run on a few invented conversations to
see what it does with reasoning and with tools. Places are lines of the template.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from keepwarm.errors import ArgumentError
from keepwarm.layout.chat_template import ChatTemplate
from keepwarm.layout.findings import Breaker, Finding, Place, Severity
from keepwarm.layout.rendering import RenderSettings, render
from keepwarm.layout.requests import Family, LoggedRequest

__all__ = ["check_template"]

_DATE_CALL = re.compile(r"\bstrftime_now\s*\(")
_DATE_NAME = re.compile(r"\bdate_string\b")
_THOUGHT, _SYSTEM, _TOOL = "kw-thought-7431", "kw-system-7431", "kw_tool_7431"


def check_template(template: ChatTemplate, file: str, has_lines: bool = True) -> list[Finding]:
    """Findings about a template; those that nobody can mend are marked as expected.

    `has_lines`: the lines of `file` are the template's.
    """
    source = template.source

    def line(at: int) -> str:
        return f"{file}:{source.count(chr(10), 0, at) + 1}" if has_lines else file

    found = []
    date = _DATE_CALL.search(source)
    name = _DATE_NAME.search(source)
    if date is not None:
        found.append(
            _finding(
                Breaker.TEMPLATE_DATE,
                Severity.WARNING,
                line(date.start()),
                "the template writes the present date: every prefix ends at midnight",
                "pin it through chat_template_kwargs"
                + (" (date_string)" if name is not None else "")
                + ", or take it out of the template",
            )
        )
    elif name is not None:
        found.append(
            _finding(
                Breaker.TEMPLATE_DATE,
                Severity.NOTE,
                line(name.start()),
                "the template writes a date that requests may give; without one it is constant",
                "give no date_string, or the same for all requests",
            )
        )
    odd = _decomposed(source)
    if odd is not None:
        found.append(
            _finding(
                Breaker.WHITESPACE,
                Severity.NOTE,
                line(odd),
                "the template's own text has letters that are not in NFC: a copy that an editor "
                "has saved may render other prompts",
                "save it in NFC",
            )
        )
    return found + _behaviour(template, file)


def _decomposed(source: str) -> int | None:
    """Where a letter is not in NFC. (Line ends do not matter: Jinja makes all of them LF.)"""
    if unicodedata.is_normalized("NFC", source):
        return None
    lines = source.split("\n")
    odd = next(n for n, line in enumerate(lines) if not unicodedata.is_normalized("NFC", line))
    return sum(len(line) + 1 for line in lines[:odd])


def _behaviour(template: ChatTemplate, file: str) -> list[Finding]:
    """What a run shows. A template that refuses the conversations is not asked further."""
    found = []
    asked = {"role": "user", "content": "one"}
    said = {"role": "assistant", "content": "two", "reasoning_content": _THOUGHT}
    more = [asked, {"role": "assistant", "content": "three"}, asked]
    first, later = _rendered(template, [asked, said]), _rendered(template, [asked, said, *more])
    if first is not None and later is not None and _THOUGHT in first and _THOUGHT not in later:
        found.append(
            _finding(
                Breaker.REASONING_STRIPPED,
                Severity.NOTE,
                file,
                "the template drops reasoning of earlier turns: the last answer is computed again "
                "when the user speaks next",
                "nothing in requests changes it; expect it, and score it apart",
            )
        )
    tools = [{"type": "function", "function": {"name": _TOOL, "parameters": {"type": "object"}}}]
    both = _rendered(template, [{"role": "system", "content": _SYSTEM}, asked], tools)
    if both is not None and _TOOL in both and both.find(_TOOL) < both.find(_SYSTEM):
        found.append(
            _finding(
                Breaker.TOOL_SET,
                Severity.NOTE,
                file,
                "the template renders tools before the system text: another tool, or another "
                "order, costs the whole prompt",
                "keep the tools of a role constant and sorted",
            )
        )
    return found


def _rendered(
    template: ChatTemplate, messages: list[dict[str, Any]], tools: list[Any] | None = None
) -> str | None:
    body: dict[str, Any] = {"model": "", "messages": messages}
    if tools:
        body["tools"] = tools
    request = LoggedRequest("template", Family.OPENAI_CHAT, body)
    try:
        return render(request, RenderSettings(template=template)).text
    except ArgumentError:
        return None


def _finding(
    breaker: Breaker, severity: Severity, where: str, explanation: str, repair: str
) -> Finding:
    return Finding(
        breaker=breaker,
        severity=severity,
        place=Place(where, "", 0, 0),
        compared_with="",
        requests=0,
        lost_tokens=0,
        lost_money=None,
        explanation=explanation,
        repair=repair,
        is_fixable=False,
        is_expected=severity is Severity.NOTE,
    )
