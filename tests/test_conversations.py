"""Conversations with their text, as requests."""

from __future__ import annotations

import json

import pytest
from keepwarm.testing import conversations, traces


def test_each_answer_was_asked_for_with_all_that_came_before() -> None:
    (made,) = conversations.generated(1, seed=3)
    asked = list(conversations.requests_of(made, start_s=5.0, turn_s=2.0))
    assert len(asked) == len(made.answers()) == 6
    for turn, request in enumerate(asked):
        assert request.time_s == 5.0 + 2.0 * turn
        messages = request.body["messages"]
        assert messages == made.messages[: len(messages)]
        assert request.reply == made.messages[len(messages)]
        assert request.body["tools"] == made.tools


def test_generated_conversations_come_from_their_seed() -> None:
    one, again = (conversations.generated(3, seed=1) for _ in range(2))
    assert one == again != conversations.generated(3, seed=2)
    assert len({made.messages[0]["content"] for made in one}) == 1
    assert len({made.messages[1]["content"] for made in one}) == 3


def test_conversations_are_interleaved_in_order_of_time() -> None:
    asked = conversations.interleaved(conversations.generated(4, seed=1), stagger_s=7.0)
    times = [request.time_s for request in asked]
    assert times == sorted(times, key=lambda each: each or 0.0)
    sessions = [request.session for request in asked]
    assert sessions != sorted(sessions, key=str)
    line = json.loads(conversations.json_line(asked[0]))
    assert line["request"] == asked[0].body


def test_public_conversations_are_read_where_they_are() -> None:
    if traces.traces_root() is None:
        pytest.skip(f"no traces: set {traces.TRACES_VARIABLE}")
    found = conversations.public()
    tau = [each for each in found if each.name.startswith("airline")]
    if not tau or len(tau) == len(found):
        pytest.skip("tau-bench or SWE-agent is not there")
    assert len(tau) == 120
    assert len({each.messages[0]["content"] for each in tau}) == 1
    calls = sum(len(each.answers()) for each in found)
    assert calls > 1300
    for each in found:
        assert each.messages[0]["role"] == "system"
        assert all("role" in message for message in each.messages)
