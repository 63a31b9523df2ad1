"""The safe repairs of a request, as a function that lint and the gateway call.

`fix` takes a decoded body, `fix_bytes` one as it came over the wire and edits it in place. Both are
idempotent, keep unknown fields, and never touch what users, assistants and tools have said.

What may change, and where:

    tools                order of the list, order of keys in schemas
    system text          line ends, Unicode form (NFC), white space at the ends of lines
    markers              `cache_control`, `prompt_cache_breakpoint`: gone, for engines only
    pseudo-headers       a known per-request line in front of the system text: gone, except for the
                         provider that it is meant for
    results of tools     white space and key order of embedded JSON, only when asked for
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from keepwarm.errors import ArgumentError
from keepwarm.layout import canonical
from keepwarm.layout.findings import Breaker
from keepwarm.layout.requests import Family
from keepwarm.layout.splice import REMOVED, Edit, apply, pointer, splice

__all__ = [
    "MARKERS",
    "PSEUDO_HEADERS",
    "Change",
    "Fixed",
    "Rules",
    "Target",
    "fix",
    "fix_bytes",
    "marker_paths",
]

MARKERS = ("cache_control", "prompt_cache_breakpoint")
# Claude Code puts billing facts, a new hash with each conversation, before its system prompt.
PSEUDO_HEADERS = ("x-anthropic-billing-header:",)
# All such lines in front at once: one by one would copy the rest of the text for each.
_HEADERS = re.compile(rf"(?i:(?:{'|'.join(map(re.escape, PSEUDO_HEADERS))})[^\n]*+\n?)++")
_TOOL_FIELDS = ("tools", "functions")
_SYSTEM_ROLES = ("system", "developer")
_Body = TypeVar("_Body")
_Path = tuple[str | int, ...]


class Target(StrEnum):
    """Who gets the request: what is a breakpoint to one is noise to another."""

    ENGINE = "engine"  # vLLM, SGLang and the like
    ANTHROPIC = "anthropic"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class Rules:
    """What to repair. The defaults are safe; the last three change more than most need.

    With `tool_order`, `tool_keys` or `system_text` off, what a client sends in two ways stays two
    prompts. `property_names` also sorts the properties of a tool's parameters: models answer in
    that order, so it may change answers. `tool_results` rewrites JSON that tools returned: white
    space that a model might have been meant to see is lost. `tool_spaces` rewrites white space
    between the JSON tokens of `tools` (bytes only): no model sees it, only those who hash bodies.
    """

    target: Target = Target.ENGINE
    tool_order: bool = True
    tool_keys: bool = True
    system_text: bool = True
    property_names: bool = False
    tool_results: bool = False
    tool_spaces: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One repair: of which breaker, and where (a JSON pointer into the body before it)."""

    breaker: Breaker
    pointer: str


@dataclass(frozen=True, slots=True)
class Fixed(Generic[_Body]):
    """The body, which is the given object if there was nothing to do, and what was done to it."""

    body: _Body
    changes: tuple[Change, ...] = ()

    def counts(self) -> dict[str, int]:
        """Changes by breaker."""
        return dict(Counter(change.breaker.value for change in self.changes))


