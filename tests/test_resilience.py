"""A node that is absent, stopped, restarted or of another mind is an outcome, and no more."""

from __future__ import annotations

import time
from pathlib import Path

import keepwarm
import pytest
from keepwarm import EpochOutcome, NodeError, Outcome, Reason, Reported, Status
from nodes import CAPACITY_BYTES, LocalNode, eventually, keys_of, make

DOWN = Outcome(Status.MISS, Reason.STORE_DOWN)


def test_a_node_that_is_not_there_yet(folder: Path) -> None:
    names = make()
    keys = keys_of(names, 2)
    with keepwarm.connect(folder / "node.sock") as memory:
        assert memory.health()["state"] == "down"
        space = memory.attach(names, epoch=4)
        assert not space.joined
        assert space.get_into(keys, bytearray(2)) == [DOWN] * 2
        assert space.put_from(keys, b"ab") == [Outcome(Status.SHED, Reason.STORE_DOWN)] * 2
        with space.lookup(keys) as found:
            assert (found.prefix, found.miss) == (0, Reason.STORE_DOWN)
            assert found.hits == [False, False]
            assert found.incarnation == 0
        assert space.touch(keys) == 0
        assert space.renew(7) is False
        space.release(7)
        assert space.report(keys[:16], 1) is Reported.NOT_REACHED
        assert space.bump_epoch(5) is EpochOutcome.NOT_REACHED
        for call in (lambda: space.drop(), lambda: space.subscribe(), lambda: memory.stat()):
            with pytest.raises(
                NodeError, match=r"not done: store_down; memory\.health\(\) says why"
            ):
                call()
        local = LocalNode(folder)
        try:
            eventually(lambda: memory.health()["state"] == "up")
            assert space.put_from(keys, b"ab")[0].status is Status.STORED
            assert space.joined
            assert space.epoch == 5
        finally:
            local.close()


def test_a_node_that_goes_and_comes_back_empty(folder: Path) -> None:
    names = make()
    keys = keys_of(names, 2)
    local = LocalNode(folder)
    with local.connect() as memory:
        space = memory.attach(names)
        space.put_from(keys, b"ab")
        lost = space.lookup(keys, lease_s=10)
        local.close()
        began = time.monotonic()
        assert {o.status for o in space.get_into(keys, bytearray(2))} == {Status.MISS}
        assert time.monotonic() - began < 2.0
        local = LocalNode(folder)
        try:
            eventually(lambda: memory.health()["state"] == "up")
            eventually(lambda: space.lookup(keys, lease_s=None).miss is Reason.ABSENT)
            assert not space.renew(lost)
            assert space.put_from(keys, b"ab")[0].status is Status.STORED
            landed = bytearray(2)
            assert space.get_into(keys, landed)[1].status is Status.OK
            assert landed == b"ab"
            assert memory.counts()["reconnects"] >= 1
        finally:
            local.close()


def test_a_refusal_names_the_difference(folder: Path) -> None:
    secret, other = folder / "secret", folder / "other"
    for file, digits in ((secret, "ab"), (other, "cd")):
        file.write_text(digits * 32)
        file.chmod(0o600)
    tenants = [("t", str(secret), None, None, None, None)]
    local = LocalNode(folder, tenants=tenants)
    try:
        with local.connect() as memory:
            memory.attach(make(secret, tenant="t"))
            with pytest.raises(keepwarm.AttachError, match=r"tenant t .*different secrets"):
                memory.attach(make(other, tenant="t"))
            with pytest.raises(keepwarm.AttachError, match="tenant u is unknown here"):
                memory.attach(make(secret, tenant="u"))
    finally:
        local.close()


def test_a_refusal_at_rejoin_is_a_miss_that_says_why(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    names = make(secret, tenant="t")
    keys = keys_of(names, 1)
    with keepwarm.connect(folder / "node.sock") as memory:
        space = memory.attach(names)
        local = LocalNode(folder)  # which knows no tenant t
        try:
            eventually(lambda: memory.health()["state"] == "up")
            eventually(lambda: space.lookup(keys).miss is Reason.IDENTITY)
            assert space.get_into(keys, bytearray(1)) == [Outcome(Status.MISS, Reason.IDENTITY)]
            assert space.put_from(keys, b"a") == [Outcome(Status.SHED, Reason.IDENTITY)]
            assert space.problem is not None
            assert "tenant t is unknown here" in space.problem
        finally:
            local.close()


def test_tenants_have_quotas_and_times_to_live(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    tenants = {"t": keepwarm.config.Tenant(secret=secret, quota="1MiB", ttl="1h")}
    with keepwarm.open(CAPACITY_BYTES, tenants=tenants, populate=False) as memory:
        names = make(secret, tenant="t")
        space, keys = memory.attach(names), keys_of(names, 32)
        space.put_from(keys, bytes(32 * 65536))
        stat = memory.stat()["tenants"]["t"]
        assert stat["quota_bytes"] == 1 << 20
        assert stat["bytes"] <= 1 << 20
        assert stat["evicted_for_quota"] >= 16


def test_epochs_survive_a_restart(folder: Path) -> None:
    names = make()
    state = folder / "state"
    with keepwarm.open(1 << 20, state_dir=state) as memory:
        assert memory.stat()["epochs_durable"] == 1
        assert memory.attach(names).bump_epoch(6) is EpochOutcome.ACKNOWLEDGED
    with keepwarm.open(1 << 20, state_dir=state) as memory:
        space = memory.attach(names)
        assert space.lookup(keys_of(names, 1), lease_s=None).epoch == 6
