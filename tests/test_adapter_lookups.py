"""Questions about prompts: answered in time, by somebody, always."""

from __future__ import annotations

from adapters import PlainPages, fake_session, prompt_of
from keepwarm.adapter.lookups import Lookups
from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import eventually


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
