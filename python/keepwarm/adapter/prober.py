"""Measures the way to a node without a request: at connect, and while nothing is restored.

Blocks of its own, in a namespace of their own that all engines of a tenant share, are put once and
then got. After the first gets it runs only while the planner has stopped restoring, and then at
most 1 % of the time, so that a store that became fast again is noticed and nobody pays for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from keepwarm.adapter.session import Session
from keepwarm.adapter.threads import Sayer, start, survives_fork
from keepwarm.client import Memory, Space
from keepwarm.errors import ClosedError
from keepwarm.identity import Namespace, NamespaceFields
from keepwarm.outcomes import Reason, Status
from keepwarm.planner import Planner

FIRST_PROBES = 3
# 8 MiB; small blocks, so that a probe of a very slow node is short too.
BLOCKS, BLOCK_BYTES = 128, 64 << 10
DEADLINE_S = 1.0
PROBE_S = 0.02  # longer probes say no more, and the next one has to wait longer
LATER_S = 0.1  # and so has one that takes longer than expected, after those at connect
SHARE = 0.01
LOOK_S = 0.5
TIER = "dram"  # its blocks are small and used often

_GONE = (Reason.ABSENT, Reason.EVICTED, Reason.EXPIRED, Reason.EPOCH, Reason.CORRUPT)
_FIELDS: NamespaceFields = {
    "tenant": "default",
    "model": "keepwarm/probe",
    "weights": "none",
    "load": "none",
    "quantisation": "none",
    "kv_dtype": "bytes",
    "kv_scales": "none",
    "layers": 1,
    "kv_heads": 1,
    "head_dim": 1,
    "layout": "probe",
    "engine": "keepwarm",
    "attention_backend": "none",
    "isa": "any",
    "block_tokens": 1,
    "kv_options": [],
    "parallel": "none",
    "connector": "keepwarm.probe/1",
    "parts": 1,
    "run_blocks": BLOCKS,
}


def blocks_for(rate: float) -> int:
    """How many blocks a probe is to get where this many bytes a second are expected."""
    return max(1, min(BLOCKS, int(rate * PROBE_S / BLOCK_BYTES)))


class Prober:
    """One daemon thread. See the module."""

    def __init__(
        self,
        session: Session,
        planner: Planner,
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Measures from now on, whenever the session has a memory."""
        self._session = session
        self._planner = planner
        self._look_s = look_s
        self._clock = clock
        self._say = Sayer(clock)
        self._closing = False
        fields: NamespaceFields = {**_FIELDS, "tenant": session.settings.tenant}
        self._namespace = Namespace(secret=session.settings.secret, **fields)
        self._prompt = self._namespace.prompt(range(BLOCKS))
        self._birth()
        survives_fork(self)
        self.ensure()

    def _birth(self) -> None:
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._memory: Memory | None = None
        self._space: Space | None = None
        self._first_left, self._tries_left = FIRST_PROBES, 2 * FIRST_PROBES

    def after_fork(self) -> None:
        """In a child: measures nothing until it is asked to."""
        self._planner.after_fork()
        self._birth()

    def ensure(self) -> None:
        """Starts the thread, if this process has none and the planner is led by measurements."""
        if self._thread is None and not self._closing and self._planner.mode == "measured":
            self._thread = start("prober", self._run)

    def close(self, within_s: float = 1.0) -> None:
        """Ends the thread; waits at most this long. Twice is harmless."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(within_s)

    # Below this line everything runs on the prober's own thread.

    def _run(self) -> None:
        buffer = bytearray(BLOCKS * BLOCK_BYTES)
        while not self._closing:
            took_s = 0.0
            try:
                if self._first_left > 0 or self._planner.stopped:
                    took_s = self._probe(buffer)
            except ClosedError:
                self._memory = None
            except Exception as error:  # the engine must not see it
                self._say.say("probe", f"a probe failed: {type(error).__name__}: {error}")
            more = self._first_left > 0 and took_s > 0
            self._wake.wait(0.0 if more else max(self._look_s, took_s / SHARE))

    def _probe(self, buffer: bytearray) -> float:
        """One get of the blocks, and a put of those that are not there; returns how long it took.

        0: there was nobody to ask.
        """
        space = self._attached()
        if space is None:
            return 0.0
        first = self._first_left > 0
        limit_s = DEADLINE_S if first else LATER_S
        tried = 2 * FIRST_PROBES - self._tries_left
        rate = self._planner.rate(TIER, BLOCK_BYTES * BLOCKS)
        blocks = max(1, BLOCKS >> tried) if rate is None else blocks_for(rate)
        prompt, part = self._prompt[:blocks], memoryview(buffer)[: blocks * BLOCK_BYTES]
        began_s = self._clock()
        outcomes = space.get_into(prompt, part, deadline_s=limit_s)
        took_s = self._clock() - began_s
        landed = sum(outcome.status is Status.OK for outcome in outcomes)
        if landed:
            self._planner.probed(TIER, landed * BLOCK_BYTES, took_s)
            self._first_left -= first
        elif outcomes[0].reason is Reason.STORE_DOWN:
            return 0.0
        elif first:
            self._tries_left -= 1
            if not self._tries_left:
                self._first_left = 0  # a node that takes no puts of ours is not asked for ever
        if any(outcome.reason in _GONE for outcome in outcomes):
            space.put_from(prompt, part, deadline_s=limit_s)
        return max(self._clock() - began_s, 1e-6)

    def _attached(self) -> Space | None:
        memory = self._session.memory
        if memory is None or self._session.space is None:
            return None
        if memory is not self._memory or self._space is None:
            # Priority 0: where memory is short these blocks leave first.
            self._space = memory.attach(self._namespace, deadline_s=DEADLINE_S, priority=0)
            self._memory = memory
        return self._space
