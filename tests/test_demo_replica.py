"""A replica of the demo sees bytes that did not land, even where the right ones lay before."""

from __future__ import annotations

from typing import Any

import pytest
from keepwarm import Outcome, Status
from keepwarm.demo import replica
from keepwarm.demo.replica import Replica
from nodes import LocalNode

TURN = {"turn": 0, "session": 0, "input_tokens": 64 * 4 + 1, "block_ids": [1, 2, 3, 4, 5]}


def replica_of(node: LocalNode) -> Replica:
    settings = {"address": str(node.path), "block_bytes": 4096, "block_tokens": 64}
    return Replica(settings | {"blocks_max": 8, "deadline_s": 30.0})


def lands_nothing(keys: bytes, *_: Any, **__: Any) -> list[Outcome]:
    return [Outcome(Status.OK)] * (len(keys) // 16)


def test_a_turn_verifies_what_landed_in_it(node: LocalNode) -> None:
    one = replica_of(node)
    first, second = one.turn(TURN), one.turn(TURN)
    assert first["bytes_verified"] == 0
    assert (second["bytes_verified"], second["wrong_bytes"]) == (4 * 4096, 0)
    one.space.get_into = lands_nothing  # type: ignore[assignment,method-assign]
    assert one.turn(TURN)["wrong_bytes"] > 4 * 4000
    one.memory.close()


def test_the_probe_verifies_what_landed_in_it(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "PROBE_BLOCKS", 4)
    monkeypatch.setattr(replica, "PROBE_ROUNDS", 1)
    one = replica_of(node)
    assert one.probe()["wrong_bytes"] == 0
    one.space.drop(deadline_s=30)
    one.space.get_into = lands_nothing  # type: ignore[assignment,method-assign]
    assert one.probe()["wrong_bytes"] > 0
    one.memory.close()
