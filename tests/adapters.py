"""What tests of connectors' shared parts need: sessions on fakes, jobs over plain memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

from keepwarm import Memory, Namespace, Outcome, Reason, Status
from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import Settings
from keepwarm.prompt import Prompt
from keepwarm.testing import FakeMemory, eventually
from nodes import FIELDS

BLOCK_BYTES = 4096


def session_on(memory: Any, **settings: Any) -> Session:
    """A session whose connect gives `memory`, attached."""
    made = Session(
        Settings(**settings), cast(Any, FIELDS), connect=lambda *_, **__: cast(Memory, memory)
    )
    eventually(lambda: made.space is not None, "the session attaches")
    return made


def fake_session(**settings: Any) -> tuple[Session, FakeMemory]:
    """A session on a fake memory."""
    memory = FakeMemory()
    return session_on(memory, **settings), memory


class ShakySpace:
    """A space that hangs, within each call's deadline, while its gate is shut.

    One call at a time reaches what is below: fakes are made for one thread. `busy` holds the
    memory that a get or put is at, by its owner's id.
    """

    def __init__(self, below: Any) -> None:
        self.below = below
        self.namespace = below.namespace
        self.problem: str | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.busy: list[int] = []
        self.asked = 0
        self._lock = threading.Lock()

    def _late(self, deadline_s: float) -> bool:
        return not self.gate.wait(deadline_s)

    def lookup(self, keys: Any, *, lease_s: float | None, deadline_s: float) -> Any:
        self.asked += 1
        late = self._late(deadline_s)
        with self._lock:
            return self.below.lookup(keys, lease_s=lease_s, deadline_s=0.0 if late else 60.0)

    def get_into(self, keys: Any, buffers: Any, part: int = 0, deadline_s: float = 1.0) -> Any:
        return self._moved(self.below.get_into, keys, buffers, part, deadline_s)

    def put_from(
        self,
        keys: Any,
        buffers: Any,
        part: int = 0,
        engine_hashes: Any = None,  # noqa: ARG002 - the fake makes nothing of them
        deadline_s: float = 1.0,
    ) -> Any:
        outcomes = self._moved(self.below.put_from, keys, buffers, part, deadline_s)
        late = Outcome(Status.SHED, Reason.DEADLINE)
        return [late if each.reason is Reason.DEADLINE else each for each in outcomes]

    def _moved(self, call: Any, keys: Any, buffers: Any, part: int, deadline_s: float) -> Any:
        mine = id(memoryview(buffers[0]).obj)
        self.busy.append(mine)
        try:
            if self._late(deadline_s):
                return [Outcome(Status.MISS, Reason.DEADLINE)] * len(keys)
            with self._lock:
                return call(keys, buffers, part, deadline_s=deadline_s)
        finally:
            self.busy.remove(mine)


class ShakyMemory(FakeMemory):
    """A fake memory whose spaces are shaky; `spaces` has them, oldest first."""

    def __init__(self, below: Any = None) -> None:
        super().__init__()
        self.below = below
        self.spaces: list[ShakySpace] = []

    def attach(self, *args: Any, **named: Any) -> Any:
        below = super().attach if self.below is None else self.below.attach
        self.spaces.append(ShakySpace(below(*args, **named)))
        return self.spaces[-1]


def shaky_session(below: Any = None) -> tuple[Session, ShakyMemory]:
    """A session on a memory that can hang; `below` is a real one."""
    memory = ShakyMemory(below)
    return session_on(memory), memory


def threads_of_ours() -> list[str]:
    """Names of the adapter's threads that live."""
    alive = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in alive if name.startswith("keepwarm-"))


def prompt_of(namespace: Namespace, blocks: int, seed: int = 0) -> Prompt:
    """Keys that `seed` makes distinct."""
    return namespace.prompt(range(seed * 1_000_000, seed * 1_000_000 + blocks * 16))


class PlainPages:
    """A job's blocks in one bytearray, the engine's; counts who looks into it and when."""

    def __init__(self, blocks: int, step_blocks: int = 2, data: bytes | None = None) -> None:
        self.memory = bytearray(data or blocks * BLOCK_BYTES)
        self.step_blocks = step_blocks
        self.calls: list[str] = []
        self.landed_blocks: set[int] = set()

    def buffers(self, first: int, count: int) -> Sequence[Any]:
        view = memoryview(self.memory)
        size = BLOCK_BYTES
        return [view[at * size : (at + 1) * size] for at in range(first, first + count)]

    def landed(self, first: int, outcomes: Sequence[Outcome]) -> None:
        self.calls.append(f"landed {first}")
        self.landed_blocks |= {
            first + at for at, each in enumerate(outcomes) if each.status is Status.OK
        }

    def gather(self, first: int, count: int) -> None:
        self.calls.append(f"gather {first}+{count}")
