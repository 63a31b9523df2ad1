"""A vLLM secondary tier over a dictionary: one batch lookup a prompt, deadlines, fences.

A request's way through lookup():

    NEW ──keys seen, RETRY──► ASKED ──reply──► CHOSEN   HIT for the chosen blocks, MISS after them
                                └──deadline──► GIVEN_UP MISS for every block

All methods but the back end's run on vLLM's scheduler thread.
"""

from __future__ import annotations

import enum
import functools
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from backend import Dictionary, Switches, Transfer
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

GROUP = slice(-4, None)  # an OffloadKey is the block hash and four bytes of group index
TIERS: list[DictionaryTier] = []  # run.py and the engine share one process


@dataclass
class Policy:
    """The decisions under test; the defaults are the ones we propose."""

    lookup_deadline_s: float = 0.25
    job_deadline_s: float = 0.5
    drain_grace_s: float = 0.05
    jobs_max: int = 32  # stores beyond this are shed at once
    restore_blocks_max: int | None = None  # None: what the host pool can hold less a margin
    hits_per_step: int = 256  # a HIT costs the scheduler 20 us: the rest waits for the next step
    short_scan: bool = True  # while waiting: RETRY for the first key, MISS ends vLLM's scan
    forget_failed: bool = True  # a key whose load failed is a MISS from now on
    new_epoch_on_drain: bool = True
    shed_spanning: bool = True  # a request alive at a drain stores nothing after it
    breaker: bool = True  # after a missed deadline nobody waits until the store replies again
    use_tier: bool = True


class Phase(enum.Enum):
    NEW = enum.auto()
    ASKED = enum.auto()
    CHOSEN = enum.auto()
    GIVEN_UP = enum.auto()


@dataclass
class Request:
    keys: dict[bytes, None] = field(default_factory=dict)  # in prompt order, as vLLM asked
    phase: Phase = Phase.NEW
    spanning: bool = False  # it was alive when the caches were reset
    asked_at: float = 0.0
    reply: set[bytes] | None = None  # written by the back end's thread, once
    chosen: set[bytes] = field(default_factory=set)
    retry_step: dict[bytes, int] = field(default_factory=dict)  # by the key's group
    first_step: int = 0
    first_at: float = 0.0
    lookups: int = 0


@dataclass
class Held:
    """How long a request waited for us, in scheduler steps and in time."""

    steps: int
    ms: float
    lookups: int


def _of_group(keys: Iterable[bytes], group: bytes) -> Iterator[bytes]:
    return (key for key in keys if key[GROUP] == group)


