"""The scheduler's half over a fake memory: bounded holds, one decision, stores and their fence."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from adapters import fake_session
from keepwarm.adapter.reasons import Recomputed
from keepwarm.connectors.vllm.direct.metadata import Moved, Report
from keepwarm.connectors.vllm.direct.requests import Tracked
from keepwarm.connectors.vllm.direct.scheduler import ANSWER_S, NEVER, Scheduler
from keepwarm.testing import ManualClock, eventually

from engine.harness import EngineLog

TOKENS, BYTES = 4, 4096
BLOCKS = 3


class Asking:
    """A scheduler's half, and requests as vLLM has them."""

    def __init__(self) -> None:
        self.session, self.memory = fake_session(planner="always")
        self.clock = ManualClock()
        self.half = Scheduler(
            self.session.settings,
            self.session,
            block_tokens=TOKENS,
            block_bytes=BYTES,
            ranks=1,
            clock=self.clock.now_s,
        )
        self.half.prober.close()  # the fake is made for one thread at a time

    def request(self, name: str = "r", blocks: int = BLOCKS, **more: Any) -> Any:
        facts = {
            "request_id": name,
            "num_tokens": blocks * TOKENS + 1,
            "num_prompt_tokens": blocks * TOKENS + 1,
            "num_computed_tokens": 0,
            "num_preemptions": 0,
            "block_hashes": [bytes([at]) * 32 for at in range(1, blocks + 1)],
            "prefill_stats": object(),
            "lora_request": None,
            "resumable": False,
            "skip_reading_prefix_cache": False,
        }
        return SimpleNamespace(**facts | more)

    def keep(self, count: int) -> None:
        """Puts the first blocks of such a request into the memory."""
        now = self.session.now
        keys = now.namespace.engine_keys(self.request().block_hashes[:count])
        assert now.space is not None
        now.space.put_from(now.namespace.place(keys), bytearray(count * BYTES))

    def answered(self, request: Any) -> None:
        question = self.half._tracked[request.request_id].question
        assert question is not None
        eventually(lambda: question.answer() is not None, "the memory answers")

    def step(self, scheduled: Any = None, new: Any = (), blocks: Any = None) -> Any:
        """What goes to the workers with a step that has these tokens and blocks."""
        cached = SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        )
        state = SimpleNamespace(get_block_ids=lambda name: (blocks[name],))
        return self.half.orders(
            SimpleNamespace(
                num_scheduled_tokens=scheduled or {},
                scheduled_new_reqs=list(new),
                scheduled_cached_reqs=cached,
                kv_cache_block_copies=None,
                kv_connector_block_state=state,
            )
        )

    def close(self) -> None:
        self.half.close()


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.close()


def output(report: Report | None = None, invalid: set[int] | None = None) -> Any:
    return SimpleNamespace(kv_connector_worker_meta=report, invalid_block_ids=invalid or set())


def test_hits_are_planned_and_ordered(asking: Asking) -> None:
    asking.keep(2)
    request = asking.request()
    asking.half.arrive(request)
    asking.answered(request)
    assert asking.half.matched(request, 0) == (2 * TOKENS, True)
    assert asking.half.matched(request, 0) == (2 * TOKENS, True)  # no free blocks yet
    asking.half.allocated(request, [7, 8, 9], 2 * TOKENS)
    assert asking.half.sources(request) == {"dram": 2 * TOKENS}
    (load,) = asking.step().loads
    assert (load.blocks, load.first_position, len(load.keys)) == ([7, 8], 0, 32)
    assert asking.step().loads == []
    assert asking.memory.stat()["leases"] == 1
    asking.half.report(output(Report(ended={load.id: 1}, loads={load.id: Moved(8192, 0.1)})))
    eventually(lambda: not asking.memory.stat()["leases"], "the lease goes back")


def test_a_failed_load_is_computed_and_not_tried_again(asking: Asking) -> None:
    asking.keep(3)
    request = asking.request()
    asking.half.arrive(request)
    asking.answered(request)
    assert asking.half.matched(request, 0) == (3 * TOKENS, True)
    asking.half.allocated(request, [7, 8, 9], 3 * TOKENS)
    (load,) = asking.step().loads
    asking.half.report(output(Report(ended={load.id: 1}), {8}))
    assert asking.half.matched(request, 0) == (0, False)
    # The first block landed; the others are stored when they have been computed.
    request.num_computed_tokens = TOKENS
    (store,) = asking.step({"r": 2 * TOKENS + 1}, blocks={"r": [7, 8, 9, 10]}).stores
    assert (store.blocks, store.first_position) == ([8, 9], 1)
    asking.half.report(output())
    request.prefill_stats = None
    asking.half.report(output())
    totals = asking.half.accounting.totals()
    assert totals.recomputed[Recomputed.LOAD_FAILED] == 3 * TOKENS
    assert totals.sums()


def test_steps_longer_than_an_answer_is_good_for_end_all_the_same(asking: Asking) -> None:
    asking.keep(2)
    request = asking.request()
    asking.half.arrive(request)
    asked = []
    for _ in range(3):
        asking.answered(request)
        asking.clock.advance(2 * ANSWER_S)
        asked.append(asking.half.matched(request, 0))
        if asked[-1][0] is not None:
            break
    assert asked == [(None, False), (2 * TOKENS, True)]


def test_a_silent_memory_holds_a_request_for_its_deadline(asking: Asking) -> None:
    request = asking.request()
    asking.half.arrive(request)
    asking.clock.advance(asking.session.settings.lookup_deadline_s)
    assert asking.half.matched(request, 0) == (0, False)


