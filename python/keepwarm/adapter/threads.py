"""Daemon threads that fail visibly, end when asked, and know about forks.

A forked child has none of its parent's threads, and may have its locks taken for ever. So what owns
threads registers itself here, and in a child starts anew: with new locks, without the parent's
questions and jobs, whose memory is the parent's to use.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("keepwarm.adapter")

SAID_EVERY_S = 10.0
BURST = 6


class Forkable(Protocol):
    """What starts anew in a forked child."""

    def after_fork(self) -> None:
        """In the child, where no other thread runs: new locks, no threads, nothing under way."""
        ...


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_forkable):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def survives_fork(owner: Forkable) -> None:
    """`owner.after_fork()` is called in every child from now on, for as long as it lives."""
    _forkable.add(owner)


def start(name: str, work: Callable[[], None]) -> threading.Thread | None:
    """A daemon thread: an engine that ends does not wait for us.

    None where the process may not have another one, or is about to end: whoever needs it tries
    again with the next call, and meanwhile deadlines pass.
    """
    thread = threading.Thread(target=work, name=f"keepwarm-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("keepwarm: no thread %s: %s", thread.name, error)
        return None
    return thread


class Sayer:
    """Log lines that cannot become a flood: one for each change, a few at once, then few."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, _Said] = {}

    def say(self, kind: str, text: str, level: int = logging.WARNING) -> None:
        """One line of this kind, unless it said the same within `SAID_EVERY_S`.

        `BURST` lines at once and one each `SAID_EVERY_S` from then on; those left out are counted.
        """
        now_s = self._clock()
        said = self._said.setdefault(kind, _Said("", now_s - SAID_EVERY_S, float(BURST), now_s))
        if said.text == text and now_s - said.at_s < SAID_EVERY_S:
            return
        said.tokens = min(BURST, said.tokens + (now_s - said.filled_s) / SAID_EVERY_S)
        said.filled_s = now_s
        if said.tokens < 1:
            said.left_out += 1
            return
        more = f" ({said.left_out} such lines before it were left out)" if said.left_out else ""
        said.text, said.at_s, said.left_out = text, now_s, 0
        said.tokens -= 1
        log.log(level, "keepwarm: %s%s", text, more)


@dataclass(slots=True)
class _Said:
    text: str
    at_s: float
    tokens: float
    filled_s: float
    left_out: int = 0