class DictionaryTier(SecondaryTierManager):
    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.config = offloading_spec.config
        assert primary_kv_view.shape is not None
        self.chunks, self.row_bytes = primary_kv_view.shape
        self.policy, self.switches = Policy(), Switches()
        self.store = Dictionary(self.switches)
        self.epoch = self.step = self.drains = 0
        self.down, self.hits = False, 0
        self.requests: dict[str, Request] = {}
        self.contexts: dict[str, Any] = {}
        self.held: dict[str, Held] = {}
        self.reports: dict[int, list[bool]] = {}
        self.fences: list[float] = []
        self.transfers: list[Transfer] = []
        self.drain_s = 0.0
        self._flat = primary_kv_view.cast("B")
        self._jobs: dict[int, tuple[float, Transfer]] = {}
        TIERS.append(self)

    def _key(self, key: bytes) -> tuple[str, bytes]:
        return f"demo/epoch{self.epoch}", bytes(key)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self.requests[req_context.req_id] = Request()
        self.contexts[req_context.req_id] = req_context
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self.requests.pop(req_context.req_id, None)

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        request = self.requests.get(req_context.req_id)
        if request is None or not self.policy.use_tier:
            return LookupResult.MISS
        if request.lookups == 0:
            request.first_step, request.first_at = self.step, time.monotonic()
        request.lookups += 1
        if request.phase is Phase.NEW and self.down:
            request.phase = Phase.GIVEN_UP
        if request.phase is Phase.NEW:
            request.keys[bytes(key)] = None
            return LookupResult.RETRY
        if request.phase is Phase.ASKED:
            self._decide(request, req_context)
        if request.phase is Phase.ASKED:
            return self._wait(request, key[GROUP])
        if key not in request.chosen:
            return LookupResult.MISS
        if self.hits >= self.policy.hits_per_step:
            return self._wait(request, key[GROUP])
        self.hits += 1
        return LookupResult.HIT

    def _wait(self, request: Request, group: bytes) -> LookupResult:
        """vLLM scans on after RETRY and stops at MISS; the RETRY before it still defers.

        One RETRY a group: a group that saw only MISS ends the lookup as a miss.
        """
        if self.policy.short_scan and request.retry_step.get(group) == self.step:
            return LookupResult.MISS
        request.retry_step[group] = self.step
        return LookupResult.RETRY

    def _decide(self, request: Request, req_context: Any) -> None:
        """The prefix of the first group, cut to what fits; the other groups up to its end."""
        found = request.reply
        if found is not None:
            most = self.policy.restore_blocks_max
            most = self.chunks * 3 // 4 if most is None else most
            first = next(iter(request.keys))[GROUP]
            run = itertools.takewhile(found.__contains__, _of_group(request.keys, first))
            prefix = list(itertools.islice(run, most))
            end = req_context.get_offload_key_position(prefix[-1]) if prefix else 0
            position = req_context.get_offload_key_position
            request.chosen = {key for key in found if position(key) <= end}
            request.phase = Phase.CHOSEN
        elif time.monotonic() - request.asked_at > self.policy.lookup_deadline_s:
            request.phase = Phase.GIVEN_UP
            self.down = self.policy.breaker

    def on_schedule_end(self, context: Any) -> None:
        now = time.monotonic()
        for req_id in context.new_req_ids:
            if (request := self.requests.get(req_id)) and request.lookups:
                waited = Held(self.step - request.first_step, 0.0, request.lookups)
                waited.ms = (now - request.first_at) * 1e3
                self.held[req_id] = waited
        self.step += 1
        self.hits = 0
        for request in self.requests.values():
            if request.phase is Phase.NEW and request.keys:
                request.phase, request.asked_at = Phase.ASKED, now
                keys = [self._key(key) for key in request.keys]
                self.store.lookup(keys, functools.partial(self._reply, request))

    def _reply(self, request: Request, found: set[bytes]) -> None:
        """On the back end's thread. A reply after the deadline closes the breaker, no more."""
        request.reply = found
        self.down = False

    def submit_load(self, job: Any) -> None:
        self._submit(job, is_load=True)

    def submit_store(self, job: Any) -> None:
        self._submit(job, is_load=False)

    def _submit(self, job: Any, is_load: bool) -> None:
        rows = [self._flat[c * self.row_bytes : (c + 1) * self.row_bytes] for c in job.chunk_ids]
        transfer = Transfer(
            [(self._key(k), r) for k, r in zip(job.keys, rows, strict=True)], is_load
        )
        self._jobs[job.job_id] = (time.monotonic() + self.policy.job_deadline_s, transfer)
        if not is_load and self._shed(job.req_context.req_id):
            transfer.fence()
            self._jobs[job.job_id] = (0.0, transfer)  # due: reported as failed at the next poll
            return
        self.store.submit(transfer)

    def _shed(self, req_id: str) -> bool:
        request = self.requests.get(req_id)
        old = request is None or (request.spanning and self.policy.shed_spanning)
        return old or not self.policy.use_tier or len(self._jobs) > self.policy.jobs_max

    def get_finished_jobs(self) -> Iterable[JobResult]:
        now = time.monotonic()
        for job_id, (deadline, transfer) in list(self._jobs.items()):
            if transfer.state.name == "DONE" or now > deadline:
                yield self._report(job_id, transfer)

    def _report(self, job_id: int, transfer: Transfer) -> JobResult:
        """Fence first, report after: once vLLM knows, it may reuse the chunks at once."""
        start = time.perf_counter()
        transfer.fence(honour=self.switches.fenced)
        self.fences.append(time.perf_counter() - start)
        transfer.reported = True
        self.transfers.append(transfer)
        del self._jobs[job_id]
        keys = {key[1] for key, _ in transfer.parts}
        landed = keys & transfer.landed if self.switches.fenced else set(transfer.landed)
        if transfer.is_load and self.policy.forget_failed:
            for request in self.requests.values():
                request.chosen -= keys - landed
        self.reports.setdefault(job_id, []).append(landed == keys)
        return JobResult(job_id, landed == keys, successful_keys=landed or None)

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    def drain_jobs(self) -> None:
        """The only word of a cache reset that reaches a tier: bounded, and a new epoch after it."""
        self.drains += 1
        start = time.monotonic()
        while time.monotonic() - start < self.policy.drain_grace_s and any(
            transfer.state.name != "DONE" for _, transfer in self._jobs.values()
        ):
            time.sleep(0.001)
        for job_id, (_, transfer) in list(self._jobs.items()):
            transfer.fence()
            self._jobs[job_id] = (0.0, transfer)  # due: get_finished_jobs() reports it next
        if self.policy.new_epoch_on_drain:
            self.epoch += 1
            for req_id in self.requests:
                self.requests[req_id] = Request(spanning=True)
        self.drain_s = time.monotonic() - start

    def shutdown(self) -> None:
        for _, transfer in self._jobs.values():
            transfer.fence()
        self.store.close()
        self._flat.release()
