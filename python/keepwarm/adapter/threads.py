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
from typing import Protocol

log = logging.getLogger("keepwarm.adapter")

SAID_EVERY_S = 10.0


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


def start(name: str, work: Callable[[], None]) -> threading.Thread:
    """A daemon thread: an engine that ends does not wait for us."""
    thread = threading.Thread(target=work, name=f"keepwarm-{name}", daemon=True)
    thread.start()
    return thread


class Sayer:
    """Log lines that cannot become a flood: a text again only after a while, and counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, tuple[str, float]] = {}

    def say(self, kind: str, text: str, level: int = logging.WARNING) -> None:
        """One line of this kind, unless it said the same within `SAID_EVERY_S`."""
        before, now = self._last.get(kind), self._clock()
        if before is not None and before[0] == text and now - before[1] < SAID_EVERY_S:
            return
        self._last[kind] = (text, now)
        log.log(level, "keepwarm: %s", text)
