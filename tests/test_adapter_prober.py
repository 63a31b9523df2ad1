"""Probes: three at connect, and then only while nothing is restored."""

from __future__ import annotations

import itertools
from typing import Any, cast

import keepwarm
from adapters import PlainPages, fake_session, prompt_of, threads_of_ours
from keepwarm.adapter.prober import BLOCK_BYTES, BLOCKS, Prober, blocks_for
from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import Settings
from keepwarm.adapter.transfers import Job, Transfers
from keepwarm.planner import COLD_SAMPLES, Planner
from keepwarm.testing import FaultProxy, ManualClock, Towards, eventually
from nodes import FIELDS, LocalNode

TOKENS, TOKEN_S = 16, 5e-4  # of a block, of a token: 8 ms to compute what 4 KiB say
LOADS = 32


def probes(planner: Planner) -> float:
    return planner.figures()["probes"]


def test_three_at_connect_and_more_only_when_wanted() -> None:
    session, memory = fake_session()
    planner = Planner()
    # On a clock of its own a probe takes no time: on a busy machine the next one is far away.
    prober = Prober(session, planner, look_s=0.001, clock=ManualClock().now_s)
    eventually(lambda: probes(planner) == 3, "three probes at connect")
    rate = planner.rate("dram", BLOCKS * BLOCK_BYTES)
    assert rate is not None
    assert rate > 1e6
    reads = memory.stat()["reads"]
    question = [planner.plan("a", 0, ["dram"], 1, 1)]
    assert not planner.stopped, "nothing is known of prefill"
    assert question[0].why == "unmeasured"
    assert memory.stat()["reads"] == reads
    planner.stopped = True
    eventually(lambda: probes(planner) > 3, "probes while nothing is restored")
    prober.close()
    session.close()
    assert not threads_of_ours()


def test_a_node_that_takes_no_puts_is_not_asked_for_ever() -> None:
    session, memory = fake_session()
    memory.faults.full = True
    planner = Planner()
    prober = Prober(session, planner, look_s=0.001)
    eventually(lambda: prober._first_left == 0, "it gives up")
    assert probes(planner) == 0
    prober.close()
    session.close()


def test_a_node_that_comes_late_is_probed_then() -> None:
    session, memory = fake_session()
    memory.faults.dead = True
    planner = Planner()
    prober = Prober(session, planner, look_s=0.001)
    looks = itertools.count()
    eventually(lambda: next(looks) > 20, "some looks")
    assert probes(planner) == 0
    memory.faults.dead = False
    eventually(lambda: probes(planner) == 3, "three probes once it is there")
    prober.close()
    session.close()


def test_with_a_fixed_mode_nothing_is_probed() -> None:
    session, _ = fake_session()
    prober = Prober(session, Planner(mode="always"))
    assert "keepwarm-prober" not in threads_of_ours()
    prober.close()
    session.close()


def test_probes_get_shorter_where_the_way_is_slow() -> None:
    assert blocks_for(10e9) == BLOCKS
    assert blocks_for(40e6) == 12
    assert blocks_for(1e6) == blocks_for(1.0) == 1


def test_a_slowed_node_is_left_alone_and_taken_up_again(node: LocalNode) -> None:
    """The whole on a real node: the proxy lets 0.1 MB a second through, and then all again."""
    listen = f"unix:{node.path}.proxy"
    with FaultProxy(f"unix:{node.path}", listen) as proxy:
        session = Session(Settings(address=listen), cast(Any, FIELDS), retry_s=0.01)
        eventually(lambda: session.problem is None, "joins")
        planner = Planner()
        transfers = Transfers(session, load_threads=1, store_threads=1, loads_max=4, stores_max=4)
        prompt = prompt_of(session.namespace, LOADS)
        assert transfers.store(Job("s", prompt, PlainPages(LOADS), deadline_s=60.0))
        eventually(lambda: not transfers.backlog(False), "stored")
        transfers.finished()
        for _ in range(COLD_SAMPLES):
            planner.prefill_step(0, LOADS * TOKENS, LOADS * TOKENS * TOKEN_S)
        prober = Prober(session, planner, look_s=0.005)
        eventually(lambda: probes(planner) >= 3, "the cold start's probes")

        def restore() -> int:
            """One request: what the planner chose, loaded; returns the blocks it chose."""
            plan = planner.plan("r", 0, ["dram"] * LOADS, TOKENS, 4096)
            if plan.blocks:
                pages = PlainPages(LOADS, step_blocks=LOADS)
                transfers.load(Job("l", prompt[: plan.blocks], pages, deadline_s=0.5))
                eventually(lambda: not transfers.backlog(True), "the load ends")
                (done,) = transfers.finished()
                landed = sum(each.status is keepwarm.Status.OK for each in done.outcomes)
                if landed == plan.blocks:
                    planner.restored("dram", done.bytes, done.seconds)
                planner.outcome("r", landed, done.seconds)
                session.failed.clear()
            return plan.blocks

        # 128 KiB: about a millisecond, against a quarter of a second of computing.
        assert [restore() for _ in range(3)] == [LOADS] * 3
        proxy.set(Towards.CLIENT, bytes_per_s=1e5)  # now 1.3 s, and the deadline before it
        chosen = [restore() for _ in range(12)]
        assert chosen.count(LOADS) <= 4, chosen
        assert chosen[-4:] == [0] * 4, chosen
        assert planner.stopped
        proxy.clear()
        # A probe that met the slow node took its 0.1 s; the next one waits a hundred times that.
        eventually(lambda: restore() == LOADS, "restores again", 30.0)
        for part in (prober, transfers, session):
            part.close()
    eventually(lambda: not threads_of_ours(), "no thread is left")
