"""One spelling for what means the same: tool lists, tool schemas, system text, embedded JSON.

Everything here changes order or white space and nothing else. Values are copied, never converted:
a number keeps its digits, a string its characters. What is already canonical comes back as the
same object, so that a caller sees by identity that nothing was to do.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from keepwarm.errors import ArgumentError

__all__ = [
    "Number",
    "Repeated",
    "canonical_json",
    "clean_text",
    "order_keys",
    "order_tools",
    "parse",
    "tool_name",
    "write",
]

SCHEMA_LEVELS_MAX = 100
# More combining marks in a row than any script uses; normalising such a run takes quadratic time.
_MARKS_MAX = 64

# The order in which models have seen these keys most; all others follow by name.
_KEYS_FIRST = (
    *("type", "function", "name", "title", "description", "strict", "parameters", "input_schema"),
    *("format", "enum", "const", "default", "items", "properties", "required"),
    "additionalProperties",
)
_RANK = {key: rank for rank, key in enumerate(_KEYS_FIRST)}
# Below these a key is a name that somebody chose, and models are sensitive to the order of names.
_NAMES_BELOW = frozenset(
    (
        *("properties", "patternProperties", "dependentSchemas", "dependentRequired"),
        *("$defs", "definitions"),
    )
)
# Below these stands data, not a schema.
_DATA_BELOW = frozenset(("default", "const", "enum", "examples", "example", "input_examples"))

_LINE_END = re.compile(r"\r\n?")
_SPACE_BEFORE_LINE_END = re.compile(r"(?<![ \t])[ \t]++(?=\n)")
_SYMBOLS = re.compile(rf"[^\w\s\x00-\x7f]{{{_MARKS_MAX},}}+")
# How the keys of an object are ranked; None keeps them as they are.
_Order = Callable[[str], tuple[int, str]] | None
_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number as it was written: 1.0 is not 1, and 1e3 is not 1000."""

    __slots__ = ()


class Repeated(tuple[tuple[str, Any], ...]):
    """An object in which a key stands twice. Readers differ in which one counts: left alone."""

    __slots__ = ()


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    return members if len(members) == len(pairs) else Repeated(pairs)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def parse(text: str) -> Any:
    """JSON with numbers as `Number` and objects with repeated keys as `Repeated`.

    Raises ValueError for what is no JSON, RecursionError for what is nested too deeply.
    """
    return json.loads(
        text,
        parse_int=Number,
        parse_float=Number,
        parse_constant=_refuse_constant,
        object_pairs_hook=_members,
    )


def write(value: Any) -> str:
    """Compact JSON of what `parse` gives, or of plain Python values; RecursionError as there."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        # Half of a surrogate pair has no UTF-8 form, so it stays an escape.
        return json.dumps(value, ensure_ascii=_SURROGATE.search(value) is not None)
    if isinstance(value, Mapping):
        return _written(value.items())
    if isinstance(value, Repeated):
        return _written(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(write(each) for each in value) + "]"
    return json.dumps(value)


def _written(members: Iterable[tuple[str, Any]]) -> str:
    return "{" + ",".join(f"{write(key)}:{write(each)}" for key, each in members) + "}"


def order_tools(tools: Sequence[Any]) -> list[int] | None:
    """In which order tools belong: as positions in the given list; None: leave them alone.

    What the provider builds in comes first, in the order given; then the user's own, by name.
    Equal names keep their order, since with some endpoints the later one counts.
    """
    if not all(isinstance(tool, Mapping) for tool in tools):
        return None
    own = [(tool_name(tool), at) for at, tool in enumerate(tools)]
    built_in = [at for name, at in own if name is None]
    named = sorted((name, at) for name, at in own if name is not None)
    return built_in + [at for _, at in named]


def tool_name(tool: Mapping[str, Any]) -> str | None:
    """The name of a tool that the user brought; None for one that the provider builds in."""
    kind = tool.get("type")
    if kind not in (None, "function", "custom"):
        return None
    inner = tool.get("function", tool.get("custom", tool))
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def order_keys(tool: Any, names_too: bool = False) -> Any:
    """A tool with its keys in canonical order: known ones as usual, others by name.

    Names of properties keep their order unless `names_too`; lists always do. Raises ArgumentError
    if the tool is nested deeper than 100 levels.
    """
    return _ordered(tool, _ranked, names_too, SCHEMA_LEVELS_MAX)


def _ranked(key: str) -> tuple[int, str]:
    return _RANK.get(key, len(_RANK)), key


def _as_data(key: str) -> tuple[int, str]:
    return 0, key


def _as_names(key: str) -> tuple[int, str]:
    return 0, key


def _ordered(value: Any, order: _Order, names_too: bool, levels: int) -> Any:
    if levels == 0:
        raise ArgumentError(
            f"a tool is nested deeper than {SCHEMA_LEVELS_MAX} levels: forward the request as it is"
        )
    if isinstance(value, list):
        made = [_ordered(each, order, names_too, levels - 1) for each in value]
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    if not isinstance(value, Mapping):
        return value
    if not all(isinstance(key, str) for key in value):
        return value
    keys = list(value) if order is None else sorted(value, key=order)
    changed = keys != list(value)
    ordered: dict[str, Any] = {}
    for key in keys:
        below = _order_below(key, order, names_too)
        ordered[key] = _ordered(value[key], below, names_too, levels - 1)
        changed = changed or ordered[key] is not value[key]
    return ordered if changed else value


def _order_below(key: str, order: _Order, names_too: bool) -> _Order:
    """Below names stand schemas again; data stays data all the way down."""
    if order is _as_data or (order is _ranked and key in _DATA_BELOW):
        return _as_data
    if order is _ranked and key in _NAMES_BELOW:
        return _as_names if names_too else None
    return _ranked


def clean_text(text: str, is_last: bool = True) -> str:
    """Text with LF line ends, in NFC, without white space at the ends of lines.

    `is_last`: nothing is appended to it, so that its own end is cleaned too. Text of which nothing
    would remain, and runs of combining marks that no language has, are left alone.
    """
    cleaned = _LINE_END.sub("\n", text)
    if not cleaned.isascii() and not _is_piled_up(cleaned):
        cleaned = unicodedata.normalize("NFC", cleaned)
    cleaned = _SPACE_BEFORE_LINE_END.sub("", cleaned)
    if is_last:
        cleaned = cleaned.rstrip(" \t\n")
    return cleaned if cleaned.strip(" \t\n") else text


def _is_piled_up(text: str) -> bool:
    for found in _SYMBOLS.finditer(text):
        run = 0
        for mark in found[0]:
            run = run + 1 if unicodedata.combining(mark) else 0
            if run >= _MARKS_MAX:
                return True
    return False


def canonical_json(text: str) -> str | None:
    """A JSON object or array, compact, its keys sorted; None if it is none, or ambiguous."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = parse(text)
        return None if _is_ambiguous(value) else write(_sorted_keys(value))
    except (ValueError, RecursionError):
        return None


def _is_ambiguous(value: Any) -> bool:
    if isinstance(value, Repeated):
        return True
    if isinstance(value, dict):
        return any(_is_ambiguous(each) for each in value.values())
    return isinstance(value, list) and any(_is_ambiguous(each) for each in value)


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted_keys(each) for each in value]
    return value
