"""Edits of JSON text in place: only the bytes of what changes are written anew.

    Edits = tree of keys and positions ──► spans in the text ──► one new text

The text is valid JSON (somebody has parsed it), so that what no edit touches is passed over
without looking: a string or a nested value costs one scan by the regular expression engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["REMOVED", "Edit", "apply", "pointer", "splice"]


class _Removed:
    """A member or an element that goes."""


REMOVED: Final = _Removed()
# Keys and positions from the root, and what stands there afterwards.
Edit = tuple[tuple[str | int, ...], Any]
_Tree = dict[str | int, Any]

# Possessive throughout: nothing is tried twice, whatever the text.
_SPACE = re.compile(r"[ \t\n\r]*+")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(r"[^,\]} \t\n\r]++")
_PLAIN = re.compile(r'[^"\[\]{}]*+')


def pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901) of keys and positions."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


class _Leaf:
    """The end of an edit's path."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _tree(edits: Sequence[Edit]) -> _Tree:
    root: _Tree = {}
    for path, value in edits:
        node = root
        for step in path[:-1]:
            node = node.setdefault(step, {})
        node[path[-1]] = _Leaf(value)
    return root


def apply(value: Any, edits: Sequence[Edit]) -> Any:
    """`value` with the edits made; containers on their paths are copied, all else is shared."""
    return _applied(value, _tree(edits)) if edits else value


def _applied(value: Any, tree: _Tree) -> Any:
    def made(key: str | int, old: Any) -> Any:
        edit = tree.get(key)
        if edit is None:
            return old
        return edit.value if isinstance(edit, _Leaf) else _applied(old, edit)

    if isinstance(value, Mapping):
        members = ((key, made(key, old)) for key, old in value.items())
        return {key: new for key, new in members if new is not REMOVED}
    elements = (made(at, old) for at, old in enumerate(value))
    return [new for new in elements if new is not REMOVED]


def splice(text: str, edits: Sequence[tuple[tuple[str | int, ...], Any]]) -> str:
    """`text` with the edits made; a new value is given as JSON text, or as `REMOVED`."""
    if not edits:
        return text
    found: list[tuple[int, int, str]] = []
    _walk(text, _space(text, 0), _tree(edits), found)
    parts, at = [], 0
    for start, end, new in sorted(found):
        parts += [text[at:start], new]
        at = end
    parts.append(text[at:])
    return "".join(parts)


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches nothing, too
    return match.end()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    if match is None:
        raise ValueError(f"no JSON at character {at}")
    return match.end()


def _skip(text: str, at: int) -> int:
    """Where the value that begins at `at` ends."""
    first = text[at]
    if first == '"':
        return _end(_STRING, text, at)
    if first not in "{[":
        return _end(_SCALAR, text, at)
    depth = 0
    while True:
        at = _end(_PLAIN, text, at)
        mark = text[at]
        if mark == '"':
            at = _end(_STRING, text, at)
            continue
        depth += 1 if mark in "{[" else -1
        at += 1
        if depth == 0:
            return at


def _walk(text: str, at: int, tree: _Tree, found: list[tuple[int, int, str]]) -> int:
    """Collects the spans of all edits below the container at `at`; returns where it ends."""
    is_object = text[at] == "{"
    spans: list[tuple[int, int]] = []
    gone: set[int] = set()
    at = _space(text, at + 1)
    while text[at] not in "}]":
        start, key = at, len(spans)
        edit: Any = None
        if is_object:
            end = _end(_STRING, text, at)
            name = text[at + 1 : end - 1]
            edit = tree.get(json.loads(text[at:end]) if "\\" in name else name)
            at = _space(text, _space(text, end) + 1)  # past the colon
        else:
            edit = tree.get(key)
        begin = at
        at = _walk(text, at, edit, found) if isinstance(edit, dict) else _skip(text, at)
        spans.append((start, at))
        if isinstance(edit, _Leaf):
            if edit.value is REMOVED:
                gone.add(key)
            else:
                found.append((begin, at, edit.value))
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    found += _removals(spans, gone)
    return at + 1


def _removals(spans: Sequence[tuple[int, int]], gone: set[int]) -> list[tuple[int, int, str]]:
    """What to cut so that one comma stays between each two that stay."""
    cuts = []
    is_kept_before = False
    for at, (start, end) in enumerate(spans):
        if at not in gone:
            is_kept_before = True
        elif is_kept_before:
            cuts.append((spans[at - 1][1], end, ""))
        else:
            cuts.append((start, spans[at + 1][0] if at + 1 < len(spans) else end, ""))
    return cuts
