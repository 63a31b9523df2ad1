"""Keepwarm as a secondary tier of vLLM's host pool: device ◄─► host pool ◄─► Keepwarm.

vLLM asks key by key, on its scheduler's thread, and moves rows of the host pool by jobs. One
question answers a whole prompt (`asking`), jobs become transfers (`jobs`), and every method that
vLLM calls answers at once: nothing here waits, but `drain_jobs` and `shutdown`, which are bounded.

What vLLM holds it to, and what ends the engine otherwise: no exception, each job reported exactly
once, none left after `drain_jobs`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Any

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from keepwarm.adapter.accounting import Accounting
from keepwarm.adapter.figures import CATALOGUE, Table, collect
from keepwarm.adapter.lookups import Answer, Lookups
from keepwarm.adapter.prober import Prober
from keepwarm.adapter.reasons import Recomputed, recomputed
from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import Settings, SettingsError, parse_settings
from keepwarm.adapter.transfers import Transfers
from keepwarm.connectors.vllm import facts
from keepwarm.connectors.vllm.asking import PROMISES_MAX, Asking, Phase
from keepwarm.connectors.vllm.guard import guarded, note, nothing, unshown
from keepwarm.connectors.vllm.identity import namespace_fields
from keepwarm.connectors.vllm.jobs import Ended, Jobs
from keepwarm.connectors.vllm.places import GROUP_BYTES, Places, group_of, noted_ends
from keepwarm.connectors.vllm.reckoning import reckon
from keepwarm.connectors.vllm.rows import Pool, own_bytes
from keepwarm.connectors.vllm.stats import Shipment, Stats, definitions
from keepwarm.outcomes import Status
from keepwarm.planner import Planner

WHERE = "secondary_tiers, KeepwarmTier"
VLLM_KEYS = ("locality",)
DRAIN_S = 0.05
HELD_MAX = 1024
PACE = 512 << 20  # bytes a second that a job may count on, beside its deadline
CLOSE_S = 1.0


def _miss(*_: Any) -> LookupResult:
    return LookupResult.MISS


def _locality(said: object) -> Locality:
    names = [each.value for each in Locality]
    if not isinstance(said, str) or said.upper() not in names:
        raise SettingsError(
            WHERE, "locality", f"locality is {said!r}: give {' or '.join(names)}, or leave it out"
        )
    return Locality(said.upper())


class KeepwarmTier(SecondaryTierManager):
    """See the module. `secondary_tiers: [{"type": "KeepwarmTier", …settings…}]`."""

    medium = Medium.STORAGE
    # Neither vLLM's host pool nor its disk: what it shows as external is restored by us.
    cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **given: object,
    ) -> None:
        """Raises for a setting or an identity that cannot be right: then vLLM does not start."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.settings = settings = parse_settings(given, WHERE, VLLM_KEYS)
        if given.get("locality") is not None:
            self.locality = _locality(given["locality"])
        vllm_config, kv_cache_config = facts.config_of(offloading_spec.config)
        if vllm_config.lora_config is not None:
            raise SettingsError(
                WHERE,
                "enable_lora",
                "vLLM names an adapter's blocks for a tier by the adapter's name and path, not by "
                'its content: leave LoRA off, or use "kv_connector": "KeepwarmConnector"',
            )
        self.pool = Pool(primary_kv_view, own_bytes(offloading_spec, kv_cache_config))
        fields = namespace_fields(vllm_config, kv_cache_config, settings, mode="tier", parts=1)
        self.places = Places.of(offloading_spec, fields["run_blocks"])
        fields["run_blocks"] = self.places.run_blocks
        self.session = Session(settings, fields)
        policy = str(vllm_config.kv_transfer_config.kv_load_failure_policy)
        self.session.about["load_failure_policy"] = policy
        self._begin(settings)

    def _begin(self, settings: Settings) -> None:
        session = self.session
        self.lookups = Lookups(session, deadline_s=settings.lookup_deadline_s)
        self.transfers = Transfers(
            session,
            load_threads=settings.load_threads,
            store_threads=settings.store_threads,
            loads_max=settings.loads_max,
            stores_max=settings.stores_max,
        )
        self.planner = Planner(mode=settings.planner)
        self.prober = Prober(session, self.planner)
        self.accounting = Accounting(self.places.chunk_tokens)
        self.jobs = Jobs(session, self.transfers, self.pool, self.places)
        self.requests: dict[str, Asking] = {}
        self._hits: list[tuple[Asking, bytes]] = []  # of this step, and not in a job yet
        self._hits_given = 0
        self._step = 0
        self.held_s: deque[float] = deque(maxlen=HELD_MAX)
        """how long each of the last requests without a restore waited for us"""
        self._faults = 0
        self._ships = Shipment(CATALOGUE, self.figures)
        self._news = False

    # What vLLM asks, on its scheduler's thread.

    @guarded(lambda *_: RequestOffloadingContext())
    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """Comes before everything else of a request, but not again after a reset."""
        self.requests[req_context.req_id] = Asking(req_context)
        return RequestOffloadingContext()

    @guarded(nothing)
    def on_request_finished(self, req_context: Any) -> None:
        """Nothing more comes of it but results of its jobs."""
        request = self.requests.pop(req_context.req_id, None)
        if request is not None:
            request.release()
            self.planner.forget(req_context.req_id)

    @guarded(_miss)
    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """HIT takes a slot of the host pool at once, RETRY holds the request for a step."""
        request = self.requests.get(req_context.req_id)
        if request is None:
            return LookupResult.MISS
        if request.phase is Phase.NEW:
            self._ask(request, key)
        if request.phase is Phase.ASKED:
            self._decide(request)
        if request.phase is not Phase.CHOSEN:
            return self._wait(request, key)
        if key not in request.chosen:
            return LookupResult.MISS
        if request.promised.get(key, 0) >= PROMISES_MAX:
            request.chosen.discard(key)
            request.failed.setdefault(key, Recomputed.HOST_POOL_FULL)
            return LookupResult.MISS
        if self._hits_given >= self.settings.hits_per_step:
            return self._wait(request, key)
        self._hits_given += 1
        self._hits.append((request, key))
        request.promised[key] = request.promised.get(key, 0) + 1
        return LookupResult.HIT

    def _wait(self, request: Asking, key: bytes) -> LookupResult:
        first = request.wait(bytes(key[-GROUP_BYTES:]), self._step)
        return LookupResult.RETRY if first else LookupResult.MISS

    def _ask(self, request: Asking, key: bytes) -> None:
        """One question for all keys from this one on: vLLM has noted them all by now."""
        keys = self.places.from_here_on(bytes(key), request.context)
        if keys is None:
            keys = [bytes(key)]  # a vLLM without notes: block by block, and no runs
        prompts = self.places.prompts(keys, request.context, self.session.namespace)
        request.asked(keys, self.lookups.ask(prompts[0]), time.monotonic())

    def _decide(self, request: Asking) -> None:
        """Once there is an answer: which blocks, as long as the host pool has room for them."""
        question = request.question
        answer = None if question is None else question.answer()
        if answer is None:
            return
        request.answer = answer
        if request.wanted is None:
            request.wanted = self._wanted(request, answer)
        now_s, keys, room = time.monotonic(), request.wanted, self._room()
        if len(keys) > room:
            waited_s = now_s - (request.began_s or 0.0)
            if room < self._room_max() // 2 and waited_s < self.settings.lookup_deadline_s:
                return  # others' restores end soon, and waiting is cheaper than computing
            keys, request.limit = keys[:room], Recomputed.HOST_POOL_FULL
        request.chosen = set(self._with_groups(request, keys))
        request.phase, request.decided_s = Phase.CHOSEN, now_s
        if not request.chosen:
            request.release()
            self.held_s.append(now_s - (request.began_s or now_s))

    def _wanted(self, request: Asking, answer: Answer) -> list[bytes]:
        """The prefix of the first group, as far as the planner restores it."""
        first = group_of(request.keys[0])
        prefix = request.keys[: answer.prefix]
        prefix = [key for key in prefix if group_of(key) == first]
        if not prefix:
            return []
        ends = noted_ends(request.context) or {}
        first_token = ends.get(prefix[0], self.places.chunk_tokens) - self.places.chunk_tokens
        plan = self.planner.plan(
            request.context.req_id,
            first_token,
            [request.tier(key) or "unknown" for key in prefix],
            self.places.chunk_tokens,
            sum(self.pool.lengths.values()),
            answer.restore_s,
        )
        request.predicted_s = plan.predicted_restore_s
        if plan.blocks < len(prefix):
            request.limit = Recomputed.PLANNER
        return prefix[: plan.blocks]

    def _with_groups(self, request: Asking, keys: list[bytes]) -> list[bytes]:
        """The other groups' blocks too, up to where the chosen prefix ends."""
        if not keys or len(self.places.groups) == 1:
            return keys
        ends, first = noted_ends(request.context) or {}, group_of(keys[0])
        end = ends.get(keys[-1], 0)
        others = (key for key in request.keys if group_of(key) != first and request.hit(key))
        return [*keys, *(key for key in others if ends.get(key, 0) <= end)]

    def _room_max(self) -> int:
        return max(1, int(self.pool.chunks * self.settings.host_share))

    def _room(self) -> int:
        """Slots of the host pool that restores may still take, over all requests."""
        taken = sum(len(request.chosen) for request in self.requests.values())
        return max(0, self._room_max() - taken)

    @guarded(nothing)
    def on_schedule_end(self, context: Any) -> None:
        """After jobs were submitted: what was promised and is in none had no slot."""
        for request, key in self._hits:
            if key in request.chosen:
                request.chosen.discard(key)
                request.failed.setdefault(key, Recomputed.HOST_POOL_FULL)
        self._hits.clear()
        self._hits_given = 0
        self._step += 1
        for started in map(self.requests.get, context.new_req_ids):
            if started is not None:
                self._started(started)
        for preempted in map(self.requests.get, context.preempted_req_ids):
            if preempted is not None:
                preempted.again()

    def _started(self, request: Asking) -> None:
        """It runs: its slots are vLLM's, its lease can go."""
        if Recomputed.HOST_POOL_FULL in {request.limit, *request.failed.values()}:
            self.planner.forget(request.context.req_id)  # less than planned, and no tier's fault
        elif request.decided_s is not None and (request.landed or request.failed):
            now_s, first = time.monotonic(), group_of(request.keys[0])
            landed = sum(group_of(key) == first for key in request.landed)
            held_s = now_s - (request.began_s or now_s)
            self.planner.outcome(request.context.req_id, landed, held_s)
        request.release()

    # Jobs.

    def submit_load(self, job_metadata: TransferJob) -> None:
        """A promotion of promised blocks into slots of the host pool."""
        request = self.requests.get(job_metadata.req_context.req_id)
        keys = set(job_metadata.keys)
        self._hits = [hit for hit in self._hits if hit[0] is not request or hit[1] not in keys]
        predicted_s = request.predicted_s if request is not None else 0.0
        self._submit(job_metadata, self.settings.load_deadline_s, 2 * predicted_s)

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Blocks that have just reached the host pool."""
        request = self.requests.get(job_metadata.req_context.req_id)
        if request is None or request.spanning:
            self.jobs.fail(job_metadata)
            return
        self._submit(job_metadata, self.settings.store_deadline_s, 0.0)

    def _submit(self, job: TransferJob, deadline_s: float, bytes_s: float) -> None:
        """`bytes_s` is what its bytes were predicted to take, doubled."""
        bytes_s = max(bytes_s, len(job.keys) * self.pool.row_bytes / PACE)
        try:
            self.jobs.submit(job, deadline_s + bytes_s)
        except Exception as error:  # what has not been started is reported as failed
            note("KeepwarmTier.submit", error)

    @guarded(lambda *_: [])
    def get_finished_jobs(self) -> list[JobResult]:
        """Fenced first, reported after: vLLM reuses the slots in this very step."""
        try:
            self.jobs.absorb(self.transfers.finished())
        except Exception as error:
            note("KeepwarmTier.absorb", error)
        ended = self.jobs.take()
        for each in ended:
            self._news = True
            self._loaded(each)
        return [each.result for each in ended]

    @guarded(nothing)
    def _loaded(self, ended: Ended) -> None:
        if not ended.load:
            return
        owner = self.requests.get(ended.request)
        tiers = set()
        for key, outcome in ended.outcomes.items():
            if outcome.status is Status.OK:
                if owner is not None:
                    tiers.add(owner.tier(key) or "unknown")
                    owner.landed[key] = owner.tier(key)
                continue
            why = recomputed(outcome.reason)
            for request in self.requests.values():  # nobody is promised it again
                if key in request.chosen:
                    request.chosen.discard(key)
                    request.failed[key] = why
        if len(tiers) == 1:
            self.planner.restored(tiers.pop(), ended.bytes, ended.seconds)

    @guarded(lambda *_: False)
    def has_pending_work(self) -> bool:
        """Whether vLLM must go on stepping when it has nothing else to do."""
        return bool(len(self.jobs))

    @guarded(nothing)
    def drain_jobs(self) -> None:
        """The only word of a reset that reaches a tier: no job is left, and old bytes are void."""
        try:
            self.jobs.absorb(self.transfers.drain(DRAIN_S))
        finally:
            self.jobs.abandon()
        self._hits.clear()
        changed = not self.settings.weights_fixed
        for request in self.requests.values():
            request.again(spanning=changed)
        if changed:
            self.session.move("the engine's caches were reset, its weights may have changed")

    @guarded(nothing)
    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Uses of blocks that the device has; a get is a use by itself, and tells the node."""

    @guarded(nothing)
    def shutdown(self) -> None:
        """Afterwards nothing of ours touches the host pool."""
        for request in self.requests.values():
            request.release()
        self.transfers.drain(0.0)
        self.transfers.close(CLOSE_S)
        self.lookups.close(CLOSE_S)
        self.prober.close(CLOSE_S)
        self.session.close(CLOSE_S)

    # What it shows.

    def admitted(self, req_id: str, prompt: int, device: int, external: int) -> None:
        """vLLM has split a request's prompt tokens; the rest is computed."""
        reckon(
            *(self.accounting, req_id, self.requests.get(req_id), self.places.chunk_tokens),
            *(prompt, device, external),
        )

    def counted(self, req_id: str, aborted: bool = False) -> None:
        """It had its first output, or ended without one."""
        self.accounting.finish(req_id, aborted=aborted)
        self._news = True

    def figures(self) -> Table:
        """Our metrics, by name and label values."""
        parts = self.accounting, self.lookups, self.transfers, self.planner, self.session
        table = collect(*parts)
        self._faults += unshown()
        table["keepwarm_connector_faults_total", ()] += float(self._faults)
        return table

    @guarded(nothing)
    def get_stats(self) -> Stats | None:
        """What has changed, for vLLM to carry to its /metrics."""
        news, self._news = self._news, False
        return self._ships.take(news)

    @classmethod
    def build_metric_definitions(cls, extra_config: Any) -> dict[str, Any]:  # noqa: ARG003
        """The same for every configuration."""
        return definitions(CATALOGUE)
