"""Loads and stores: each ends once, with what landed, and never touches memory afterwards."""

from __future__ import annotations

import pytest
from adapters import BLOCK_BYTES, PlainPages, fake_session, prompt_of, session_on, shaky_session
from keepwarm import Outcome, Reason, Status
from keepwarm.adapter.session import Session
from keepwarm.adapter.transfers import Done, Job, Transfers
from keepwarm.testing import ManualClock, eventually
from nodes import LocalNode
from test_fork import in_child

OK, STORED = Outcome(Status.OK), Outcome(Status.STORED)


def transfers_on(session: Session, jobs_max: int = 8) -> Transfers:
    return Transfers(
        session, load_threads=2, store_threads=1, loads_max=jobs_max, stores_max=jobs_max
    )


def ended(transfers: Transfers, count: int) -> list[Done]:
    done: list[Done] = []

    def all_there() -> bool:
        done.extend(transfers.finished())
        return len(done) >= count

    eventually(all_there, f"{count} jobs end")
    assert len(done) == count
    return done


def test_what_is_stored_is_loaded() -> None:
    session, memory = fake_session()
    transfers = transfers_on(session)
    prompt = prompt_of(session.namespace, 5)
    data = bytes(at % 251 for at in range(5 * BLOCK_BYTES))
    store, load = PlainPages(5, data=data), PlainPages(5)
    assert transfers.store(Job("s", prompt, store))
    (done,) = ended(transfers, 1)
    assert (done.id, done.load, done.bytes) == ("s", False, 5 * BLOCK_BYTES)
    assert list(done.outcomes) == [STORED] * 5
    assert store.calls == ["gather 0+2", "gather 2+2", "gather 4+1"]
    assert transfers.load(Job("l", prompt, load))
    (done,) = ended(transfers, 1)
    assert list(done.outcomes) == [OK] * 5
    assert load.memory == data
    assert load.landed_blocks == set(range(5))
    transfers.close()
    session.close()
    assert memory.node.counts["stored"] == 5


def test_partial_success_and_the_rest_with_its_reason() -> None:
    session, memory = fake_session()
    transfers = transfers_on(session)
    prompt = prompt_of(session.namespace, 4)
    transfers.store(Job(1, prompt[:2], PlainPages(2)))
    ended(transfers, 1)
    transfers.load(Job(2, prompt, PlainPages(4)))
    (done,) = ended(transfers, 1)
    assert list(done.outcomes) == [OK, OK, *[Outcome(Status.MISS, Reason.ABSENT)] * 2]
    assert session.failed.reason(prompt.keys[32:48]) == "absent"
    transfers.store(Job(3, prompt, PlainPages(4)))
    ended(transfers, 1)
    assert session.failed.reason(prompt.keys[32:48]) is None
    memory.faults.dead = True
    transfers.load(Job(4, prompt, PlainPages(4)))
    (done,) = ended(transfers, 1)
    assert list(done.outcomes) == [Outcome(Status.MISS, Reason.STORE_DOWN)] * 4
    transfers.close()
    session.close()


@pytest.mark.parametrize("load", [True, False])
def test_an_older_generation_is_shed(load: bool) -> None:
    session, _ = fake_session()
    transfers = transfers_on(session)
    prompt = prompt_of(session.namespace, 2)
    session.move("weights changed")
    job = Job(1, prompt, PlainPages(2))
    assert transfers.load(job) if load else transfers.store(job)
    (done,) = ended(transfers, 1)
    status = Status.MISS if load else Status.SHED
    assert list(done.outcomes) == [Outcome(status, Reason.EPOCH)] * 2
    transfers.close()
    session.close()


def test_drain_ends_everything() -> None:
    session, _ = fake_session()
    transfers = transfers_on(session)
    prompt = prompt_of(session.namespace, 2)
    for at in range(4):
        assert transfers.store(Job(at, prompt, PlainPages(2)))
    assert {done.id for done in transfers.drain(1.0)} == {0, 1, 2, 3}
    assert transfers.finished() == []
    transfers.close()
    assert not transfers.load(Job(9, prompt, PlainPages(2)))
    session.close()


