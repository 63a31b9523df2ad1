"""Nothing of ours raises into vLLM: it is logged once a kind, counted, and becomes a miss."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

log = logging.getLogger("keepwarm.vllm")
faults: Counter[str] = Counter()
"""Exceptions that were held back, by the method that they came from."""

Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(otherwise: Callable[[], object]) -> Callable[[Method], Method]:
    """A method that answers `otherwise()` instead of raising."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            try:
                return method(*given, **named)
            except Exception:
                held_back(method.__qualname__)
                return otherwise()

        return cast(Method, call)

    return wrap


def held_back(where: str) -> None:
    """Notes the exception that is being handled."""
    faults[where] += 1
    if faults[where] == 1:
        log.exception("keepwarm: %s failed; the engine goes on without it", where)
