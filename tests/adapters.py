"""What tests of connectors' shared parts need: sessions on fakes, jobs over plain memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from keepwarm import Memory, Namespace, Outcome, Status
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
