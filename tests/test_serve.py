"""The life of a node's process: signals at any moment, and an output that nobody takes."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from keepwarm.server.node import Awaited

WAIT_S = 30


def test_a_signal_may_come_at_any_step_of_the_wait() -> None:
    """A handler runs between two steps of the thread that it interrupts, whatever that holds."""
    awaited = Awaited()
    rounds = iter(range(5))

    def at_each_step(_: FrameType, event: str, __: Any) -> Any:
        if event == "line":
            awaited.asked = False  # a second signal would end this process
            awaited.on_signal(signal.SIGTERM, None)
        return at_each_step

    def wait() -> None:
        awaited.on_signal(signal.SIGTERM, None)
        sys.settrace(at_each_step)
        awaited.until(lambda: next(rounds, None) is None)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WAIT_S)
    assert not waiting.is_alive(), "the handler waits for what it has interrupted"


def test_a_call_that_ends_wakes_who_waits() -> None:
    awaited = Awaited()
    calls = [awaited.call(lambda: 7) for _ in range(3)]
    awaited.until(lambda: all(call.done for call in calls))
    assert [call.result() for call in calls] == [7, 7, 7]
