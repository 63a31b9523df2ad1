"""Coroutines under a clock that jumps: hours of timers pass in no time, sockets stay real.

    virtual_time.run(main())    asyncio.run, but no timer is waited for

When nothing is ready the clock jumps to the next timer. Bytes between two ends in this loop are
ready before anybody can look, as long as they travel over Unix sockets. So clients and servers
that run in one loop and ask `loop.time()` see latencies that are exact to the microsecond, and the
same in every run.

Not for loops that wait for threads or other processes: the clock would run away from them.

>>> async def main() -> float:
...     loop = asyncio.get_running_loop()
...     begun = loop.time()
...     await asyncio.sleep(3600)
...     return round(loop.time() - begun)
>>> run(main())
3600
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

__all__ = ["VirtualTimeLoop", "run"]

STUCK_S = 10.0
_T = TypeVar("_T")


class _Jumping(selectors.BaseSelector):
    """Asks the system what is ready now; where nothing is, lets the clock jump instead of waiting.

    Without a timer only the outside can wake the loop: that is waited for, for a while.
    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None and timeout > 0:
            self.now_s += timeout
            return []
        ready = self._real.select(STUCK_S)
        if not ready:
            raise RuntimeError(f"no timer is set and nothing has happened for {STUCK_S:.0f} s")
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` begins at 0 and jumps."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        # asyncio runs timers that are due within this; jumps land exactly.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Seconds that have passed, by this loop's timers."""
        return self._jumping.now_s

    def advance(self, seconds: float) -> None:
        """Lets time pass in which nothing of this loop runs, as when its process is stopped."""
        self._jumping.now_s += seconds


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
