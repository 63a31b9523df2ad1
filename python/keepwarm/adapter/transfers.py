"""Loads and stores on own threads: bounded, fenced, and each job ended exactly once.

    load(), store() ──► QUEUED ──► RUNNING ──last step──► ENDED ──► finished()
                          │           │  cancel, drain: fenced, and over with the step under way
                          └─deadline, cancel, drain──────────► ENDED

Who owns a job's memory: from acceptance until its `Done` is out, we; afterwards, the engine. So a
job ends only between steps. Every look of ours into the engine's memory (`landed`, `gather`) is
under the job's lock and only if it is not fenced; a get or put returns by its own deadline, which
is at most `STEP_S` a MiB, and nothing of ours touches its buffers afterwards. Where these buffers
are not the engine's (`Job.staged`), a fenced job ends at once, and the step under way keeps the
staging.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from keepwarm.adapter.reasons import recomputed
from keepwarm.adapter.session import Session
from keepwarm.adapter.threads import Sayer, start, survives_fork
from keepwarm.client import Space
from keepwarm.errors import ClosedError
from keepwarm.identity import BufferLike
from keepwarm.outcomes import Outcome, Reason, Status
from keepwarm.prompt import Prompt

Buffer: TypeAlias = "BufferLike | tuple[int, int]"

STEP_S = 0.25  # longest that one step may take, for each MiB of it
STEP_BYTES = 1 << 20
YIELD_S = 0.05  # longest that a step of a store gives way to loads
IDLE_S = 5.0
_OVER = (Reason.DEADLINE, Reason.STORE_DOWN, Reason.IDENTITY, Reason.EPOCH)
_FINE = (Status.OK, Status.STORED, Status.PRESENT)


class Pages(Protocol):
    """Where a job's bytes are. Called on transfer threads, one at a time for a job."""

    @property
    def step_blocks(self) -> int:
        """Blocks a step, 1 or more: at most 1 MiB of them, where one block is not larger."""
        ...

    def buffers(self, first: int, count: int) -> Sequence[Buffer]:
        """What get_into or put_from are given for these blocks of the job, one each."""
        ...

    def landed(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """A load: moves blocks that are ok on into the engine, under the fence."""
        ...

    def gather(self, first: int, count: int) -> None:
        """A store: collects blocks from the engine, under the fence, before they are put."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be moved. `deadline_s` counts from acceptance."""

    id: Hashable
    keys: Prompt
    pages: Pages
    part: int = 0
    deadline_s: float = 0.5
    generation: int = 0
    engine_hashes: Sequence[int | None] | None = None
    staged: bool = False
    """`pages.buffers` are not the engine's memory, and nobody reuses them while a step runs"""


@dataclass(frozen=True, slots=True)
class Done:
    """How a job ended: one outcome a block, in order."""

    id: Hashable
    load: bool
    outcomes: Sequence[Outcome]
    bytes: int
    """of blocks that are in"""
    seconds: float
    """from its first step to its end"""
    queued_s: float
    """before its first step"""


class _Task:
    """A job on its way; `lock` is held for every step that looks into the engine's memory."""

    __slots__ = (
        *("accepted_s", "bytes", "cancelled", "ended", "fenced", "job", "load", "lock"),
        *("outcomes", "running", "started_s"),
    )

    def __init__(self, job: Job, load: bool, now_s: float) -> None:
        self.job = job
        self.load = load
        self.accepted_s = now_s
        self.started_s: float | None = None
        self.lock = threading.Lock()
        self.fenced: Reason | None = None
        self.cancelled = False
        self.running = False
        self.ended = False
        self.outcomes: list[Outcome] = []
        self.bytes = 0

    def left_s(self, now_s: float) -> float:
        return self.accepted_s + self.job.deadline_s - now_s


class Transfers:
    """See the module."""

    def __init__(
        self,
        session: Session,
        *,
        load_threads: int,
        store_threads: int,
        loads_max: int,
        stores_max: int,
        wake: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` is called, on any thread, whenever something is in `finished()`."""
        self.counts = dict.fromkeys(COUNTS, 0)
        self.seconds = {True: 0.0, False: 0.0}
        self._session = session
        self._threads_max = {True: load_threads, False: store_threads}
        self._jobs_max = {True: loads_max, False: stores_max}
        self._wake = wake
        self._clock = clock
        self._say = Sayer(clock)
        self._closing = False
        self._birth()
        survives_fork(self)

    def _birth(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queues: dict[bool, deque[_Task]] = {True: deque(), False: deque()}
        self._alive: dict[tuple[bool, Hashable], _Task] = {}
        self._under_way = {True: 0, False: 0}
        self._done: deque[Done] = deque()
        self._threads: dict[bool, list[threading.Thread]] = {True: [], False: []}

    def after_fork(self) -> None:
        """In a child: the parent's jobs are the parent's."""
        self._birth()

    # On any thread; none of these waits, but `drain` and `close`.

    def load(self, job: Job) -> bool:
        """False: refused, and never in `finished()`: the backlog is full, or it is closed."""
        return self._accept(job, True)

    def store(self, job: Job) -> bool:
        """As `load`; a store that is not done by its deadline is shed."""
        return self._accept(job, False)

    def backlog(self, load: bool) -> int:
        """Jobs accepted and not ended."""
        return self._under_way[load]

    def finished(self) -> list[Done]:
        """What has ended since the last call, each exactly once."""
        now_s = self._clock()
        with self._lock:
            late = [
                task for queue in self._queues.values() for task in queue if task.left_s(now_s) <= 0
            ]
        for task in late:
            self._fence(task, Reason.DEADLINE)
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def cancel(self, id: Hashable) -> None:
        """Ends this job, load or store, soon and as a failure; unknown ones are no matter."""
        for kind in (True, False):
            task = self._alive.get((kind, id))
            if task is not None:
                self._fence(task, Reason.DEADLINE, cancelled=True)

    def drain(self, within_s: float) -> list[Done]:
        """Ends all jobs and returns what `finished()` would.

        Jobs that can be done are given `within_s`. Then all are fenced; a step under way that is
        not staged is waited for, since only then its memory is the engine's again: `STEP_S` a MiB.
        """
        until_s = time.monotonic() + within_s
        with self._work:
            while self._alive and (left_s := until_s - time.monotonic()) > 0:
                self._work.wait(left_s)
            tasks = list(self._alive.values())
        for task in tasks:
            self._fence(task, Reason.DEADLINE, cancelled=True)
        with self._work:
            # Until they are reported, which is a moment after they have ended.
            while not set(tasks).isdisjoint(self._alive.values()):
                self._work.wait(IDLE_S)
        return self.finished()

    def close(self, within_s: float = 1.0) -> None:
        """Refuses new jobs, ends all, then the threads. What ended is still in `finished()`."""
        self._closing = True
        for task in list(self._alive.values()):
            self._fence(task, Reason.DEADLINE, cancelled=True)
        with self._work:
            self._work.notify_all()
        until_s = time.monotonic() + within_s
        for thread in [*self._threads[True], *self._threads[False]]:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _accept(self, job: Job, load: bool) -> bool:
        task = _Task(job, load, self._clock())
        with self._work:
            full = self.backlog(load) >= self._jobs_max[load]
            if full or self._closing or (load, job.id) in self._alive:
                self.counts["loads_refused" if load else "stores_refused"] += 1
                return False
            self._alive[load, job.id] = task
            self._under_way[load] += 1
            self._queues[load].append(task)
            self._begin(load)
            self._work.notify_all()
        return True

    def _begin(self, load: bool) -> None:
        threads = self._threads[load]
        if len(threads) < min(self._threads_max[load], self.backlog(load)):
            name = f"{'load' if load else 'store'}-{len(threads)}"
            thread = start(name, lambda: self._run(load))
            if thread is not None:
                threads.append(thread)

    def _fence(self, task: _Task, why: Reason, cancelled: bool = False) -> None:
        """No further step of this job; it is over now if no step can be under way."""
        with task.lock:
            task.fenced = task.fenced or why
            task.cancelled = task.cancelled or cancelled
            over = task.job.staged or not task.running
        if over:
            self._end(task)

    def _end(self, task: _Task) -> None:
        """Reports the job, unless that has been done; blocks not reached have its reason."""
        now_s, job = self._clock(), task.job
        with task.lock:
            if task.ended:
                return
            task.ended = True
            task.fenced = task.fenced or Reason.DEADLINE
            status = Status.MISS if task.load else Status.SHED
            rest = len(job.keys) - len(task.outcomes)
            outcomes = [*task.outcomes, *[Outcome(status, task.fenced)] * rest]
            began_s = now_s if task.started_s is None else task.started_s
            done = Done(
                id=job.id,
                load=task.load,
                outcomes=outcomes,
                bytes=task.bytes,
                seconds=now_s - began_s,
                queued_s=began_s - task.accepted_s,
            )
        self._remember_failed(task, outcomes)
        with self._work:
            self._alive.pop((task.load, job.id), None)
            self._under_way[task.load] -= 1
            if task in self._queues[task.load]:
                self._queues[task.load].remove(task)
            self._count(done)
            self._done.append(done)
            self._work.notify_all()
        if self._wake is not None:
            try:
                self._wake()
            except Exception as error:
                self._fault("waking the engine", error)

    def _remember_failed(self, task: _Task, outcomes: Sequence[Outcome]) -> None:
        """Nobody is to be promised these blocks again at once, whether reached or not."""
        if not task.load or task.cancelled or self._session.generation != task.job.generation:
            return
        keys = task.job.keys.keys
        for at, outcome in enumerate(outcomes):
            if outcome.status is not Status.OK:
                self._session.failed.add(keys[16 * at : 16 * at + 16], recomputed(outcome.reason))

    def _count(self, done: Done) -> None:
        kind = "loads" if done.load else "stores"
        fine = sum(outcome.status in _FINE for outcome in done.outcomes)
        self.counts[kind] += 1
        self.counts[f"{kind}_blocks"] += fine
        self.counts[f"{kind}_failed_blocks"] += len(done.outcomes) - fine
        self.counts[f"{kind}_bytes"] += done.bytes
        self.seconds[done.load] += done.seconds

    def _fault(self, what: str, error: Exception) -> None:
        self.counts["faults"] += 1
        self._say.say(what, f"{what} failed: {type(error).__name__}: {error}")

    # Below this line everything runs on transfer threads.

    def _run(self, load: bool) -> None:
        while (task := self._next(load)) is not None:
            try:
                self._move(task)
            except ClosedError:
                task.fenced = task.fenced or Reason.STORE_DOWN
            except Exception as error:  # the engine must not see it
                self._fault("a load" if load else "a store", error)
                task.fenced = task.fenced or Reason.INVALID
            with task.lock:
                task.running = False
            self._end(task)

    def _next(self, load: bool) -> _Task | None:
        with self._work:
            while not self._closing:
                if self._queues[load]:
                    task = self._queues[load].popleft()
                    with task.lock:
                        task.running = True
                    return task
                self._work.wait(IDLE_S)
        return None

    def _move(self, task: _Task) -> None:
        job = task.job
        task.started_s = self._clock()
        size = max(1, job.pages.step_blocks)
        for first in range(0, len(job.keys), size):
            if not task.load:
                self._give_way(task)
            left_s = task.left_s(self._clock())
            space = self._session.space_of(job.generation)
            if task.fenced is not None or left_s <= 0:
                return
            if space is None:
                moved = self._session.generation != job.generation
                task.fenced = Reason.EPOCH if moved else Reason.STORE_DOWN
                return
            step = self._load_step if task.load else self._store_step
            if not step(task, space, first, min(size, len(job.keys) - first), left_s):
                return

    def _load_step(self, task: _Task, space: Space, first: int, count: int, left_s: float) -> bool:
        job, keys = task.job, task.job.keys[first : first + count]
        buffers = job.pages.buffers(first, count)
        sizes = [_length(buffer) for buffer in buffers]
        limit_s = min(left_s, _step_s(sum(sizes)))
        outcomes = space.get_into(keys, buffers, job.part, limit_s)
        with task.lock:
            if task.fenced is not None:
                return False  # what landed is not the engine's yet, and never will be
            job.pages.landed(first, outcomes)
            self._note(task, outcomes, sizes)
        return self._goes_on(task, outcomes)

    def _store_step(self, task: _Task, space: Space, first: int, count: int, left_s: float) -> bool:
        job, keys = task.job, task.job.keys[first : first + count]
        with task.lock:
            if task.fenced is not None:
                return False
            job.pages.gather(first, count)
        buffers = job.pages.buffers(first, count)
        sizes = [_length(buffer) for buffer in buffers]
        hashes = job.engine_hashes and job.engine_hashes[first : first + count]
        limit_s = min(left_s, _step_s(sum(sizes)))
        outcomes = space.put_from(keys, buffers, job.part, hashes or None, limit_s)
        with task.lock:
            if task.ended:
                return False
            self._note(task, outcomes, sizes)
        stored = [at for at, each in enumerate(outcomes) if each.status is Status.STORED]
        self._session.failed.forget(keys.keys[16 * at : 16 * at + 16] for at in stored)
        return self._goes_on(task, outcomes)

    def _note(self, task: _Task, outcomes: Sequence[Outcome], sizes: Sequence[int]) -> None:
        task.outcomes += outcomes
        pairs = zip(outcomes, sizes, strict=True)
        task.bytes += sum(size for outcome, size in pairs if outcome.status in _FINE)

    def _goes_on(self, task: _Task, outcomes: Sequence[Outcome]) -> bool:
        """Whether the next step can end better: not where this one found nobody, or no time."""
        for outcome in outcomes:
            if outcome.status not in _FINE and outcome.reason in _OVER:
                task.fenced = task.fenced or outcome.reason
                return False
        return task.fenced is None

    def _give_way(self, task: _Task) -> None:
        """Loads first: a request waits for each of them, and nobody for a store."""
        until_s = time.monotonic() + YIELD_S
        with self._work:
            while (
                task.fenced is None
                and any(load for load, _ in self._alive)
                and (left_s := until_s - time.monotonic()) > 0
            ):
                self._work.wait(left_s)


def _length(buffer: Buffer) -> int:
    if isinstance(buffer, tuple):
        return buffer[1]
    return memoryview(buffer).nbytes  # type: ignore[arg-type]  # an array's is known at run time


def _step_s(size: int) -> float:
    return STEP_S * max(1.0, size / STEP_BYTES)


COUNTS = (
    *("loads", "loads_blocks", "loads_failed_blocks", "loads_bytes", "loads_refused"),
    *("stores", "stores_blocks", "stores_failed_blocks", "stores_bytes", "stores_refused"),
    "faults",
)