def test_the_backlog_is_bounded_and_loads_do_not_wait_for_stores() -> None:
    session, memory = shaky_session()
    (space,) = memory.spaces
    space.gate.clear()
    transfers = transfers_on(session, jobs_max=3)
    prompt = prompt_of(session.namespace, 2)
    stores = [transfers.store(Job(at, prompt, PlainPages(2), deadline_s=60.0)) for at in range(5)]
    loads = [transfers.load(Job(at, prompt, PlainPages(2), deadline_s=60.0)) for at in range(5)]
    assert stores == loads == [True] * 3 + [False] * 2
    assert transfers.counts["loads_refused"] == transfers.counts["stores_refused"] == 2
    assert not transfers.load(Job(1, prompt, PlainPages(2))), "an id that is under way"
    space.gate.set()
    assert len(ended(transfers, 6)) == 6
    assert transfers.load(Job(1, prompt, PlainPages(2)))
    ended(transfers, 1)
    transfers.close()
    session.close()


@pytest.mark.parametrize("load", [True, False])
def test_who_waits_too_long_ends_without_a_thread(load: bool) -> None:
    clock = ManualClock()
    session, memory = shaky_session()
    (space,) = memory.spaces
    woken: list[int] = []
    transfers = Transfers(
        session,
        load_threads=1,
        store_threads=1,
        loads_max=8,
        stores_max=8,
        wake=lambda: woken.append(1),
        clock=clock.now_s,
    )
    space.gate.clear()
    prompt = prompt_of(session.namespace, 2)
    submit = transfers.load if load else transfers.store
    first = PlainPages(2)
    assert submit(Job("runs", prompt, first, deadline_s=60.0))
    eventually(lambda: bool(space.busy), "the first one hangs")
    assert submit(Job("waits", prompt, PlainPages(2), deadline_s=0.5))
    assert submit(Job("cancelled", prompt, PlainPages(2), deadline_s=60.0))
    assert transfers.finished() == []
    clock.advance(0.6)
    transfers.cancel("cancelled")
    done = {each.id: each for each in transfers.finished()}
    space.gate.set()
    assert set(done) == {"waits", "cancelled"}
    status = Status.MISS if load else Status.SHED
    assert list(done["waits"].outcomes) == [Outcome(status, Reason.DEADLINE)] * 2
    assert (done["waits"].seconds, done["waits"].bytes) == (0.0, 0)
    assert abs(done["waits"].queued_s - 0.6) < 1e-9
    assert bool(session.failed) is load, "a load that came too late is not promised again at once"
    ended(transfers, 1)
    assert len(woken) == 3
    transfers.close()
    session.close()


@pytest.mark.parametrize("method", ["buffers", "landed", "gather"])
def test_pages_that_raise_end_their_job_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = fake_session()
    transfers = transfers_on(session)
    prompt = prompt_of(session.namespace, 2)
    transfers.store(Job("good", prompt, PlainPages(2)))
    ended(transfers, 1)

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    pages = PlainPages(2)
    monkeypatch.setattr(pages, method, broken)
    submit = transfers.store if method == "gather" else transfers.load
    submit(Job("bad", prompt, pages))
    (done,) = ended(transfers, 1)
    assert {outcome.reason for outcome in done.outcomes} == {Reason.INVALID}
    assert transfers.counts["faults"] == 1
    session.failed.clear()
    transfers.load(Job("again", prompt, PlainPages(2)))
    (done,) = ended(transfers, 1)
    assert list(done.outcomes) == [OK] * 2
    transfers.close()
    session.close()


def test_a_forked_child_has_jobs_of_its_own(node: LocalNode) -> None:
    memory = node.connect()
    session = session_on(memory)
    transfers = transfers_on(session)
    prompt = prompt_of(session.namespace, 2)
    transfers.store(Job("s", prompt, PlainPages(2)))
    ended(transfers, 1)
    assert transfers.load(Job("parent's", prompt, PlainPages(2)))

    def child() -> None:
        assert transfers.backlog(True) == 0
        assert transfers.load(Job("child's", prompt, PlainPages(2), deadline_s=30.0))
        (done,) = ended(transfers, 1)
        assert (done.id, list(done.outcomes)) == ("child's", [OK] * 2)
        transfers.close()

    in_child(child)
    (done,) = ended(transfers, 1)
    assert done.id == "parent's"
    transfers.close()
    session.close()
