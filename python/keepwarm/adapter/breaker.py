"""Opens at the first silence, so that one request waits and no other; closes on a quick answer.

CLOSED ──deadline missed, store down──► OPEN ──a probe answered in time──► CLOSED
                                         └─ each time that it did not last, it stays open longer
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

HOLD_S = 0.25
HOLD_S_MAX = 30.0  # for one that closes and opens again at once
SILENCE_S_MAX = 2.0  # for one that stays open: so long may a node be back unnoticed
LASTED_S = 10.0


class Breaker:
    """Used from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hold_s = HOLD_S
        self._until_s = 0.0
        self._silence_s = HOLD_S
        self._closed_s = -LASTED_S
        self.open = False
        self.openings = 0

    def trip(self) -> None:
        """A question got no answer in time."""
        with self._lock:
            if self.open:
                return
            now = self._clock()
            lasted = now - self._closed_s >= LASTED_S
            self._hold_s = HOLD_S if lasted else min(2 * self._hold_s, HOLD_S_MAX)
            self._until_s = now + (0.0 if lasted else self._hold_s)
            self._silence_s = HOLD_S
            self.open = True
            self.openings += 1

    def probe_in(self) -> float | None:
        """Seconds until a probe is due; None while closed."""
        with self._lock:
            return max(0.0, self._until_s - self._clock()) if self.open else None

    def probed(self, answered: bool) -> None:
        """A probe was answered within an asker's deadline, or not."""
        with self._lock:
            if answered:
                self.open, self._closed_s = False, self._clock()
            else:
                self._until_s = self._clock() + self._silence_s
                self._silence_s = min(2 * self._silence_s, SILENCE_S_MAX)
