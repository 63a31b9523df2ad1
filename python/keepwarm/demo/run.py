"""The run itself: turns to two replicas, a kill -9 in the middle, a restart, the rest.

    turns … │ idle: read the node's counters │ both busy: kill -9 │ turns while it is down │
            │ start it again, tell nobody │ turns … │ idle: read the counters │ probe │ end

Nobody tells the replicas about the kill or the restart: they find out by themselves.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepwarm.demo import machine
from keepwarm.demo.ledger import Ledger, askable_blocks
from keepwarm.demo.plan import REPLICAS, Plan, Turn
from keepwarm.demo.processes import ReplicaProcess
from keepwarm.testing import namespace
from keepwarm.testing.blocks import split_keys
from keepwarm.testing.node import NodeProcess, ProcessError

ANSWER_S_MAX = 60.0
KILL_AFTER_S = 0.015
LOOK_AHEAD = 64

Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Served:
    """One turn with its answer, and what a memory without limits would have restored.

    `most_tokens` is more than `ideal_tokens` where turns that ran meanwhile asked for the same.
    """

    turn: Turn
    answer: dict[str, Any]
    ledger: Ledger
    ideal_tokens: int
    most_tokens: int


@dataclass(slots=True)
class Record:
    """Everything that was observed; times are monotonic seconds."""

    plan: Plan
    command: str = ""
    served: list[Served] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    idle: float = 0.0
    killed: float = 0.0
    restarted: float = 0.0
    ready: float = 0.0
    stat_before_kill: dict[str, Any] = field(default_factory=dict)
    stat_at_end: dict[str, Any] = field(default_factory=dict)
    said_at_stop: str = ""
    stat_after_stop: dict[str, Any] = field(default_factory=dict)
    resident: dict[str, dict[str, int]] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, object] = field(default_factory=dict)


class Ideal:
    """A memory without limits that never dies: every block that anyone has asked for before."""

    def __init__(self, block_tokens: int) -> None:
        self._names = namespace(block_tokens=block_tokens, connector="keepwarm.demo/1")
        self._turns_that_asked: Counter[bytes] = Counter()

    def tokens(self, turn: Turn) -> int:
        """Tokens that it would restore for this turn; remembers the turn."""
        keys = self._keys(turn)
        known = self._asked_by(1, keys, turn)
        self._turns_that_asked.update(keys)
        return known

    def most_tokens(self, turn: Turn) -> int:
        """What any memory can have restored for a remembered turn: what others have asked, too."""
        return self._asked_by(2, self._keys(turn), turn)

    def _keys(self, turn: Turn) -> list[bytes]:
        return split_keys(self._names.block_keys(turn.request.token_ids()))

    def _asked_by(self, turns: int, keys: list[bytes], turn: Turn) -> int:
        size = turn.request.block_tokens
        asked = askable_blocks(turn.request.input_tokens, size)
        known = (i for i, k in enumerate(keys[:asked]) if self._turns_that_asked[k] < turns)
        return next(known, asked) * size


class Run:
    """One demo run; `go` may be called once."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress) -> None:
        self.plan = plan
        self.record = Record(plan)
        self._progress = progress
        flash = f"{folder / 'flash'}={plan.flash_bytes()}"
        extra = ("--state-dir", str(folder / "state"), "--flash", flash, "--drain", "8s")
        self._node = NodeProcess(folder, plan.arena_bytes, plan.config.policy, extra)
        self._answers: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._replicas: list[ReplicaProcess] = []
        self._waiting: deque[Turn] = deque(plan.turns)
        self._in_flight: dict[int, tuple[Turn, int]] = {}
        self._ideal = Ideal(plan.trace.block_tokens)

    def go(self) -> Record:
        """Runs the whole demo. Raises ProcessError when a process fails in a way it must not."""
        record = self.record
        record.command = self._node.command
        with ExitStack() as stack:
            stack.callback(self._node.stop)
            self._node.start()
            self._node.wait_ready()
            record.resident["node at start"] = machine.resident_bytes(self._node.pid)
            self._start_replicas(stack)
            record.started = time.monotonic()
            self._serve_until(self.plan.kill_after(), "serving")
            self._idle()
            record.idle = time.monotonic()
            record.stat_before_kill = self._node.stat()
            record.resident["node before kill"] = machine.resident_bytes(self._node.pid)
            self._kill_and_restart()
            self._serve_until(len(self.plan.turns), "serving")
            record.ended = time.monotonic()
            record.stat_at_end = self._node.stat()
            record.resident["node at end"] = machine.resident_bytes(self._node.pid)
            self._restart_in_order()
            record.probe = self._probe()
            record.machine = machine.describe()
        return record

    def _start_replicas(self, stack: ExitStack) -> None:
        settings = {
            "address": self._node.address,
            "block_bytes": self.plan.config.block_bytes,
            "block_tokens": self.plan.trace.block_tokens,
            "blocks_max": self.plan.blocks_max(),
            "deadline_s": self.plan.config.deadline_s,
        }
        for number, name in enumerate(REPLICAS):
            replica = ReplicaProcess(number, name, settings, self._answers)
            stack.callback(replica.close)
            self._replicas.append(replica)
        for _ in REPLICAS:
            self._answer()

    def _kill_and_restart(self) -> None:
        self._dispatch()
        self._progress(len(self.record.served), len(self.plan.turns), "kill -9")
        pause_until = time.monotonic() + KILL_AFTER_S
        while (left := pause_until - time.monotonic()) > 0:
            self._collect(left)
        self.record.killed = self._node.kill()
        until = min(len(self.record.served) + self.plan.down_turns(), len(self.plan.turns))
        self._serve_until(until, "the node is down")
        self.record.restarted = self._node.start()
        # Each replica has one more turn meanwhile: a slow start must not use up the run.
        self._dispatch()
        self.record.ready = self._node.wait_ready()

    def _restart_in_order(self) -> None:
        """SIGTERM: what memory alone holds goes to flash, and is there again afterwards."""
        self._idle()
        self._progress(len(self.record.served), len(self.plan.turns), "SIGTERM")
        self._node.stop()
        self.record.said_at_stop = self._node.last_line("keepwarm: wrote")
        self._node.start()
        self._node.wait_ready()
        self.record.stat_after_stop = self._node.wait_claimed()

    def _serve_until(self, count: int, doing: str) -> None:
        while len(self.record.served) < count:
            self._dispatch()
            self._collect(ANSWER_S_MAX, must=True)
            self._progress(len(self.record.served), len(self.plan.turns), doing)

    def _idle(self) -> None:
        while self._in_flight:
            self._collect(ANSWER_S_MAX, must=True)

    def _dispatch(self) -> None:
        for replica in self._replicas:
            if replica.number in self._in_flight:
                continue
            turn = self._next_for(replica.number)
            if turn is None:
                continue
            self._in_flight[replica.number] = (turn, self._ideal.tokens(turn))
            request = turn.request
            replica.ask(
                {
                    "do": "turn",
                    "turn": turn.number,
                    "session": request.session,
                    "input_tokens": request.input_tokens,
                    "block_ids": list(request.block_ids),
                }
            )

    def _next_for(self, replica: int) -> Turn | None:
        """The first turn in order for this replica whose session has none before it left."""
        blocked = {turn.request.session for turn, _ in self._in_flight.values()}
        for at, turn in enumerate(self._waiting):
            if at == LOOK_AHEAD:
                break
            session = turn.request.session
            if turn.replica == replica and session not in blocked:
                del self._waiting[at]
                return turn
            blocked.add(session)
        return None

    def _collect(self, patience_s: float, must: bool = False) -> None:
        try:
            number, answer = self._answers.get(timeout=patience_s)
        except queue.Empty:
            if must:
                raise ProcessError(f"no replica answered within {patience_s:.0f} s") from None
            return
        turn, ideal = self._in_flight.pop(number)
        if answer is None:
            raise ProcessError(f"replica {REPLICAS[number]} ended during turn {turn.number}")
        ledger = Ledger.from_json(answer["ledger"])
        most = self._ideal.most_tokens(turn)
        self.record.served.append(Served(turn, answer, ledger, ideal, most))

    def _answer(self) -> dict[str, Any]:
        try:
            number, answer = self._answers.get(timeout=ANSWER_S_MAX)
        except queue.Empty:
            raise ProcessError("a replica did not answer; see its output") from None
        if answer is None:
            raise ProcessError(f"replica {REPLICAS[number]} ended; see its output")
        return answer

    def _probe(self) -> dict[str, Any]:
        self._replicas[0].ask({"do": "probe"})
        return self._answer()


def run(plan: Plan, progress: Progress) -> Record:
    """Runs the demo in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="keepwarm-demo-") as folder:
        return Run(plan, Path(folder), progress).go()