class _Plan:
    """Edits of one body, none inside another, and the changes that they make."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.changes: list[Change] = []

    def replace(self, path: _Path, value: Any, breaker: Breaker) -> None:
        self.edits.append((path, value))
        self.note(path, breaker)

    def note(self, path: _Path, breaker: Breaker) -> None:
        self.changes.append(Change(breaker, pointer(path)))


def fix(
    body: Mapping[str, Any], family: Family, rules: Rules | None = None
) -> Fixed[Mapping[str, Any]]:
    """Repairs a decoded body.

    Raises ArgumentError if the body is no object, or nests its tools too deeply; forward it then.
    """
    if not isinstance(body, Mapping):
        raise ArgumentError(
            f"a request's body is a JSON object, not {type(body).__name__}: forward it as it is"
        )
    plan = _planned(body, family, rules or Rules())
    return Fixed(apply(body, plan.edits), tuple(plan.changes)) if plan.edits else Fixed(body)


def fix_bytes(
    body: bytes, family: Family, rules: Rules | None = None, at: Sequence[str] = ()
) -> Fixed[bytes]:
    """Repairs a body in UTF-8 in place: what no rule names keeps every byte, numbers their digits.

    `at` leads to it where it is part of a larger document, as in a log: keys from the root, any
    of which may hold its value as text. An object in which a key stands twice is left alone, with
    all that is below it. Raises ArgumentError if there is no JSON object in UTF-8, or if it is
    nested too deeply; forward it then.
    """
    rules = rules or Rules()
    text, value = _read(body)
    for level in range(len(at) + 1):
        if isinstance(value, str) and not isinstance(value, canonical.Number):
            return _fixed_text(body, text, value, family, rules, at, level)
        if level < len(at):
            value = value.get(at[level]) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        return Fixed(body)
    plan = _planned(value, family, rules)
    if rules.tool_spaces:
        _respace(text, value, plan, tuple(at))
    if not plan.edits:
        return Fixed(body)
    written = [
        ((*at, *path), new if new is REMOVED else canonical.write(new)) for path, new in plan.edits
    ]
    return Fixed(splice(text, written).encode("utf-8"), tuple(plan.changes))


def _fixed_text(
    body: bytes,
    text: str,
    value: str,
    family: Family,
    rules: Rules,
    at: Sequence[str],
    level: int,
) -> Fixed[bytes]:
    """Repairs what the text at `at[:level]` holds."""
    inner = fix_bytes(value.encode("utf-8", "surrogatepass"), family, rules, at[level:])
    if not inner.changes:
        return Fixed(body)
    edit: Edit = (tuple(at[:level]), canonical.write(inner.body.decode("utf-8")))
    return Fixed(splice(text, [edit]).encode("utf-8"), inner.changes)


def _read(body: bytes) -> tuple[str, Any]:
    what = "a request's body"
    try:
        text = body.decode("utf-8")
        value = canonical.parse(text)
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{what} is no UTF-8 from byte {error.start}: forward it as it is"
        ) from None
    except RecursionError:
        raise ArgumentError(
            f"{what} is nested too deeply to be read: forward it as it is"
        ) from None
    except ValueError as error:
        place = getattr(error, "pos", None)
        at = "" if place is None else f" at character {place}"
        raise ArgumentError(f"{what} is no JSON{at}: forward it as it is") from None
    if not isinstance(value, dict | canonical.Repeated):
        raise ArgumentError(f"{what} is JSON, but no object: forward it as it is")
    return text, value


def _respace(text: str, value: Mapping[str, Any], plan: _Plan, at: _Path) -> None:
    """Writes tools anew that no other rule has touched, if that changes a byte."""
    touched = {path[0] for path, _ in plan.edits}
    for field in _TOOL_FIELDS:
        if field in value and field not in touched:
            edit: Edit = ((*at, field), canonical.write(value[field]))
            if splice(text, [edit]) != text:
                plan.replace((field,), value[field], Breaker.KEY_ORDER)


def _planned(body: Mapping[str, Any], family: Family, rules: Rules) -> _Plan:
    plan = _Plan()
    for field in _TOOL_FIELDS:
        if isinstance(body.get(field), list):
            _plan_tools(plan, field, body[field], rules)
    for texts in _system_texts(body, family):
        _plan_system(plan, texts, rules)
    if rules.target is Target.ENGINE:
        removed = {path for path, value in plan.edits if value is REMOVED}
        for path in marker_paths(body, family):
            if path[0] not in _TOOL_FIELDS and path[:-1] not in removed:
                plan.replace(path, REMOVED, Breaker.CACHE_MARKERS)
    if rules.tool_results:
        for path, text in _results(body, family):
            made = canonical.canonical_json(text)
            if made is not None and made != text:
                plan.replace(path, made, Breaker.KEY_ORDER)
    return plan


def _plan_tools(plan: _Plan, field: str, tools: list[Any], rules: Rules) -> None:
    made = list(tools)
    if rules.target is Target.ENGINE:
        made = [_unmarked(plan, (field, at), tool) for at, tool in enumerate(made)]
    if rules.tool_keys:
        for at, tool in enumerate(made):
            made[at] = canonical.order_keys(tool, rules.property_names)
            if made[at] is not tool:
                plan.note((field, at), Breaker.KEY_ORDER)
    order = canonical.order_tools(made) if rules.tool_order else None
    if order is not None and order != list(range(len(made))):
        made = _permuted(made, order)
        if rules.tool_keys:  # a marker that moved stands behind the other keys
            made = [canonical.order_keys(tool, rules.property_names) for tool in made]
        plan.note((field,), Breaker.TOOL_ORDER)
    if any(new is not old for new, old in zip(made, tools, strict=True)):
        plan.edits.append(((field,), made))


def _unmarked(plan: _Plan, path: _Path, tool: Any) -> Any:
    """A tool without markers, its own and its function's; the same object if it has none."""
    if not isinstance(tool, Mapping):
        return tool
    inner = tool.get("function")
    if isinstance(inner, Mapping):
        bare = _bare(plan, (*path, "function"), inner)
        tool = tool if bare is inner else {**tool, "function": bare}
    return _bare(plan, path, tool)


def _bare(plan: _Plan, path: _Path, holder: Mapping[str, Any]) -> Mapping[str, Any]:
    for place in _markers_in(path, holder):
        plan.note(place, Breaker.CACHE_MARKERS)
        holder = {key: value for key, value in holder.items() if key != place[-1]}
    return holder


