"""Routers, queues, links and the planner, with seconds that are added up beside them."""

from __future__ import annotations

import pytest
from keepwarm.workload.simulate import Level, Router
from simulated import Listed, costs, hits, run

DEVICE = Level(tier="device", capacity_blocks=9, policy="lru")
DRAM = Level(tier="dram", capacity_blocks=18, policy="lru")


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        ("round-robin", [0, 0]),  # each to another replica: the second finds nothing there
        ("sticky", [0, 2]),  # one session: the same replica
        ("prefix-hash", [0, 2]),  # the same first block: the same replica
        ("kv-aware", [0, 2]),  # nobody waits at 100 s: where the prefix is, one token is computed
    ],
)
def test_two_lines_with_every_router(router: Router, expected: list[int]) -> None:
    trace = Listed(["AB", "AB"], times_s=[0, 100], sessions=[7, 7])
    result = run(trace, DEVICE, replicas=2, router=router, costs=costs())
    assert hits(result, "device") == expected
    # A prompt of 8 tokens takes 8 s; one that is all there takes its last token's second.
    assert result.ttft_s.tolist() == [8.0, 1.0 if expected[1] else 8.0]
    assert len(set(result.replica.tolist())) == (2 if router == "round-robin" else 1)


@pytest.mark.parametrize("router", ["round-robin", "sticky", "prefix-hash", "kv-aware"])
def test_shared_memory_makes_up_for_any_router(router: Router) -> None:
    trace = Listed(["AB", "AB"], times_s=[0, 100], sessions=[7, 8])
    result = run(trace, DRAM, replicas=2, router=router, costs=costs())
    assert hits(result, "dram") == [0, 2]
    local = run(trace, DRAM, replicas=2, router=router, costs=costs(), shared=False)
    same = local.replica[0] == local.replica[1]
    assert hits(local, "dram") == [0, 2 if same else 0]


def test_kv_aware_weighs_the_queue_against_the_prefix() -> None:
    """The first prompt keeps replica 0 busy until 8. At 1.5 its queue is 6.5 s: with one token's
    second behind it, 7.5 s, sooner than the other replica's 8 s. At 0.5 it would be 8.5 s: there
    the other replica is sooner, though it has to compute all of it.
    """
    for second_s, replica in ((1.5, 0), (0.5, 1)):
        trace = Listed(["AB", "AB"], times_s=[0, second_s])
        result = run(trace, DEVICE, replicas=2, router="kv-aware", costs=costs())
        assert result.replica.tolist() == [0, replica]
        assert hits(result) == [0, 2 if replica == 0 else 0]
    # At 1.0 both promise 8 s: the one that has computed less.
    trace = Listed(["AB", "AB"], times_s=[0, 1.0])
    result = run(trace, DEVICE, replicas=2, router="kv-aware", costs=costs())
    assert result.replica.tolist() == [0, 1]


def test_sessions_and_prefixes_stay_together_and_spread() -> None:
    sessions = [1 + number % 40 for number in range(400)]
    trace = Listed([[1000 + each, 5] for each in sessions], sessions=sessions)
    for router, prefix_blocks in (("sticky", None), ("prefix-hash", 1)):
        result = run(trace, DEVICE, replicas=4, router=router, prefix_blocks=prefix_blocks)
        of_session: dict[int, set[int]] = {}
        for session, replica in zip(sessions, result.replica.tolist(), strict=True):
            of_session.setdefault(session, set()).add(replica)
        assert all(len(replicas) == 1 for replicas in of_session.values())
        assert set(result.replica.tolist()) == {0, 1, 2, 3}
    # Requests of no session, or of no block, go round.
    unknown = Listed(["A", "B", "C", "D"], sessions=[0] * 4)
    assert run(unknown, DEVICE, replicas=2, router="sticky").replica.tolist() == [0, 1, 0, 1]
    empty = Listed([""] * 3, tokens=[5] * 3)
    assert run(empty, DEVICE, replicas=2, router="prefix-hash").replica.tolist() == [0, 1, 0]


def test_restore_then_queue_then_prefill() -> None:
    """Prefill takes a second a token; dram gives 4 bytes, so 4 tokens, a second after half a one.

    The first prompt computes 8 tokens, from 0 to 8. The second, at 1, has its 8 tokens at
    1 + 0.5 + 2 = 3.5, waits until 8, and computes its last token: 9, which is 8 s after 1.
    """
    trace = Listed(["AB", "AB"], times_s=[0, 1])
    result = run(trace, DRAM, costs=costs(dram=(0.5, 4.0)))
    assert result.restore_s.tolist() == [0.0, 2.5]
    assert result.wait_s.tolist() == [0.0, 4.5]
    assert result.prefill_s.tolist() == [8.0, 1.0]
    assert result.ttft_s.tolist() == [8.0, 8.0]
    assert result.gpu_seconds() == {"spent": 9.0, "without": 16.0, "saved": 7.0}


