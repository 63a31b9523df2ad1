"""Loads and stores: each ends once, with what landed, and never touches memory afterwards."""

from __future__ import annotations

import pytest
from adapters import BLOCK_BYTES, PlainPages, fake_session, prompt_of
from keepwarm import Outcome, Reason, Status
from keepwarm.adapter.session import Session
from keepwarm.adapter.transfers import Done, Job, Transfers
from keepwarm.testing import eventually

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
