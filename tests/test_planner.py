"""Restore or recompute, on a virtual clock."""

from __future__ import annotations

from keepwarm.planner import Planner

MIB = 1 << 20


def test_nothing_known_restores_and_modes_decide_alone() -> None:
    assert Planner().plan("a", 0, ["dram"] * 4, 16, MIB).blocks == 4
    assert Planner(mode="always").plan("a", 0, ["dram"] * 4, 16, MIB).blocks == 4
    assert Planner(mode="off").plan("a", 0, ["dram"] * 4, 16, MIB).blocks == 0
    assert Planner().plan("a", 0, [], 16, MIB).blocks == 0


def test_a_fast_store_is_used_and_a_slow_one_is_not() -> None:
    for rate, blocks in ((1e9, 8), (1e6, 0)):
        planner = Planner()
        for _ in range(6):
            planner.prefill_step(0, 1024, 0.5)
            planner.restored("dram", 8 * MIB, 8 * MIB / rate)
        plan = planner.plan("a", 0, ["dram"] * 8, 128, MIB)
        assert plan.blocks == blocks
        assert abs(plan.predicted_recompute_s - 0.5) < 0.01
