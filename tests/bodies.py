"""Requests of all families, made up from a seed, as odd as clients can make them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

from keepwarm.layout.fix import MARKERS
from keepwarm.layout.requests import Family

# The full size is 150 of each family: KEEPWARM_TEST_SCALE=10.
SEEDS = range(15 * min(int(os.environ.get("KEEPWARM_TEST_SCALE", "1")) + 2, 10))
ODD_TEXTS = (
    *(
        "plain",
        "tail  \nnext\t\n",
        "cr\r\nlf\rcr",
        "e\u0301 and \u00e9",
        "\u212b",
        "",
        "   ",
        "\n\n",
    ),
    *('{"b": 1.0, "a": 1e3}', '{"a": 1, "a": 2}', "[1,  2]", "\ud800 half", 'quote " and \\ back'),
    *("x-anthropic-billing-header: cch=1f;\nrest", "x-anthropic-billing-header: cch=2e;"),
    *("emoji \U0001f600 ", "tab\tin\tside", "{not json", "\u2028 sep ", "/slash\\/"),
)
ODD_VALUES: tuple[Any, ...] = (0, -1, 1.5, True, False, None, "s", [], {}, [1, [2]], 10**30, -0.0)


class Maker:
    """Requests of all families, seeded, with fields that nobody knows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one_of(self, given: Any) -> Any:
        return self.random.choice(list(given))

    def shuffled(self, members: Mapping[str, Any]) -> dict[str, Any]:
        keys = list(members)
        self.random.shuffle(keys)
        return {key: members[key] for key in keys}

    def marked(self, block: dict[str, Any]) -> dict[str, Any]:
        if self.random.random() < 0.3:
            block[self.one_of(MARKERS)] = {"type": "ephemeral", "ttl": self.one_of(("5m", "1h"))}
        if self.random.random() < 0.2:
            block["x_unknown"] = self.one_of(ODD_VALUES)
        return self.shuffled(block)

    def schema(self, levels: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object", "description": self.one_of(ODD_TEXTS)}
        names = self.random.sample(("zeta", "alpha", "type", "default", "enum", "cache_control"), 3)
        made["properties"] = {
            name: self.schema(levels - 1)
            if levels
            else self.shuffled({"type": "string", "default": self.one_of(ODD_VALUES), "x": [1]})
            for name in names
        }
        made["required"] = names
        if self.random.random() < 0.3:
            made["default"] = {"z": 1, "a": {"y": 1, "b": self.one_of(ODD_VALUES)}}
        return self.shuffled(made)

    def tool(self, family: Family) -> Any:
        if self.random.random() < 0.2:
            return self.one_of(({"type": "web_search", "name": "web"}, {"type": "bash_20250124"}))
        name = self.one_of(("read", "write", "grep", "Grep", "ls"))
        own = {"name": name, "description": self.one_of(ODD_TEXTS)}
        if family is Family.ANTHROPIC:
            return self.marked({**own, "input_schema": self.schema(2)})
        if family is Family.OPENAI_RESPONSES:
            return self.marked({"type": "function", **own, "parameters": self.schema(1)})
        inner = self.marked({**own, "parameters": self.schema(2)})
        return self.marked({"type": "function", "function": inner})

    def content(self, kind: str = "text", levels: int = 1) -> Any:
        if self.random.random() < 0.4:
            return self.one_of(ODD_TEXTS)
        blocks = [
            self.marked({"type": kind, "text": self.one_of(ODD_TEXTS)})
            for _ in range(self.random.randint(0, 3))
        ]
        if levels and self.random.random() < 0.3:
            inner = self.content(kind, levels - 1)
            blocks.append({"type": "tool_result", "tool_use_id": "t", "content": inner})
        return blocks

    def message(self, family: Family) -> Any:
        roles = ["user", "assistant"]
        if family is not Family.ANTHROPIC:
            roles += ["system", "developer", "tool"]
        if family is Family.OPENAI_RESPONSES and self.random.random() < 0.3:
            return {"type": "function_call_output", "call_id": "c", "output": self.content()}
        said = {"role": self.one_of(roles), "content": self.content()}
        if self.random.random() < 0.2:
            said["tool_calls"] = [{"id": "c", "function": {"name": "ls", "arguments": '{"b":1 }'}}]
        return self.marked(said)

    def body(self, family: Family) -> dict[str, Any]:
        made: dict[str, Any] = {"model": "m", "temperature": self.one_of((0, 0.0, 1, 0.7))}
        made["tools"] = [self.tool(family) for _ in range(self.random.randint(0, 5))]
        field = "input" if family is Family.OPENAI_RESPONSES else "messages"
        made[field] = [self.message(family) for _ in range(self.random.randint(1, 6))]
        if family is Family.ANTHROPIC:
            made["system"] = self.content()
        if family is Family.OPENAI_RESPONSES:
            made["instructions"] = self.one_of(ODD_TEXTS)
        if self.random.random() < 0.2:
            made["tools"] = self.one_of((None, {}, "no list", [1, "two", None]))
        if self.random.random() < 0.2:
            made[field] = self.one_of((None, "text", [None, 3, "said"], {}))
        made["x_unknown"] = {"b": [self.one_of(ODD_VALUES)], "a": self.one_of(ODD_TEXTS)}
        return self.marked(made)

    def text(self, body: Any) -> bytes:
        """One of the ways to write it down."""
        separators = self.one_of(((",", ":"), (", ", ": "), (" ,\n", " :\t")))
        written = json.dumps(body, separators=separators, indent=self.one_of((None, 1)))
        return f"{self.one_of(('', ' '))}{written}\n".encode()


def cases() -> Iterator[tuple[int, Family, Maker]]:
    for seed in SEEDS:
        for family in Family:
            yield seed, family, Maker(seed)
