"""Questions about prompts: answered in time, by somebody, always."""

from __future__ import annotations

from typing import Any

import keepwarm
import pytest
from adapters import (
    PlainPages,
    fake_session,
    prompt_of,
    session_on,
    shaky_session,
    threads_of_ours,
)
from keepwarm.adapter import lookups as lookups_module
from keepwarm.adapter.breaker import HOLD_S, LASTED_S, Breaker
from keepwarm.adapter.lookups import QUESTIONS_MAX, Answer, Lookups, Question
from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import FaultProxy, ManualClock, Towards, eventually
from nodes import LocalNode


def answered(question: Question) -> Answer:
    eventually(lambda: question.answer() is not None, "the answer comes")
    found = question.answer()
    assert found is not None
    return found


def test_one_answer_for_a_prompt() -> None:
    session, memory = fake_session()
    prompt = prompt_of(session.namespace, 4)
    space = session.space
    assert space is not None
    space.put_from(prompt[:3], PlainPages(3).memory)
    lookups = Lookups(session, deadline_s=5.0)
    question = lookups.ask(prompt)
    eventually(lambda: question.answer() is not None, "the answer comes")
    answer = question.answer()
    assert answer is not None
    assert (list(answer.hits), answer.prefix) == ([True] * 3 + [False], 3)
    assert answer.miss is Recomputed.ABSENT
    assert memory.stat()["leases"] == 1
    question.close()
    eventually(lambda: not memory.stat()["leases"], "the lease goes back")
    question.close()
    lookups.close()
    session.close()


def test_what_failed_is_not_promised_again() -> None:
    session, _ = fake_session()
    prompt = prompt_of(session.namespace, 3)
    space = session.space
    assert space is not None
    space.put_from(prompt, PlainPages(3).memory)
    session.failed.add(prompt.keys[16:32], Recomputed.CORRUPT)
    lookups = Lookups(session, deadline_s=5.0)
    question = lookups.ask(prompt)
    eventually(lambda: question.answer() is not None, "the answer comes")
    answer = question.answer()
    assert answer is not None
    assert (answer.prefix, answer.miss) == (1, Recomputed.CORRUPT)
    assert list(answer.hits) == [True, False, True]
    lookups.close()
    session.close()


def test_without_a_space_the_answer_is_there_at_once() -> None:
    session, memory = fake_session()
    session.close()
    lookups = Lookups(session, deadline_s=5.0)
    answer = lookups.ask(prompt_of(session.namespace, 2)).answer()
    assert answer is not None
    assert (answer.prefix, answer.miss) == (0, Recomputed.STORE_DOWN)
    memory.close()
    lookups.close()


def test_a_deadline_is_the_askers_and_opens_the_breaker() -> None:
    clock = ManualClock()
    session, memory = shaky_session()
    lookups = Lookups(session, deadline_s=0.25, clock=clock.now_s)
    prompt = prompt_of(session.namespace, 3)
    (space,) = memory.spaces
    space.below.put_from(prompt, PlainPages(3).memory)
    space.gate.clear()
    question = lookups.ask(prompt)
    clock.advance(0.2)
    assert question.answer() is None
    clock.advance(0.06)
    answer = question.answer()
    assert answer is not None
    assert (answer.miss, answer.prefix) == (Recomputed.DEADLINE, 0)
    assert list(answer.hits) == [False] * 3
    assert abs(answer.waited_s - 0.26) < 1e-9
    assert question.answer() is answer
    assert lookups.breaker.open
    # Nobody else waits.
    refused = lookups.ask(prompt).answer()
    assert refused is not None
    assert (refused.miss, refused.waited_s) == (Recomputed.STORE_DOWN, 0.0)
    assert lookups.counts["asked"] == 1
    # The late reply's lease goes back, and a probe closes the breaker.
    space.gate.set()
    eventually(lambda: not lookups.breaker.open, "the breaker closes")
    eventually(lambda: not memory.stat()["leases"], "the late lease goes back")
    assert question.answer() is answer
    assert answered(lookups.ask(prompt)).prefix == 3
    lookups.close()
    session.close()