def _permuted(tools: list[Any], order: Sequence[int]) -> list[Any]:
    """Tools in another order. A marker says "up to here", so it stays at its position."""
    made = [tools[at] for at in order]
    for marker in MARKERS:
        if not any(marker in tool for tool in tools):
            continue
        for at, before in enumerate(tools):
            bare = {key: value for key, value in made[at].items() if key != marker}
            made[at] = {**bare, marker: before[marker]} if marker in before else bare
    return made


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts that one system message consists of, in order."""

    paths: list[_Path]  # of the texts
    blocks: list[_Path | None]  # of what to remove when a text goes; None: it has to stay
    texts: list[str]


def _texts_of(path: _Path, content: Any) -> _Texts:
    if isinstance(content, str):
        return _Texts([path], [None], [content])
    found = _Texts([], [], [])
    if isinstance(content, list):
        for at, block in enumerate(content):
            if isinstance(block, Mapping) and isinstance(block.get("text"), str):
                found.paths.append((*path, at, "text"))
                found.blocks.append((*path, at) if len(content) > 1 else None)
                found.texts.append(block["text"])
    return found


def _system_texts(body: Mapping[str, Any], family: Family) -> Iterator[_Texts]:
    if family is Family.ANTHROPIC:
        yield _texts_of(("system",), body.get("system"))
    elif family is Family.OPENAI_RESPONSES:
        yield _texts_of(("instructions",), body.get("instructions"))
    for path, message in _messages(body, family):
        if message.get("role") in _SYSTEM_ROLES:
            yield _texts_of((*path, "content"), message.get("content"))


def _messages(body: Mapping[str, Any], family: Family) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    field = "input" if family is Family.OPENAI_RESPONSES else "messages"
    messages = body.get(field)
    if isinstance(messages, list):
        for at, message in enumerate(messages):
            if isinstance(message, Mapping):
                yield (field, at), message


def _plan_system(plan: _Plan, found: _Texts, rules: Rules) -> None:
    texts, gone = list(found.texts), set()
    if rules.target is not Target.ANTHROPIC:
        for at, text in enumerate(texts):
            rest = _without_headers(text)
            if rest == text:
                break  # such lines stand in front, or are none
            if rest:
                texts[at] = rest
            elif found.blocks[at] is not None and at + 1 < len(texts):
                gone.add(at)
            else:
                break  # a system message of nothing else: an empty one may be refused
            plan.note(found.paths[at], Breaker.PSEUDO_HEADER)
    for at, text in enumerate(texts):
        block = found.blocks[at]
        if at in gone and block is not None:
            plan.edits.append((block, REMOVED))
            continue
        cleaned = text
        if rules.system_text:
            cleaned = canonical.clean_text(text, is_last=at + 1 == len(texts))
        if cleaned != text:
            plan.note(found.paths[at], Breaker.WHITESPACE)
        if cleaned != found.texts[at]:
            plan.edits.append((found.paths[at], cleaned))


def _without_headers(text: str) -> str:
    found = _HEADERS.match(text)
    return text if found is None else text[found.end() :]


def marker_paths(body: Mapping[str, Any], family: Family) -> Iterator[_Path]:
    """Where markers stand: at the root, in tools, in messages, in blocks, in results' blocks."""
    yield from _markers_in((), body)
    for field in _TOOL_FIELDS:
        for at, tool in enumerate(body[field] if isinstance(body.get(field), list) else ()):
            if isinstance(tool, Mapping):
                yield from _markers_in((field, at), tool)
    if family is Family.ANTHROPIC:
        yield from _markers_below(("system",), body.get("system"), levels=2)
    for path, message in _messages(body, family):
        yield from _markers_in(path, message)
        for field in ("content", "output"):
            yield from _markers_below((*path, field), message.get(field), levels=2)


def _markers_in(path: _Path, holder: Mapping[str, Any]) -> Iterator[_Path]:
    return iter([(*path, marker) for marker in MARKERS if marker in holder])


def _markers_below(path: _Path, blocks: Any, levels: int) -> Iterator[_Path]:
    if levels == 0 or not isinstance(blocks, list):
        return
    for at, block in enumerate(blocks):
        if isinstance(block, Mapping):
            yield from _markers_in((*path, at), block)
            yield from _markers_below((*path, at, "content"), block.get("content"), levels - 1)


def _results(body: Mapping[str, Any], family: Family) -> Iterator[tuple[_Path, str]]:
    """What tools returned, as texts."""
    for path, message in _messages(body, family):
        if message.get("role") in ("tool", "function"):
            yield from _texts((*path, "content"), message.get("content"))
        elif message.get("type") == "function_call_output":
            yield from _texts((*path, "output"), message.get("output"))
        elif family is Family.ANTHROPIC and isinstance(message.get("content"), list):
            for at, block in enumerate(message["content"]):
                if isinstance(block, Mapping) and block.get("type") == "tool_result":
                    yield from _texts((*path, "content", at, "content"), block.get("content"))


def _texts(path: _Path, content: Any) -> Iterator[tuple[_Path, str]]:
    found = _texts_of(path, content)
    return iter(zip(found.paths, found.texts, strict=True))
