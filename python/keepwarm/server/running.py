"""The main thread of a node: it waits for signals and for calls that run in other threads."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from keepwarm.errors import NodeError
from keepwarm.server import notify
from keepwarm.server.node import Node

T = TypeVar("T")
LOOK_S = 1.0


def run(node: Node, started: Callable[[], None], say: Callable[[str, str], None]) -> None:
    """Runs a node until a signal ends it, in the main thread.

    `started` is called once it serves, `say` with the name and a line of each later step:
    reloaded, draining, overdue, drained, stopped. Raises `NodeError` if it had to end by itself.
    """
    awaited = Awaited()
    signal.set_wakeup_fd(awaited.waker, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, awaited.on_signal)
    signal.signal(signal.SIGHUP, awaited.on_reload)
    lost = None
    try:
        starting = awaited.call(node.start)
        awaited.until(lambda: starting.done or awaited.asked)
        if not starting.done:
            say("stopped", "stopped before it had started")
            os._exit(0)  # the store is still allocating; nothing of it outlives the process
        starting.result()
        started()
        notify.ready(f"serves on {node.config.address}")
        lost = _serve(node, awaited, say)
        node.retire()
        notify.stopping("draining", node.config.drain)
        say("draining", f"draining, for {node.config.drain:g} s at most")
        draining = awaited.call(node.drain)
        awaited.until(lambda: draining.done)
        if not draining.result():
            say("overdue", "calls were still under way when the time to drain ended")
        if node.drained is not None:
            say("drained", str(node.drained))
    finally:
        stopping = awaited.call(node.stop)
        awaited.until(lambda: stopping.done)
        signal.set_wakeup_fd(-1)
        stopping.result()
    say("stopped", "stopped")
    if lost is not None:
        raise NodeError(f"the node ended because nobody could reach it any more: {lost}")


def _serve(node: Node, awaited: Awaited, say: Callable[[str, str], None]) -> str | None:
    """Until a signal asks for an end, or nobody reaches the node any more: why not."""
    watch = Watch(node.lost, awaited)
    try:
        while True:
            awaited.until(lambda: awaited.asked or awaited.reloads or watch.lost is not None)
            if awaited.asked or watch.lost is not None:
                return None if awaited.asked else watch.lost
            awaited.reloads = False
            notify.reloading()
            reloading = awaited.call(node.reload)
            awaited.until(lambda call=reloading: call.done or awaited.asked)  # type: ignore[misc]
            if reloading.done:
                say("reloaded", reloading.result().line())
                notify.ready(f"serves on {node.config.address}")
    finally:
        watch.stop()


class Watch:
    """Looks about once a second whether the node can still be reached, and wakes the main thread
    when it cannot."""

    def __init__(self, look: Callable[[], str | None], awaited: Awaited) -> None:
        self.lost: str | None = None
        self._look = look
        self._awaited = awaited
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="keepwarm-watch", daemon=True).start()

    def stop(self) -> None:
        """Looks no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self.lost = self._look()
            if self.lost is not None:
                self._awaited.wake()
                return


class Awaited:
    """What the main thread waits for: signals, and calls that run in threads.

    Python runs signal handlers in the main thread alone, between two steps of it: so it must never
    be inside a long call. And a handler may not wait for a lock that the step it interrupts holds,
    as those of threading.Event are. The system gives a signal to any thread, and to another one
    while the main thread has one to take already; a wait for a lock would then go on. So the main
    thread waits for a pipe, into which Python writes whichever thread has taken the signal.
    """

    def __init__(self) -> None:
        self.asked = False
        self.reloads = False
        self._bell, self.waker = os.pipe()
        os.set_blocking(self.waker, False)  # a full pipe wakes as well
        weakref.finalize(self, os.close, self._bell)
        weakref.finalize(self, os.close, self.waker)

    def on_signal(self, number: int, _: object) -> None:
        """The first signal asks for an end; the second is one."""
        if self.asked:
            os._exit(128 + number)
        self.asked = True
        self.wake()

    def on_reload(self, *_: object) -> None:
        """Asks for the settings to be read again, once the node serves."""
        self.reloads = True
        self.wake()

    def wake(self) -> None:
        """Makes the main thread look at its condition again."""
        with suppress(BlockingIOError):
            os.write(self.waker, b"\0")

    def call(self, work: Callable[[], T]) -> Call[T]:
        """Runs `work` in a thread."""
        return Call(work, self.wake)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a signal or a finished call makes it true."""
        while not condition():
            os.read(self._bell, 4096)


class Call(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, work: Callable[[], T], wake: Callable[[], None]) -> None:
        self._work = work
        self._wake = wake
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self.done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:
            self._error = error
        self.done = True
        self._wake()

    def result(self) -> T:
        """What the call returned or raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]
