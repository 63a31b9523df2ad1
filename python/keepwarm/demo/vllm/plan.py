"""What is asked: conversations of a coding agent about this package's own sources.

No conversation shares a block with another: its first line names its task. So whatever is restored
of one was stored when that same one was asked before. The same sources, sizes and tokenizer always
give the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import keepwarm

PACKAGE = Path(keepwarm.__file__).parent
SOURCE_CHARACTERS_LEAST = 1500
CHARACTERS_A_TOKEN = 8
"""More than any tokenizer needs on source text, so that a text is long enough before it is cut."""

Tokenize: TypeAlias = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is asked. The defaults fit six minutes of two cores, the engines' start included."""

    conversations: int = 6
    tokens_least: int = 1024
    tokens_most: int = 3072
    turns: int = 5
    turn_tokens: int = 400
    answer_tokens: int = 12

    def lengths(self) -> list[int]:
        """Prompt tokens of each conversation, growing."""
        if self.conversations == 1:
            return [self.tokens_most]
        step = (self.tokens_most - self.tokens_least) / (self.conversations - 1)
        return [round(self.tokens_least + at * step) for at in range(self.conversations)]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as the engine gets it."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All prompts; those of the growing conversation after its first depend on the answers."""

    known: list[Conversation]
    unseen: list[Conversation]
    growing: Conversation
    additions: list[tuple[int, ...]]
    warm_up: tuple[int, ...]


def make(sizes: Sizes, tokenize: Tokenize) -> Plan:
    """The prompts, cut by an engine's tokenizer."""
    lengths = sizes.lengths()
    known = [_conversation(f"task-{at}", n, tokenize) for at, n in enumerate(lengths, 1)]
    unseen = [_conversation(f"unseen-{at}", n, tokenize) for at, n in enumerate(lengths, 1)]
    growing = _conversation("long-task", sizes.tokens_least, tokenize)
    additions = [
        _fitted(
            "<|im_end|>\n<|im_start|>user\nThe tool read_file answers:\n",
            _sources(f"long-task, turn {turn}"),
            "\nGo on with the task.<|im_end|>\n<|im_start|>assistant\n",
            sizes.turn_tokens,
            tokenize,
        )
        for turn in range(2, sizes.turns + 1)
    ]
    warm_up = _conversation("warm-up", min(sizes.tokens_least, 512), tokenize).tokens
    return Plan(known, unseen, growing, additions, warm_up)


def _conversation(name: str, length: int, tokenize: Tokenize) -> Conversation:
    head = (
        f"<|im_start|>system\nTask {name}. You are a coding agent in the repository of Keepwarm. "
        "Read the files, then do what is asked.<|im_end|>\n<|im_start|>user\n"
    )
    tail = (
        "\nWhich of these functions would you change first, and why?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    return Conversation(name, _fitted(head, _sources(name), tail, length, tokenize))


def _fitted(
    head: str, body: Iterator[str], tail: str, length: int, tokenize: Tokenize
) -> tuple[int, ...]:
    """Exactly so many tokens: the body is cut, not the question behind it."""
    text = head
    while len(text) < CHARACTERS_A_TOKEN * length:
        text += next(body)
    end = tokenize(tail)
    begin = tokenize(text[: CHARACTERS_A_TOKEN * length])
    if len(begin) + len(end) < length:
        raise ValueError(f"the sources gave {len(begin)} tokens, {length} are needed")
    return (*begin[: max(length - len(end), 1)], *end)[:length]


def _sources(name: str) -> Iterator[str]:
    """The package's larger files, for ever, beginning at another one for each name."""
    files = sorted(PACKAGE.rglob("*.py"))
    large = [each for each in files if each.stat().st_size >= SOURCE_CHARACTERS_LEAST]
    start = sum(name.encode()) * 7
    at = 0
    while True:
        path = large[(start + at) % len(large)]
        yield f"# file: keepwarm/{path.relative_to(PACKAGE)}\n{path.read_text(encoding='utf-8')}\n"
        at += 1
