"""Threads and log lines of the adapter: bounded, and nobody's failure."""

from __future__ import annotations

import logging
import threading

import pytest
from keepwarm.adapter.threads import BURST, SAID_EVERY_S, Sayer, start
from keepwarm.testing import ManualClock


def test_a_change_is_said_once_and_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    sayer = Sayer(clock.now_s)
    for _ in range(10):
        sayer.say("state", "down")
    assert len(caplog.records) == 1
    for number in range(100):
        sayer.say("state", f"down {number}")
    assert len(caplog.records) == BURST
    sayer.say("other", "another kind is not held back", logging.ERROR)
    assert len(caplog.records) == BURST + 1
    clock.advance(SAID_EVERY_S)
    sayer.say("state", "up again")
    assert caplog.records[-1].getMessage() == (
        f"keepwarm: up again ({100 - BURST + 1} such lines before it were left out)"
    )


def test_a_thread_that_cannot_be_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert start("x", lambda: None) is None
