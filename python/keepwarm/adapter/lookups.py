"""Questions about whole prompts: asked on the scheduler's thread, answered by a thread of its own.

    ask ──► queue ──► one round trip ──► answer()            the lease stays until close()
     │                     └──deadline──► answer(): all miss  the late lease is given back unasked
     └─ breaker open, no space, queue full: answered at once

The asker's clock decides what is late. Nothing here makes the asker wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keepwarm.adapter.breaker import Breaker
from keepwarm.adapter.reasons import Recomputed, recomputed
from keepwarm.adapter.session import Session
from keepwarm.adapter.threads import Sayer, start, survives_fork
from keepwarm.client import Space
from keepwarm.errors import ClosedError
from keepwarm.outcomes import Lookup, Reason
from keepwarm.prompt import Prompt

LEASE_S = 5.0
QUESTIONS_MAX = 1024
LATE_S = 1.0  # how much longer than its asker the thread waits, to see a late answer
RELEASE_S = 0.1
IDLE_S = 5.0
_SILENT = (Reason.DEADLINE, Reason.STORE_DOWN)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is here of a prompt; `hits` and `tiers` have one entry a key."""

    hits: Sequence[bool]
    prefix: int
    tiers: Sequence[str | None]
    miss: Recomputed | None
    """why the first missing key is missing"""
    restore_s: float | None
    """the node's estimate for the prefix; None where nobody asked it"""
    waited_s: float


def _nothing(count: int, miss: Recomputed, waited_s: float) -> Answer:
    return Answer((False,) * count, 0, (None,) * count, miss if count else None, None, waited_s)


class Question:
    """One prompt's. Belongs to the thread that asked; the answering thread only fills it."""

    __slots__ = (
        "_answer",
        "_asked_s",
        "_closed",
        "_count",
        "_deadline_s",
        "_found",
        "_lookups",
        "generation",
        "prompt",
    )

    def __init__(self, lookups: Lookups, prompt: Prompt, generation: int, now_s: float) -> None:
        self.prompt = prompt
        self.generation = generation
        self._lookups = lookups
        self._count = len(prompt)
        self._asked_s = now_s
        self._deadline_s = now_s + lookups.deadline_s
        self._answer: Answer | None = None
        self._found: Lookup | None = None
        self._closed = False

    def answer(self) -> Answer | None:
        """None: not yet. Never blocks; the same object from the first answer on."""
        if self._answer is None and self._lookups.now_s() >= self._deadline_s:
            self._lookups.missed(self)
        return self._answer

    def close(self) -> None:
        """The blocks are not needed any more: gives the lease back in the background."""
        self._lookups.closed(self)


