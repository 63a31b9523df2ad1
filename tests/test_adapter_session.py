"""A session finds its node in the background, says what is wrong, and moves when it must."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, cast

import keepwarm
import pytest
from adapters import fake_session, prompt_of, session_on, threads_of_ours
from keepwarm import AttachError, ConfigError, IdentityError, NodeError
from keepwarm.adapter.lookups import Lookups
from keepwarm.adapter.reasons import Recomputed
from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import Settings
from keepwarm.testing import FakeMemory, eventually
from nodes import FIELDS, LocalNode
from test_fork import in_child

FAST_S = 0.01


def session_with(connect: Any, **settings: Any) -> Session:
    return Session(Settings(**settings), cast(Any, FIELDS), connect=connect, retry_s=FAST_S)


def test_construction_asks_nobody_and_waits_for_nobody() -> None:
    let_go = threading.Event()

    def connect(*_: Any, **__: Any) -> Any:
        let_go.wait(10.0)
        raise NodeError("the node at unix:/x does not answer")

    session = session_with(connect)
    assert session.space is None
    assert session.namespace.tenant == "default"
    assert session.unready() is Recomputed.STORE_DOWN
    began = time.monotonic()
    session.close(within_s=0.05)
    assert time.monotonic() - began < 5.0
    let_go.set()
    eventually(lambda: not threads_of_ours(), "the thread ends")


def test_what_cannot_be_right_refuses_at_construction(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="weights"):
        Session(Settings(), cast(Any, {**FIELDS, "weights": None}))
    with pytest.raises(ConfigError, match="address"):
        session_with(None, address="nonsense:")
    with pytest.raises(ConfigError, match="credentials"):
        session_with(None, credentials=str(tmp_path / "none"))
    assert not threads_of_ours()


def test_a_node_that_comes_later_is_joined(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keepwarm.adapter")
    address = f"unix:{folder / 'node.sock'}"
    session = session_with(keepwarm.connect, address=address)
    eventually(lambda: session.space is not None, "attached, though nobody is there")
    eventually(lambda: (session.problem or "").startswith("the node is down"), "and says so")
    local = LocalNode(folder)
    eventually(lambda: session.problem is None, "joins")
    local.close()
    space = session.space
    assert space is not None
    space.lookup(bytes(16))  # who asks finds out
    eventually(lambda: session.problem is not None, "notices that it is gone")
    session.close()
    said = [record.getMessage() for record in caplog.records]
    assert sum("nothing is restored" in text for text in said) <= 4, said
    assert any("joined" in text for text in said)
    assert not threads_of_ours()


def test_refusals_are_problems_and_end_by_themselves() -> None:
    memory, refusals = FakeMemory(), [NodeError("certificate of another CA")] * 2

    def connect(*_: Any, **__: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return memory

    session = session_with(connect)
    eventually(lambda: session.problem is None, "joins after refusals")
    assert not session.refused
    session.close()

    class Refusing(FakeMemory):
        def attach(self, *_: Any, **__: Any) -> Any:
            raise AttachError("kv_dtype differs")

    session = session_with(lambda *_, **__: Refusing())
    eventually(lambda: session.refused, "is refused")
    assert session.problem == "kv_dtype differs"
    lookups = Lookups(session, deadline_s=1.0)
    answer = lookups.ask(prompt_of(session.namespace, 2)).answer()
    assert answer is not None
    assert answer.miss is Recomputed.IDENTITY
    lookups.close()
    session.close()


def test_a_fault_of_our_own_is_a_problem_too() -> None:
    def connect(*_: Any, **__: Any) -> Any:
        raise RuntimeError("boom")

    session = session_with(connect)
    eventually(lambda: session.problem == "RuntimeError: boom", "it is told")
    session.close()


def test_a_move_is_to_a_namespace_of_its_own() -> None:
    session, memory = fake_session(epoch=3)
    first = session.now
    other = session_on(memory, epoch=3)
    name = session.move("the weights were updated")
    assert session.generation == first.generation + 1
    assert session.namespace != first.namespace
    assert session.namespace.differences(first.namespace) != []
    eventually(lambda: session.space is not None, "attaches again")
    assert session.space_of(first.generation) is None
    assert session.moves == ["the weights were updated"]
    # A second process of the same engine goes along.
    assert other.move("told by the first", name, session.generation) == name
    assert other.namespace == session.namespace
    assert other.generation == session.generation
    session.close()
    other.close()


def test_every_move_is_to_another_one() -> None:
    session, _ = fake_session()
    seen = {session.namespace.fingerprint}
    for number in range(5):
        session.move(f"reset {number}")
        seen.add(session.namespace.fingerprint)
    assert len(seen) == 6
    session.close()


def test_a_forked_child_starts_anew(node: LocalNode) -> None:
    session = Session(Settings(address=f"unix:{node.path}"), cast(Any, FIELDS), retry_s=FAST_S)
    lookups = Lookups(session, deadline_s=5.0)
    eventually(lambda: session.problem is None, "joins")
    prompt = prompt_of(session.namespace, 2)

    def child() -> None:
        assert not threads_of_ours()
        question = lookups.ask(prompt)
        eventually(lambda: question.answer() is not None, "the child's question is answered")
        answer = question.answer()
        assert answer is not None
        assert answer.miss is Recomputed.ABSENT
        lookups.close()
        session.close()

    in_child(child)
    question = lookups.ask(prompt)
    eventually(lambda: question.answer() is not None, "and the parent's")
    lookups.close()
    session.close()
    eventually(lambda: not threads_of_ours(), f"no thread is left: {threads_of_ours()}")
