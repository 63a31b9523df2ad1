"""Between vLLM and us: an exception in a method that vLLM calls would end the engine."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger("keepwarm.connectors.vllm")

P = ParamSpec("P")
T = TypeVar("T")

faults: Counter[str] = Counter()
"""Exceptions that were kept from vLLM in this process, by method."""
_shown = 0


def guarded(instead: Callable[..., T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A method of ours that vLLM calls: what it raises is counted, logged once, and `instead` is
    called with the same arguments for an answer that is always right, such as a miss."""

    def wrap(method: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                note(method.__qualname__, error)
                return instead(*args, **kwargs)

        return call

    return wrap


def nothing(*_: Any, **__: Any) -> None:
    """For methods whose failure needs no answer."""


def note(where: str, error: Exception) -> None:
    """Counts an exception, and logs the first of each place with its trace."""
    faults[where] += 1
    if faults[where] == 1:
        log.error(
            "keepwarm: %s failed and is passed over (%s: %s); further ones are counted",
            *(where, type(error).__name__, error),
            exc_info=error,
        )


def unshown() -> int:
    """Faults since this was asked last: both roles of a connector may be in one process, and each
    fault is counted by one of them."""
    global _shown
    before, _shown = _shown, faults.total()
    return max(0, _shown - before)
