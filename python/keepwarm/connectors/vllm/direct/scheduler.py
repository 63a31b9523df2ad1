"""The scheduler side: what to load, what to store, and where each prompt token came from.

Called by the engine core between forward passes, on one thread; nothing here waits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keepwarm.adapter.accounting import Accounting
from keepwarm.adapter.lookups import Answer, Lookups
from keepwarm.adapter.prober import Prober
from keepwarm.adapter.reasons import Recomputed
from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import Settings
from keepwarm.connectors.vllm.direct.adapters import Adapters
from keepwarm.connectors.vllm.direct.metadata import Moved, Order, Report, Step
from keepwarm.connectors.vllm.direct.prefills import Prefills
from keepwarm.connectors.vllm.direct.requests import Load, Planned, Tracked, run_of_hits
from keepwarm.connectors.vllm.direct.stores import Stores
from keepwarm.connectors.vllm.guard import note
from keepwarm.identity import Extras
from keepwarm.planner import Planner
from keepwarm.prompt import KEY_BYTES

if TYPE_CHECKING:
    from vllm.v1.request import Request

EARLY_MAX = 16
"""Questions asked on arrival. More arrivals than that queue anyway, and then their answers, and the
leases that come with them, would be old when they are looked at."""
ANSWER_S = 4.0
"""An answer older than this is asked for again: its lease may end before the load begins."""
SLOW_BYTES_S = 200e6
"""What a load's deadline allows for its bytes where nothing has been measured."""
HELD_KEPT = 4096
NEVER = -1
"""The generation of an order that no rank carries out."""

Nothing: tuple[int | None, bool] = (0, False)
NotYet: tuple[int | None, bool] = (None, False)


