"""Waiting for what other threads and processes do: a poll that ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 10.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


def eventually(reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Returns once `reached()` is true; AssertionError naming `what` after `patience_s`."""
    until, pause_s, never = time.monotonic() + patience_s, _FIRST_PAUSE_S, threading.Event()
    while not reached():
        if time.monotonic() > until:
            raise AssertionError(f"did not happen within {patience_s} s: {what}")
        never.wait(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
