"""vLLM's jobs as transfers: one of theirs is one report, whatever it takes here.

A job's keys may lie apart in the prompt (the host pool has what is between): each neighbouring part
is a transfer of its own. The job is over when all of them are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from keepwarm.adapter.session import Session
from keepwarm.adapter.transfers import Done, Job, Transfers
from keepwarm.connectors.vllm.places import Places, engine_hash, group_of
from keepwarm.connectors.vllm.rows import Pool, Rows
from keepwarm.outcomes import Outcome, Reason, Status

_IN = (Status.OK, Status.STORED, Status.PRESENT)


@dataclass(slots=True)
class Ended:
    """A job of vLLM's that is over."""

    result: JobResult
    request: str
    load: bool
    outcomes: dict[bytes, Outcome]
    bytes: int
    seconds: float


@dataclass(slots=True)
class _Open:
    job: TransferJob
    parts: dict[int, Sequence[bytes]]
    """keys of each transfer that has not ended"""
    outcomes: dict[bytes, Outcome] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0


class Jobs:
    """Belongs to the scheduler's thread."""

    def __init__(self, session: Session, transfers: Transfers, pool: Pool, places: Places) -> None:
        self._session = session
        self._transfers = transfers
        self._pool = pool
        self._places = places
        self._open: dict[int, _Open] = {}
        self._over: list[Ended] = []

    def __len__(self) -> int:
        return len(self._open) + len(self._over)

    def submit(self, job: TransferJob, deadline_s: float) -> None:
        """Starts what can be started; what cannot is over, and reported with the next ones, even
        if this raises."""
        opened = self._open[job.job_id] = _Open(job, {})
        try:
            self._start(opened, deadline_s)
        finally:
            if not opened.parts:
                self._close(opened)

    def fail(self, job: TransferJob) -> None:
        """Instead of `submit`: it will not be moved, and is reported with the next ones."""
        self._over.append(self._ended(_Open(job, {})))

    def _start(self, opened: _Open, deadline_s: float) -> None:
        job = opened.job
        chunks = dict(zip(job.keys, job.chunk_ids.tolist(), strict=True))
        keys = self._places.ordered(job.keys, job.req_context)
        now = self._session.now
        move = self._transfers.load if job.is_promotion else self._transfers.store
        at = 0
        for part, prompt in enumerate(self._places.prompts(keys, job.req_context, now.namespace)):
            mine = keys[at : at + len(prompt)]
            at += len(prompt)
            rows = [self._pool.place(chunks[key], group_of(key)) for key in mine]
            hashes = None if job.is_promotion else [engine_hash(key) for key in mine]
            accepted = move(
                Job(
                    id=(job.job_id, part),
                    keys=prompt,
                    pages=Rows(rows),
                    deadline_s=deadline_s,
                    generation=now.generation,
                    engine_hashes=hashes,
                )
            )
            if accepted:
                opened.parts[part] = mine

    def absorb(self, done: Iterable[Done]) -> None:
        """Transfers that have ended; what they make whole is in `take`."""
        for each in done:
            assert isinstance(each.id, tuple)  # ours, see _start
            job_id, part = each.id
            opened = self._open.get(job_id)
            keys = None if opened is None else opened.parts.pop(part, None)
            if opened is None or keys is None:
                continue
            opened.outcomes.update(zip(keys, each.outcomes, strict=True))
            opened.bytes += each.bytes
            opened.seconds = max(opened.seconds, each.seconds + each.queued_s)
            if not opened.parts:
                self._close(opened)

    def take(self) -> list[Ended]:
        """What is over since the last call; each job once."""
        over, self._over = self._over, []
        return over

    def abandon(self) -> None:
        """No transfer is under way any more: what has not been reported has failed."""
        for opened in list(self._open.values()):
            self._close(opened)

    def _close(self, opened: _Open) -> None:
        del self._open[opened.job.job_id]
        self._over.append(self._ended(opened))

    def _ended(self, opened: _Open) -> Ended:
        job = opened.job
        refused = Outcome(Status.MISS if job.is_promotion else Status.SHED, Reason.BUSY)
        outcomes = {key: opened.outcomes.get(key, refused) for key in job.keys}
        landed = {key for key, outcome in outcomes.items() if outcome.status in _IN}
        whole = all(
            outcome.status in _IN or outcome.status is Status.PENDING
            for outcome in outcomes.values()
        )
        success = len(landed) == len(outcomes) if job.is_promotion else whole
        result = JobResult(
            job_id=job.job_id,
            success=success,
            successful_keys=(landed or None) if job.is_promotion and not success else None,
            transfer_time=opened.seconds,
            transfer_bytes=opened.bytes,
        )
        return Ended(
            result, job.req_context.req_id, job.is_promotion, outcomes, opened.bytes, opened.seconds
        )