class Scheduler:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        session: Session,
        *,
        block_tokens: int,
        block_bytes: int,
        ranks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.session = session
        self.lookups = Lookups(session, deadline_s=settings.lookup_deadline_s, clock=clock)
        self.planner = Planner(mode=settings.planner, clock=clock)
        self.prober = Prober(session, self.planner)
        self.accounting = Accounting(block_tokens)
        self.stores = Stores()
        self._adapters = Adapters()
        self.held_s: deque[float] = deque(maxlen=HELD_KEPT)
        """For each decided request, how long it could not be scheduled because of us."""
        self._tokens = block_tokens
        self._bytes = block_bytes
        self._ranks = ranks
        self._clock = clock
        self._prefills = Prefills(self.planner, clock)
        self._tracked: dict[str, Tracked] = {}
        self._early: set[str] = set()
        self._loads: dict[int, tuple[Tracked, Load]] = {}
        self._pending: list[Order] = []
        self._cancelled: list[int] = []
        self._uncounted: dict[str, Tracked] = {}
        self._left: list[tuple[Tracked, int, list[int]]] = []
        self._numbers = itertools.count(1)
        self._private: str | None = None

    # A request's way in.

    def arrive(self, request: Request) -> None:
        """A new request: asks at once, so that the answer is there when vLLM gets to it."""
        tracked = self._track(request)
        if len(self._early) < EARLY_MAX and self._may_ask(tracked):
            self._early.add(tracked.id)
            self._ask(tracked)

    def _track(self, request: Request) -> Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._tracked[request.request_id] = Tracked(request)
            if request.lora_request is not None:
                digest = self._adapters.digest(request.lora_request)
                tracked.extras = Extras(lora=digest)
                tracked.stores_allowed = digest is not None
            # A session whose prompt grows, or is cut, while it is known has no fixed blocks.
            tracked.stores_allowed = tracked.stores_allowed and not request.resumable
            if not tracked.stores_allowed or request.skip_reading_prefix_cache:
                tracked.denied = Recomputed.DISABLED
        return tracked

    def _may_ask(self, tracked: Tracked) -> bool:
        """Whether an answer would help: to load, or at least not to store what is there."""
        wanted = tracked.denied is None or not tracked.present
        return wanted and tracked.stores_allowed and bool(tracked.request.block_hashes)

    def _ask(self, tracked: Tracked) -> None:
        tracked.question = self.lookups.ask(tracked.prompt(self.session.namespace))
        tracked.asked_s = self._clock()
        tracked.asks += 1

    def matched(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """How many tokens beyond the device's `computed` ones are loaded; None: ask again."""
        tracked = self._track(request)
        if tracked.load is not None:  # vLLM says it has ended, and we missed it: no second one
            return Nothing
        if request.num_preemptions != tracked.preemptions:
            tracked.preemptions, tracked.asks = request.num_preemptions, 0
            tracked.again()
        first, usable = computed // self._tokens, (request.num_tokens - 1) // self._tokens
        tracked.first = first
        if tracked.question is None and tracked.planned is None and self._may_ask(tracked):
            self._ask(tracked)
        self._early.discard(tracked.id)
        if first >= usable:
            return self._decline(tracked, usable, None)
        if tracked.denied is not None:
            return self._decline(tracked, usable, tracked.denied)
        planned = tracked.planned
        if planned is None or planned.first != first or (planned.blocks and self._old(tracked)):
            planned = self._decide(tracked, usable)
        if planned is None:
            return NotYet
        return (planned.blocks * self._tokens, True) if planned.blocks else Nothing

    def _old(self, tracked: Tracked) -> bool:
        """Whether the answer says nothing any more: of before a move, or its lease may end."""
        question = tracked.question
        if question is None or question.generation != self.session.generation:
            return True
        # Once: where steps are longer than that, every answer is old when it is looked at.
        late = tracked.asks < 2 and self._clock() - tracked.asked_s > ANSWER_S
        return late and question.answer() is not None

    def _decide(self, tracked: Tracked, usable: int) -> Planned | None:
        """What to load, once the answer is there; until then the request waits."""
        if self._old(tracked):
            tracked.again()
            self._ask(tracked)
        assert tracked.question is not None
        answer = tracked.question.answer()
        if answer is None:
            if tracked.waiting_since_s is None:
                tracked.waiting_since_s = self._clock()
            return None
        self._decided(tracked)
        first = tracked.first
        hits = run_of_hits(answer.hits, first, min(usable, len(answer.hits)))
        tiers = list(answer.tiers[first : first + hits])
        plan = self.planner.plan(
            tracked.id,
            first * self._tokens,
            [tier or "dram" for tier in tiers],
            self._tokens,
            self._bytes,
            answer.restore_s,
        )
        tracked.learn(answer)
        tracked.planned = Planned(first, plan.blocks, tiers, plan.predicted_restore_s)
        self._note(tracked, answer, usable)
        if not plan.blocks:
            tracked.close_question()
        return tracked.planned

    def _decline(
        self, tracked: Tracked, usable: int, why: Recomputed | None
    ) -> tuple[int | None, bool]:
        """No load. What the memory has of the prompt is still wanted, for what to store."""
        if tracked.planned is None or tracked.planned.first != tracked.first:
            self._decided(tracked)
            tracked.planned = Planned(tracked.first, 0, [], 0.0)
            self._begin(tracked)
            if why is not None:
                rest = max(0, usable - tracked.first) * self._tokens
                self.accounting.missed(tracked.id, why, rest)
            self._note_last(tracked, usable)
        return Nothing

    def _decided(self, tracked: Tracked) -> None:
        if tracked.waiting_since_s is not None:
            tracked.held_s += self._clock() - tracked.waiting_since_s
            tracked.waiting_since_s = None
        self.held_s.append(tracked.held_s)

    def _begin(self, tracked: Tracked) -> None:
        """Takes the request's split anew, where vLLM does: not after a preemption."""
        if tracked.request.prefill_stats is None:
            return  # counted, and preempted since
        if tracked.request.num_preemptions:
            self.accounting.preempted(tracked.id)
        self.accounting.begin(tracked.id, tracked.request.num_prompt_tokens)
        self.accounting.device(tracked.id, tracked.first * self._tokens)

    def _note(self, tracked: Tracked, answer: Answer, usable: int) -> None:
        assert tracked.planned is not None
        first, chosen = tracked.planned.first, tracked.planned.blocks
        self._begin(tracked)
        for tier in answer.tiers[first : first + chosen]:
            self.accounting.restored(tracked.id, tier, self._tokens)
        hits = list(answer.hits[first:usable])
        self.accounting.blocks(tracked.id, hits, chosen, answer.miss, self._tokens)
        self._note_last(tracked, usable)

    def _note_last(self, tracked: Tracked, usable: int) -> None:
        """A prompt of whole blocks: the last one is computed for its last token's sake."""
        if max(usable, tracked.first) < tracked.request.num_prompt_tokens // self._tokens:
            self.accounting.missed(tracked.id, Recomputed.LAST_TOKEN, self._tokens)

    def allocated(self, request: Request, blocks: list[int], external: int) -> None:
        """vLLM has given the request its blocks, and now waits for them: orders the load.

        Without an order nobody would ever say that it has ended, so what cannot be ordered as it
        should be is ordered as a load that every rank refuses.
        """
        try:
            self._load(request, blocks, external)
        except Exception as error:
            note("Scheduler.allocated", error)
            self._refuse(request, blocks, external)

    def _refuse(self, request: Request, blocks: list[int], external: int) -> None:
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            tracked.denied = Recomputed.LOAD_FAILED
            tracked.again()
        self.accounting.load_failed(request.request_id, external)
        # The last blocks: the device has what is before them.
        last = blocks[len(blocks) - external // self._tokens :]
        name = request.request_id
        self._pending.append(Order(next(self._numbers), name, NEVER, b"", 0, b"", last, 0.0))

    def _load(self, request: Request, blocks: list[int], external: int) -> None:
        tracked = self._tracked[request.request_id]
        if tracked.planned is None or tracked.load is not None:
            raise RuntimeError(f"a load of {external} tokens for {tracked.id} was not planned")
        planned, count = tracked.planned, external // self._tokens
        order = self._order(tracked, planned.first, blocks[planned.first :][:count], 0.0)
        nbytes = count * self._bytes
        # A restore that takes twice its time is late; what was never measured gets a slow rate.
        bytes_s = min(2 * planned.predicted_s or math.inf, nbytes / SLOW_BYTES_S)
        order.deadline_s = self.settings.load_deadline_s + bytes_s
        load = Load(order, planned.first, planned.tiers[:count], self._clock(), self._ranks)
        tracked.load = load
        self._loads[order.id] = tracked, load
        self._pending.append(order)

    def _order(self, tracked: Tracked, first: int, blocks: list[int], deadline_s: float) -> Order:
        now = self.session.now
        keys = tracked.part(now.namespace, first, len(blocks))
        hashes = tracked.request.block_hashes[first : first + len(blocks)]
        return Order(
            id=next(self._numbers),
            request=tracked.id,
            generation=now.generation,
            keys=keys.keys,
            first_position=keys.first_position,
            run_heads=keys.run_heads,
            blocks=blocks,
            deadline_s=deadline_s,
            # As vLLM names a block in its own events, so that routers know both as one.
            engine_hashes=[int.from_bytes(each[-8:], "big") for each in hashes],
        )

    def sources(self, request: Request) -> dict[str, int]:
        """Tokens that were just ordered for it, by tier."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.load is None:
            return {}
        counts = Counter(tier or "unknown" for tier in tracked.load.tiers)
        return {tier: count * self._tokens for tier, count in counts.items()}

    # A step.

    def orders(self, output: Any) -> Step:
        """What goes to the workers with this step; loads always do, whatever else fails."""
        step = Step(generation=self.session.generation, private=self._private)
        step.loads, self._pending = self._pending, []
        step.cancelled, self._cancelled = self._cancelled, []
        step.number = next(self._numbers)
        try:
            self._orders(step, output)
        except Exception as error:
            note("Scheduler.orders", error)
            # Nobody has looked, or not at everything, at what this step writes over.
            self._left.clear()
            for order in step.stores:
                self.stores.ended(order.id, self._ranks)
            step.stores = []
            step.cancelled += [order.id for order in self.stores.all()]
        return step

    def _orders(self, step: Step, output: Any) -> None:
        scheduled = output.num_scheduled_tokens
        if len(self.stores) or self._left:
            written = self._written(step, output)
            for order in self.stores.overwritten(written):
                step.cancelled.append(order.id)
                owner = self._tracked.get(order.request)
                if owner is not None:  # preempted: to be stored when it is computed again
                    owner.stored = min(owner.stored, order.first_position)
            for tracked, until, blocks in self._left:
                self._store(step, tracked, until, blocks, written)
            self._left.clear()
        for name, tokens in scheduled.items():
            found = self._tracked.get(name)
            if found is None:
                continue
            tracked = found
            if name not in self._uncounted and self.accounting.is_open(name):
                self._uncounted[name] = tracked
            request = tracked.request
            known = min(request.num_computed_tokens + tokens, request.num_tokens)
            until = min(known // self._tokens, len(request.block_hashes))
            if until > tracked.stored and self._knows(tracked):
                state = output.kv_connector_block_state
                blocks = state.get_block_ids(name)
                self._store(step, tracked, until, blocks[0] if blocks else [], None)
        self._prefills.scheduled(step.number, scheduled, self._tracked)

    def _knows(self, tracked: Tracked) -> bool:
        """Whether it is known what to store; an answer that is under way is waited for."""
        if not tracked.stores_allowed:
            return False
        if tracked.question is not None and tracked.load is None:
            answer = tracked.question.answer()
            if answer is None:
                return False
            tracked.learn(answer)
            tracked.close_question()
        return True

    def _written(self, step: Step, output: Any) -> set[int]:
        """Blocks that this step, or a load that starts with it, may write for the first time."""
        written = {block for order in step.loads for block in order.blocks}
        for new in output.scheduled_new_reqs:
            written.update(new.block_ids[0][new.num_computed_tokens // self._tokens :])
        cached = output.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if blocks is not None:
                skipped = computed // self._tokens if name in cached.resumed_req_ids else 0
                written.update(blocks[0][skipped:])
        written.update(copy.dst_block_id for copy in output.kv_cache_block_copies or ())
        return written

    def _store(
        self,
        step: Step,
        tracked: Tracked,
        until: int,
        blocks: list[int],
        written: set[int] | None,
    ) -> None:
        """Orders stores of blocks that this step fills or has found, and does not overwrite."""
        if not self.settings.store_generated:
            until = min(until, tracked.request.num_prompt_tokens // self._tokens)
        for first, end in tracked.missing(min(until, len(blocks))):
            own = blocks[first:end]
            if 0 in own or (written and not written.isdisjoint(own)):
                continue  # 0 is vLLM's block for what it does not keep
            if self.session.space is None:
                continue  # nobody to give them to
            order = self._order(tracked, first, own, self.settings.store_deadline_s)
            step.stores.append(order)
            self.stores.add(order, self._ranks)

    # What comes back.

    def report(self, output: Any) -> None:
        """A step's output has been processed: loads and stores that ended, first outputs."""
        invalid = output.invalid_block_ids or set()
        if invalid:
            for _, load in self._loads.values():
                load.fail(invalid)
        report = output.kv_connector_worker_meta
        if isinstance(report, Report):
            for order, ranks in report.ended.items():
                self.stores.ended(order, ranks)
                if order in self._loads:
                    self._ended(order, ranks, report.loads.get(order))
            self._prefills.over(report.steps)
        for name, counted in list(self._uncounted.items()):
            if counted.request.prefill_stats is None:  # vLLM has counted it
                self.accounting.finish(name)
                del self._uncounted[name]

    def _ended(self, number: int, ranks: int, moved: Moved | None) -> None:
        tracked, load = self._loads[number]
        load.waiting -= ranks
        if moved is not None:
            load.moved.add(moved)
        if load.waiting > 0:
            return
        del self._loads[number]
        tracked.load = None
        tracked.again()
        if load.cancelled:
            self.planner.forget(tracked.id)
            return
        count, tiers = len(load.order.blocks), set(load.tiers)
        self.planner.outcome(tracked.id, load.landed, self._clock() - load.started_s)
        if load.landed < count:
            self._failed(tracked, load, count)
        elif len(tiers) == 1:
            tier = tiers.pop() or "dram"
            self.planner.restored(tier, count * self._bytes, load.moved.seconds)

    def _failed(self, tracked: Tracked, load: Load, count: int) -> None:
        tracked.failed(load)
        self.accounting.load_failed(tracked.id, (count - load.landed) * self._tokens)
        if load.order.generation == self.session.generation:
            for at in load.failed:
                key = load.order.keys[KEY_BYTES * at : KEY_BYTES * (at + 1)]
                self.session.failed.add(key, Recomputed.LOAD_FAILED)

    # A request's way out.

    def finished(self, request: Request, blocks: list[int]) -> None:
        """A request ended; what it filled last is stored unless its blocks are taken at once."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return
        self._early.discard(tracked.id)
        self._uncounted.pop(tracked.id, None)
        self.accounting.finish(tracked.id, aborted=request.prefill_stats is not None)
        if tracked.load is not None:
            tracked.load.cancelled = True
            self._cancelled.append(tracked.load.order.id)
            return  # the lease stays until nothing of the load is under way
        knows = self._knows(tracked)
        tracked.close_question()
        known = min(request.num_computed_tokens, request.num_tokens - 1)
        until = min(known // self._tokens, len(request.block_hashes))
        if until > tracked.stored and knows:
            self._left.append((tracked, until, blocks))

    def reset(self) -> None:
        """The engine's cache was reset: what it computed before is not what it computes now."""
        if self.settings.weights_fixed:
            return
        self._private = self.session.move("the engine's cache was reset")
        self._left.clear()
        for tracked in self._tracked.values():
            tracked.again()
            tracked.unnamed()
            tracked.stores_allowed = False  # its first blocks are of before
            if tracked.load is not None:
                self._cancelled.append(tracked.load.order.id)

    def close(self) -> None:
        """Ends threads and connections."""
        self.lookups.close()
        self.prober.close()
        self.session.close()