def test_a_question_closed_before_its_reply_keeps_no_lease() -> None:
    session, memory = shaky_session()
    prompt = prompt_of(session.namespace, 2)
    (space,) = memory.spaces
    space.below.put_from(prompt, PlainPages(2).memory)
    space.gate.clear()
    lookups = Lookups(session, deadline_s=10.0)
    question = lookups.ask(prompt)
    waiting = lookups.ask(prompt)
    eventually(lambda: space.asked == 1, "the first one is under way")
    question.close()
    waiting.close()
    space.gate.set()
    eventually(lambda: lookups.counts["answered"] == 1, "the one under way is answered")
    eventually(lambda: not memory.stat()["leases"], "its lease goes back")
    lookups.close()
    session.close()


def test_the_queue_is_bounded() -> None:
    session, memory = shaky_session()
    memory.spaces[0].gate.clear()
    lookups = Lookups(session, deadline_s=60.0)
    prompt = prompt_of(session.namespace, 1)
    asked = [lookups.ask(prompt) for _ in range(QUESTIONS_MAX + 2)]
    last = asked[-1].answer()
    assert last is not None
    assert last.miss is Recomputed.THROTTLED
    assert asked[0].answer() is None
    memory.spaces[0].gate.set()
    eventually(lambda: all(each.answer() is not None for each in asked), "all are answered")
    lookups.close()
    session.close()


def test_a_fault_is_a_miss_and_the_thread_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    session, memory = fake_session()
    lookups = Lookups(session, deadline_s=60.0)
    prompt = prompt_of(session.namespace, 1)
    space: Any = session.space
    real = space.lookup

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(space, "lookup", broken)
    assert answered(lookups.ask(prompt)).miss is Recomputed.STORE_DOWN
    assert lookups.counts["faults"] == 1
    monkeypatch.setattr(space, "lookup", real)
    assert answered(lookups.ask(prompt)).miss is Recomputed.ABSENT
    lookups.close()
    session.close()
    memory.close()


def test_keys_of_before_a_move_are_not_asked() -> None:
    session, _ = fake_session()
    lookups = Lookups(session, deadline_s=60.0)
    old = prompt_of(session.namespace, 2)
    session.move("reset")
    eventually(lambda: session.space is not None, "attached again")
    assert answered(lookups.ask(old)).miss is Recomputed.EPOCH
    lookups.close()
    session.close()


def test_a_breaker_that_does_not_last_stays_open_longer() -> None:
    clock = ManualClock()
    breaker = Breaker(clock.now_s)
    clock.advance(LASTED_S)
    breaker.trip()
    assert breaker.probe_in() == 0.0  # at once: it may have been one slow answer
    breaker.probed(answered=False)
    assert breaker.probe_in() == HOLD_S
    breaker.probed(answered=True)
    assert breaker.probe_in() is None
    waits = []
    for _ in range(9):
        breaker.trip()
        breaker.trip()
        wait_s = breaker.probe_in()
        assert wait_s is not None
        waits.append(wait_s)
        breaker.probed(answered=True)
    assert waits == sorted(waits)
    assert waits[0] == 2 * HOLD_S
    assert waits[-1] == 30.0
    assert breaker.openings == 10
    clock.advance(LASTED_S)
    breaker.trip()
    assert breaker.probe_in() == 0.0


@pytest.mark.parametrize("fault", ["stall", "dead"])
def test_a_real_node_that_goes_silent_and_comes_back(
    node: LocalNode, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups_module, "LATE_S", 0.1)
    listen = f"unix:{node.path}.proxy"
    with FaultProxy(f"unix:{node.path}", listen) as proxy, keepwarm.connect(listen) as memory:
        session = session_on(memory)
        lookups = Lookups(session, deadline_s=0.2)
        prompt = prompt_of(session.namespace, 4)
        space = session.space
        assert space is not None
        space.put_from(prompt[:2], bytes(2 * 4096), deadline_s=30.0)
        assert answered(lookups.ask(prompt)).prefix == 2
        if fault == "stall":
            proxy.set(Towards.CLIENT, stall=True)
        else:
            proxy.refuse()
            proxy.drop()
        why = answered(lookups.ask(prompt)).miss
        assert why in (Recomputed.DEADLINE, Recomputed.STORE_DOWN)
        assert lookups.breaker.open
        assert lookups.ask(prompt).answer() is not None
        proxy.clear()
        eventually(lambda: not lookups.breaker.open, "the breaker closes by itself")
        eventually(lambda: answered(lookups.ask(prompt)).prefix == 2, "and hits are back")
        lookups.close()
        session.close()
    eventually(lambda: not threads_of_ours(), "no thread is left")
