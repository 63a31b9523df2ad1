"""What chat templates expect of Jinja beyond the language itself, and what they may use up.

A template is a program that somebody else wrote. The sandbox keeps it from Python's insides; a
`Budget` keeps it from running on and on or filling memory: each turn of a loop, each call, and each
text that is put together counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import do_format, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Turns of loops, calls and operations of one rendering: a thousand messages take thousands.
STEPS_MAX = 1_000_000
#: Characters of one text that a template builds, and of all of one rendering together.
CHARACTERS_MAX, CHARACTERS_TOGETHER_MAX = 64 << 20, 1 << 30


_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDE = re.compile(r"\d{4}|%[^a-zA-Z%]*\*")  # a width of thousands, or one that is a value
#: Filters that write as much as a number says, and that no prompt needs.
_UNBOUNDED = ("batch", "center", "slice", "urlize", "wordwrap", "xmlattr")
_INDENT_MAX, _POWER_MAX = 64, 1024


class TooMuchError(jinja2.TemplateError):
    """A rendering used up its budget."""


class Budget:
    """What is left to one rendering. Each overrun halves it, so that whole logs come to an end."""

    def __init__(self) -> None:
        self._steps_max = STEPS_MAX
        self.refill()

    def refill(self) -> None:
        """For a rendering that begins."""
        self._steps = self._steps_max
        self._characters = CHARACTERS_TOGETHER_MAX

    def step(self) -> None:
        """One turn of a loop, one call, one operation."""
        self._steps -= 1
        if self._steps < 0:
            self._steps_max //= 2
            raise TooMuchError("it runs on and on")

    def build(self, characters: int) -> None:
        """A text of so many characters, or a list of so many elements."""
        self._characters -= characters
        if characters > CHARACTERS_MAX or self._characters < 0:
            raise TooMuchError("it builds texts without end")


class _Counted(NodeTransformer):
    """Sends what loops go through, and what `~` joins, through the budget's filters."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's own interface
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the same
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "_joined", [], [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with a budget; refill it before each rendering, one at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, "jinja2.ext.loopcontrols"],
        )
        self.budget = Budget()
        self.concat = self._joined  # type: ignore[method-assign]
        self.filters |= {"_counted": self._counted, "_joined": self._joined, "tojson": tojson}
        self.filters |= {"indent": self._indent, "join": self._join, "replace": self._replace}
        self.filters["format"] = self._format
        self.globals["raise_exception"] = raise_exception
        for name in _UNBOUNDED:
            del self.filters[name]
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return _Counted().visit(tree)  # type: ignore[no-any-return]

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.step()
            yield value

    def _joined(self, values: Iterable[Any]) -> str:
        return self._join(values)

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            values = map(make_attrgetter(self, attribute), values)
        texts = []
        for each in values:
            self.budget.step()
            texts.append(str(each))
        self.budget.build(sum(map(len, texts)) + len(d) * len(texts))
        return d.join(texts)

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        text, new = str(text), str(new)
        self.budget.build(len(text) + text.count(str(old)) * len(new))
        made: str = text.replace(str(old), new, -1 if count is None else count)
        return made

    def wrap_str_format(self, value: Any) -> Any:
        """The sandbox's `format`, without widths of thousands."""
        text = getattr(value, "__self__", None)
        if isinstance(text, str) and _WIDE.search(text):
            raise TooMuchError("it pads text")
        return super().wrap_str_format(value)

    def _indent(self, text: str, width: int | str = 4, *more: Any, **named: Any) -> str:
        if isinstance(width, int) and width > _INDENT_MAX:
            raise TooMuchError("it pads text")
        return str(do_indent(text, width, *more, **named))

    def _format(self, text: str, *values: Any, **named: Any) -> str:
        if _WIDE.search(text):
            raise TooMuchError("it pads text")
        return str(do_format(text, *values, **named))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox does, counted; padding is for tables, not for prompts."""
        self.budget.step()
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            name = obj.__name__
            if name in _PADDING:
                raise TooMuchError("it pads text")
            if name == "join" and args:
                return self._join(args[0], text)
            if name == "replace" and len(args) > 1:
                return self._replace(text, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Texts and lists that `+` and `*` make are counted; powers and padding are small ones."""
        self.budget.step()
        if operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise TooMuchError("it pads text")
        if operator == "**" and not (abs(left) <= _POWER_MAX and abs(right) <= _POWER_MAX):
            raise TooMuchError("it computes numbers without end")
        if operator == "*":
            many = [each for each in (left, right) if isinstance(each, int)]
            sized = [each for each in (left, right) if isinstance(each, str | list | tuple)]
            if many and sized:
                self.budget.build(len(sized[0]) * max(0, many[0]))
        elif operator == "+" and isinstance(left, str | list | tuple):
            self.budget.build(len(left) + len(right))
        return super().call_binop(context, operator, left, right)


class GenerationBlock(Extension):
    """`{% generation %}…` marks the assistant's words; renders as if not there."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body, as if the tags were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def raise_exception(message: str) -> None:
    """What a template calls to refuse a conversation."""
    raise jinja2.TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    if isinstance(indent, int) and indent > _INDENT_MAX:
        raise TooMuchError("it pads text")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