def test_blocks_written_again_cancel_their_store_and_are_stored_later(asking: Asking) -> None:
    request = asking.request()
    asking.half.arrive(request)
    asking.answered(request)
    assert asking.half.matched(request, 0) == (0, False)
    (store,) = asking.step({"r": 13}, blocks={"r": [7, 8, 9, 10]}).stores
    assert store.blocks == [7, 8, 9]
    taken = SimpleNamespace(block_ids=([8, 20],), num_computed_tokens=0)
    step = asking.step(new=[taken])
    assert step.cancelled == [store.id]
    request.num_computed_tokens = 13
    (again,) = asking.step({"r": 1}, blocks={"r": [11, 12, 13, 14]}).stores
    assert again.blocks == [11, 12, 13]


def test_what_a_request_filled_last_is_stored_unless_it_is_taken(asking: Asking) -> None:
    for name, taken, stores in (("a", [30], [[7, 8, 9]]), ("b", [9], [])):
        request = asking.request(name, num_computed_tokens=13, prefill_stats=None)
        request.num_tokens = 14
        asking.half.arrive(request)
        asking.answered(request)
        asking.half.matched(request, 0)
        asking.half.finished(request, [7, 8, 9, 10])
        new = SimpleNamespace(block_ids=(taken,), num_computed_tokens=0)
        assert [each.blocks for each in asking.step(new=[new]).stores] == stores


def test_an_aborted_load_is_cancelled_and_keeps_its_lease_until_it_ends(asking: Asking) -> None:
    asking.keep(2)
    request = asking.request()
    asking.half.arrive(request)
    asking.answered(request)
    asking.half.matched(request, 0)
    asking.half.allocated(request, [7, 8, 9], 2 * TOKENS)
    (load,) = asking.step().loads
    asking.half.finished(request, [7, 8, 9])
    assert asking.step().cancelled == [load.id]
    assert asking.memory.stat()["leases"] == 1
    asking.half.report(output(Report(ended={load.id: 1}), {7, 8}))
    eventually(lambda: not asking.memory.stat()["leases"], "the lease goes back")
    assert asking.half.accounting.totals().aborted == 1


def test_sessions_whose_prompts_change_and_unread_adapters_are_left_alone(asking: Asking) -> None:
    adapter = SimpleNamespace(lora_name="a", lora_int_id=1, lora_path="/nowhere")
    kinds: list[dict[str, Any]] = [{"resumable": True}, {"lora_request": adapter}]
    for at, facts in enumerate(kinds):
        request = asking.request(f"r{at}", **facts)
        asking.half.arrive(request)
        assert asking.half.matched(request, 0) == (0, False)
        name = request.request_id
        assert asking.step({name: 13}, blocks={name: [7, 8, 9, 10]}).stores == []


def test_some_blocks_of_a_prompt_are_placed_as_in_the_whole(asking: Asking) -> None:
    namespace = asking.session.namespace
    length = namespace.run_blocks
    request = asking.request(blocks=3 * length + 1)
    hashes, request.block_hashes = request.block_hashes, []
    tracked = Tracked(request)
    for known in (1, length, length + 2, 3 * length + 1):
        request.block_hashes = hashes[:known]
        whole = namespace.place(namespace.engine_keys(hashes[:known]))
        for first in range(known):
            for count in range(1, known - first + 1):
                assert tracked.part(namespace, first, count) == whole[first : first + count]
    assert tracked.prompt(namespace) == whole


def test_a_load_that_cannot_be_ordered_is_refused_by_the_ranks_and_ends(
    asking: Asking, engine_log: EngineLog
) -> None:
    asking.keep(2)
    request = asking.request()
    asking.half.arrive(request)
    asking.answered(request)
    assert asking.half.matched(request, 0) == (2 * TOKENS, True)
    asking.half._tracked["r"].planned = None
    asking.half.allocated(request, [7, 8], 2 * TOKENS)
    (load,) = asking.step().loads
    assert (load.request, load.blocks, load.generation) == ("r", [7, 8], NEVER)
    asking.half.report(output(Report(ended={load.id: 1}), {7, 8}))
    assert asking.half.matched(request, 0) == (0, False)  # and not in a circle
    request.prefill_stats = None
    asking.half.finished(request, [7, 8])
    assert asking.half.accounting.totals().sums()
    eventually(lambda: not asking.memory.stat()["leases"], "the lease goes back")
    engine_log.clear()  # it is said, and counted


def test_no_second_load_is_promised_while_the_first_has_not_ended_here(asking: Asking) -> None:
    asking.keep(2)
    request = asking.request()
    asking.half.arrive(request)
    asking.answered(request)
    asking.half.matched(request, 0)
    asking.half.allocated(request, [7, 8, 9], 2 * TOKENS)
    asking.step()  # its end is never reported
    request.num_preemptions = 1
    assert asking.half.matched(request, 0) == (0, False)


def test_a_step_that_is_not_understood_cancels_every_store(
    asking: Asking, engine_log: EngineLog
) -> None:
    for name in ("a", "b"):
        request = asking.request(name)
        asking.half.arrive(request)
        asking.answered(request)
        asking.half.matched(request, 0)
    (store,) = asking.step({"a": 13}, blocks={"a": [7, 8, 9, 10]}).stores
    request.num_computed_tokens, request.num_tokens = 13, 14
    asking.half.finished(request, [11, 12, 13])
    step = asking.step(new=[SimpleNamespace()])
    assert (step.cancelled, step.stores) == ([store.id], [])
    assert asking.step().stores == []  # what was left may have been written meanwhile
    engine_log.clear()  # it is said, and counted
