"""A client under load, as a program of its own: what an engine does, over and over.

Each line on standard input ends a phase; each line on standard output is what that phase saw.
Every byte got is checked. Usage: fleet_load.py ADDRESSES DEADLINE_S THREADS SEED GRACE_S RAMP_S
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import keepwarm
from keepwarm.config import parse_addresses
from keepwarm.connecting import connect_fleet
from keepwarm.testing import blocks, namespace

BLOCK_BYTES = 48 * 1024
PROMPT_BLOCKS = 12
PROMPTS = 30
NAMES = namespace(block_tokens=4, run_blocks=4)


@dataclass
class Seen:
    """What one phase saw."""

    late_s: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    puts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self) -> dict[str, Any]:
        """As JSON."""
        late = sorted(self.late_s) or [0.0]
        return {
            "calls": len(self.late_s),
            "late_p99_s": late[int(0.99 * (len(late) - 1))],
            "late_max_s": late[-1],
            "outcomes": self.outcomes,
            "puts": self.puts,
            "wrong": self.wrong,
        }


class Load:
    """Threads that look up, get, and put what was missing."""

    def __init__(self, memory: keepwarm.Memory, deadline_s: float) -> None:
        self._space = memory.attach(NAMES, deadline_s=5.0)
        self._deadline_s = deadline_s
        self.seen = Seen()
        self.over = threading.Event()

    def timed(self, call: Any, *arguments: Any) -> Any:
        """A call, and how late it was."""
        begun = time.monotonic()
        answer = call(*arguments, deadline_s=self._deadline_s)
        late = time.monotonic() - begun - self._deadline_s
        with self.seen.lock:
            self.seen.late_s.append(late)
        return answer

    def turn(self, number: int) -> None:
        """One request of an engine."""
        first = number * PROMPT_BLOCKS * 4
        prompt = NAMES.prompt(range(first, first + PROMPT_BLOCKS * 4))
        found = self.timed(self._space.lookup, prompt)
        into = bytearray(BLOCK_BYTES * PROMPT_BLOCKS)
        got = self.timed(self._space.get_into, prompt, into)
        self.timed(found.release) if found.lease is not None else None
        seen = self.seen
        with seen.lock:
            for (key, share), outcome in zip(blocks.shares(prompt.keys, into), got, strict=True):
                seen.outcomes[str(outcome.reason or outcome.status)] += 1
                if outcome.status == "ok" and (bad := blocks.check(key, share)) is not None:
                    seen.wrong.append(f"key {key.hex()}: {bad}")
        here = next((at for at, one in enumerate(got) if one.status != "ok"), len(got))
        rest = prompt[here:]
        if len(rest):
            data = bytearray(BLOCK_BYTES * len(rest))
            blocks.fill_many(rest.keys, data)
            put = self.timed(self._space.put_from, rest, data)
            with seen.lock:
                seen.puts.update(str(outcome.reason or outcome.status) for outcome in put)
        self.timed(self._space.touch, prompt)

    def run(self, seed: str) -> None:
        """Until it is over."""
        rng = random.Random(seed)
        while not self.over.is_set():
            self.turn(rng.randrange(PROMPTS))


def main(addresses: str, deadline_s: str, threads: str, seed: str, grace: str, ramp: str) -> None:
    timing = (float(grace), float(ramp))
    with connect_fleet(parse_addresses(addresses), timing=timing) as memory:
        load = Load(memory, float(deadline_s))
        workers = [
            threading.Thread(target=load.run, args=(f"{seed} {number}",))
            for number in range(int(threads))
        ]
        for worker in workers:
            worker.start()
        for _ in sys.stdin:
            seen, load.seen = load.seen, Seen()
            nodes = {each["name"]: each["state"] for each in memory.health()["nodes"]}
            with seen.lock:
                print(json.dumps({**seen.report(), "nodes": nodes}), flush=True)
        load.over.set()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