class Lookups:
    """See the module."""

    def __init__(
        self,
        session: Session,
        *,
        deadline_s: float,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.deadline_s = deadline_s
        self.now_s = clock
        self.breaker = Breaker(clock)
        self.counts = dict.fromkeys(COUNTS, 0)
        self.waited_s = 0.0
        self._session = session
        self._lease_s = lease_s
        self._say = Sayer(clock)
        self._closing = False
        self._birth()
        survives_fork(self)

    def _birth(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: deque[Question] = deque()
        self._releases: deque[Lookup] = deque(maxlen=QUESTIONS_MAX)
        self._probe: Prompt | None = None
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """In a child: the parent's questions stay the parent's, and get no answer here."""
        self._birth()
        self.breaker = Breaker(self.now_s)

    def ask(self, prompt: Prompt) -> Question:
        """Sends one question for all keys; what cannot be asked is answered at once."""
        now = self._session.now
        question = Question(self, prompt, now.generation, self.now_s())
        refusal = self._refusal(now.space, prompt)
        if refusal is None:
            with self._work:
                if len(self._queue) < QUESTIONS_MAX and not self._closing:
                    self._queue.append(question)
                    self.counts["asked"] += 1
                    self._begin()
                    self._work.notify()
                    return question
            refusal = Recomputed.THROTTLED
        question._answer = _nothing(len(prompt), refusal, 0.0)
        self.counts["unasked"] += 1
        return question

    def _refusal(self, space: Space | None, prompt: Prompt) -> Recomputed | None:
        if space is None:
            self._session.ensure()
            return self._session.unready()
        if prompt.namespace is not self._session.namespace:
            return Recomputed.EPOCH  # keys from before a move
        if self.breaker.open:
            return Recomputed.STORE_DOWN
        return None

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = start("lookups", self._run)

    def missed(self, question: Question) -> None:
        """The asker's deadline has passed."""
        with self._lock:
            if question._answer is not None:
                return  # it came in this very moment
            waited_s = self.now_s() - question._asked_s
            question._answer = _nothing(question._count, Recomputed.DEADLINE, waited_s)
            self._probe = question.prompt[:1]
            self.counts["missed"] += 1
            self.waited_s += waited_s
            self.breaker.trip()
            self._work.notify()

    def closed(self, question: Question) -> None:
        """See `Question.close`."""
        with self._lock:
            question._closed = True
            found, question._found = question._found, None
            if found is not None:
                self._releases.append(found)
                self._work.notify()

    def close(self, within_s: float = 1.0) -> None:
        """Ends the thread; open questions are answered by their deadlines. Twice is harmless."""
        with self._work:
            self._closing = True
            self._work.notify_all()
        thread = self._thread
        if thread is not None:
            thread.join(within_s)

    # Below this line everything runs on the answering thread.

    def _run(self) -> None:
        while not self._closing:
            question, releases = self._next()
            try:
                if question is not None:
                    self._ask(question)
                elif not releases:
                    self._probe_once()
                for found in releases:
                    found.release(RELEASE_S)
            except Exception as error:  # whatever it is, the engine must not see it
                if not isinstance(error, ClosedError):
                    self.counts["faults"] += 1
                    self._say.say("lookup", f"a lookup failed: {type(error).__name__}: {error}")
                self.breaker.probed(answered=False)
                if question is not None:
                    self._fill(question, None, Recomputed.STORE_DOWN)

    def _next(self) -> tuple[Question | None, list[Lookup]]:
        """The next question, and a few leases to give back; waits while there is nothing."""
        with self._work:
            while not self._closing:
                few = [self._releases.popleft() for _ in range(min(4, len(self._releases)))]
                if self._queue:
                    return self._queue.popleft(), few
                if few:
                    return None, few
                probe_in_s = self.breaker.probe_in()
                if probe_in_s is not None and probe_in_s <= 0:
                    return None, []
                self._work.wait(IDLE_S if probe_in_s is None else probe_in_s)
        return None, []

    def _ask(self, question: Question) -> None:
        with self._lock:
            if question._closed or question._answer is not None:
                return
        space = self._session.space_of(question.generation)
        if space is None:
            self._fill(question, None, self._session.unready())
            return
        left_s = max(0.0, question._deadline_s - self.now_s())
        found = space.lookup(question.prompt, lease_s=self._lease_s, deadline_s=left_s + LATE_S)
        silent = found.miss in _SILENT and not found.prefix
        if silent:
            with self._lock:
                self._probe = question.prompt[:1]
            self.breaker.trip()
        self._fill(question, None if silent else found, recomputed(found.miss))
        if not silent and self.breaker.open:  # late, but it answers: see whether it is quick again
            self._probe_once()

    def _fill(self, question: Question, found: Lookup | None, miss: Recomputed) -> None:
        """Writes the answer, once; a lease that nobody waits for goes back."""
        answer = None if found is None else self._read(question, found)
        with self._lock:
            waited_s = self.now_s() - question._asked_s
            late = question._answer is not None
            if not late:
                question._answer = answer or _nothing(question._count, miss, waited_s)
                self.waited_s += waited_s
                self.counts["answered"] += 1
            if found is None or found.lease is None:
                return
            if late or question._closed:
                self._releases.append(found)
            else:
                question._found = found

    def _read(self, question: Question, found: Lookup) -> Answer:
        hits, prefix = found.hits, found.prefix
        miss = None if found.miss is None else recomputed(found.miss)
        held = self._session.failed.first(question.prompt.keys)
        if held is not None:
            hits, prefix, miss = self._without_failed(question, hits, prefix, miss, held)
        waited_s = self.now_s() - question._asked_s
        return Answer(hits, prefix, found.tiers, miss, found.restore_s, waited_s)

    def _without_failed(
        self,
        question: Question,
        hits: Sequence[bool],
        prefix: int,
        miss: Recomputed | None,
        held: tuple[int, Recomputed],
    ) -> tuple[list[bool], int, Recomputed | None]:
        """What the node has, less what it did not deliver a moment ago."""
        keys, reason = question.prompt.keys, self._session.failed.reason
        left = [hit and reason(keys[16 * at : 16 * at + 16]) is None for at, hit in enumerate(hits)]
        return (left, held[0], held[1]) if held[0] < prefix else (left, prefix, miss)

    def _probe_once(self) -> None:
        """Asks for one key, and closes the breaker if that is answered within the deadline."""
        due_s, space = self.breaker.probe_in(), self._session.space
        if due_s is None or due_s > 0:
            return
        prompt = self._probe
        if space is None or prompt is None or prompt.namespace is not space.namespace:
            self.breaker.probed(answered=space is not None)  # nothing to ask with: the next one may
            return
        self.counts["probes"] += 1
        found = space.lookup(prompt, lease_s=None, deadline_s=self.deadline_s)
        self.breaker.probed(answered=found.miss not in _SILENT)


COUNTS = ("asked", "unasked", "answered", "missed", "probes", "faults")