def test_who_waits_for_blocks_holds_up_no_other() -> None:
    """AB is in dram, and slow: 8 tokens at 1 a second. Asked for at 10 its blocks are there at 18.
    C, at 11, finds the replica idle and is done at 15; then AB's last token, from 18 on.
    """
    trace = Listed(["AB", "AB", "C"], times_s=[0, 10, 11])
    result = run(trace, DRAM, costs=costs(dram=(0.0, 1.0)))
    assert result.wait_s.tolist() == [0.0, 0.0, 0.0]
    assert result.ttft_s.tolist() == [8.0, 9.0, 4.0]


def test_a_later_one_that_is_ready_sooner_goes_first_and_is_waited_for() -> None:
    """As above, but C has 8 tokens and comes at 17: it runs from 17 to 25, and AB, ready at 18,
    waits 7 s for it."""
    trace = Listed(["AB", "AB", "CD"], times_s=[0, 10, 17])
    result = run(trace, DRAM, costs=costs(dram=(0.0, 1.0)))
    assert result.wait_s.tolist() == [0.0, 7.0, 0.0]
    assert result.ttft_s.tolist() == [8.0, 16.0, 8.0]


def test_replicas_share_the_link_of_a_shared_memory() -> None:
    """At 0, the first is computed and stored. Two replicas ask for its 8 bytes at 10: at 4 bytes a
    second, after half a second, they are there at 12.5 for the first and, as the wire is free at
    12, at 14.5 for the second. With links of their own both have them at 12.5."""
    prompts, times_s = ["AB", "AB", "AB", "AB"], [0.0, 0.0, 10.0, 10.0]
    rates = costs(dram=(0.5, 4.0))
    shared = run(Listed(prompts, times_s=times_s), DRAM, replicas=2, costs=rates)
    # The second request of all, at 0, finds what the first has stored, and is alone on the wire.
    assert shared.restore_s.tolist() == [0.0, 2.5, 2.5, 4.5]
    local = run(Listed(prompts, times_s=times_s), DRAM, replicas=2, costs=rates, shared=False)
    assert local.restore_s.tolist() == [0.0, 0.0, 2.5, 2.5]


def test_a_token_costs_more_the_later_it_stands() -> None:
    """A second each, and half a second for each token before it: 8 tokens take 8 + 28/2 = 22 s.
    Behind 4 that are there, tokens 4..7 take 4 + (4+5+6+7)/2 = 15 s."""
    trace = Listed(["AB", "AC"], times_s=[0, 50])
    result = run(trace, DEVICE, costs=costs(1.0, 0.5))
    assert result.prefill_s.tolist() == [22.0, 15.0]
    assert result.gpu_seconds() == {"spent": 37.0, "without": 44.0, "saved": 7.0}


def test_the_planner_restores_what_is_faster_and_computes_the_rest() -> None:
    """A second prompt finds A in host, at 400 tokens a second, and B in dram, at 1 a second. To
    compute a token takes 0.1 s: A is restored in 0.01 s rather than computed in 0.4 s; B would
    take 4 s: it is computed in 0.4 s."""
    trace = Listed(["AB", "AB"], times_s=[0, 10])
    host = Level(tier="host", capacity_blocks=1, policy="lru")
    rates = costs(0.1, host=(0.0, 400.0), dram=(0.0, 1.0))
    eager = run(trace, host, DRAM, costs=rates)
    assert (hits(eager, "host"), hits(eager, "dram")) == ([0, 1], [0, 1])
    assert eager.ttft_s.tolist() == pytest.approx([0.8, 4.1])
    planned = run(trace, host, DRAM, costs=rates, planned=True)
    assert (hits(planned, "host"), hits(planned, "dram")) == ([0, 1], [0, 0])
    assert planned.ttft_s.tolist() == pytest.approx([0.8, 0.41])
    assert planned.recomputed_tokens.tolist() == [8, 4]


def test_how_busy_replicas_are() -> None:
    """Two prompts of 8 s within the 10 s that one replica has, and the 20 s that two have."""
    for replicas, busy in ((1, 1.6), (2, 0.8)):
        trace = Listed(["AB", "CD"], times_s=[0, 10])
        assert run(trace, DEVICE, replicas=replicas, costs=costs()).busy() == busy
    assert run(Listed(["AB", "CD"]), DEVICE, costs=costs()).busy() is None
    assert run(Listed(["AB"], times_s=[5]), DEVICE).busy() is None


def test_quantiles_are_values_that_occurred() -> None:
    trace = Listed(["A"] * 10, times_s=[100.0 * number for number in range(10)])
    found = run(trace, DEVICE, costs=costs()).to_json()
    # One cold prompt of 4 s, nine of 1 s.
    assert found["ttft_s"] == {"mean": 1.3, "p50": 1.0, "p90": 1.0, "p99": 4.0, "max": 4.0}


def test_batches_change_nothing() -> None:
    prompts = [[number % 7, 100 + number % 3, number] for number in range(200)]
    times_s = [number / 10 for number in range(200)]
    whole, parts = (
        run(
            Listed(prompts, times_s=times_s, batch=batch),
            DEVICE,
            DRAM,
            replicas=3,
            router="kv-aware",
            costs=costs(0.01, dram=(0.01, 50.0)),
        ).to_json()
        for batch in (1000, 7)
    )
    assert whole == parts
