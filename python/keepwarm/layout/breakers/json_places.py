"""Where in a JSON text a character is: the value's pointer, and the place in its string."""

from __future__ import annotations

import json
import re

from keepwarm.layout.splice import pointer

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+')


def place_in(text: str, at: int) -> tuple[str, int]:
    """The innermost value that holds character `at`, as a pointer, and characters into it.

    A key counts as the object that has it. Total: a text that is no JSON gives ("", at).
    """
    path: list[str | int] = []
    opened: list[str] = []
    expects_key = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match.start() > at and token != ":":
            break
        if token in "{[":
            opened.append(token)
            path.append("" if token == "{" else 0)
            expects_key = token == "{"
        elif token in "}]":
            if opened:
                opened.pop()
                path.pop()
            expects_key = False
        elif token == ",":
            if opened and opened[-1] == "[":
                path[-1] = int(path[-1]) + 1
            expects_key = bool(opened) and opened[-1] == "{"
        elif token == ":":
            expects_key = False
        elif token.startswith('"') and expects_key and path:
            if at < match.end():
                return pointer(path[:-1]), 0
            path[-1] = _unescaped(token)
        elif match.start() <= at < match.end():
            inside = len(_unescaped('"' + text[match.start() + 1 : at] + '"'))
            return pointer(path), inside if token.startswith('"') else at - match.start()
    return pointer(path[:-1]), 0 if opened else at


def _unescaped(token: str) -> str:
    for end in (len(token), -2, -3, -4, -5, -6):  # an escape may have been cut
        try:
            return str(json.loads(token if end > 0 else token[:end] + '"'))
        except ValueError:
            continue
    return token.strip('"')
