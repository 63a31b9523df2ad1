"""One replica: a process that serves turns with the memory's help and verifies every byte.

Speaks JSON lines: settings first, then one job a line on standard input, one answer a line on
standard output. For each turn:

    block keys ─► lookup ─► get the prefix ─► verify every byte ─► compute the rest ─► put ─► touch

Computing is imitated by writing the block's known content; nothing else is. The buffer is spoiled
before each get: right bytes that an earlier turn left there must not pass for bytes that landed.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import keepwarm
from keepwarm import Outcome, Status
from keepwarm.demo.ledger import account, askable_blocks, usable
from keepwarm.demo.machine import Memcpy
from keepwarm.testing import blocks, namespace
from keepwarm.testing.traces import Request

LEASE_S = 2.0
PROBE_ROUNDS = 7
PROBE_BLOCKS = 256
SPOILED_BYTE = 0xEE
_T = TypeVar("_T")


@dataclass(slots=True)
class Calls:
    """Every call of a turn: kind, start, end (monotonic seconds), bytes moved, what came of it."""

    deadline_s: float
    made: list[dict[str, Any]] = field(default_factory=list)

    def timed(self, kind: str, call: Callable[[], _T]) -> tuple[_T, dict[str, Any]]:
        """Makes a call and notes when it began and ended."""
        start = time.monotonic()
        answer = call()
        note: dict[str, Any] = {"kind": kind, "start": start, "end": time.monotonic()}
        self.made.append(note)
        return answer, note


class Replica:
    """The state of one replica: its client, its buffer, nothing that a crash would lose."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.block_bytes = int(settings["block_bytes"])
        self.block_tokens = int(settings["block_tokens"])
        self.deadline_s = float(settings["deadline_s"])
        self.names = namespace(block_tokens=self.block_tokens, connector="keepwarm.demo/1")
        self.memory = keepwarm.connect(str(settings["address"]))
        self.space = self.memory.attach(self.names)
        size = int(settings["blocks_max"]) * self.block_bytes
        self.buffer = memoryview(bytearray(size))

    def turn(self, job: dict[str, Any]) -> dict[str, Any]:
        """Serves one request."""
        started = time.monotonic()
        request = Request(
            session=job["session"],
            arrival_s=0.0,
            input_tokens=job["input_tokens"],
            output_tokens=0,
            block_tokens=self.block_tokens,
            block_ids=array("Q", job["block_ids"]),
        )
        keys = self.names.block_keys(request.token_ids())
        asked = askable_blocks(request.input_tokens, self.block_tokens)
        calls = Calls(self.deadline_s)
        with calls.timed("lookup", lambda: self._lookup(keys[: asked * 16]))[0] as found:
            calls.made[0] |= {"blocks": asked, "hits": sum(found.hits), "miss": found.miss}
            outcomes = self._get(calls, keys[: found.prefix * 16])
            tiers, miss = list(found.tiers[: found.prefix]), found.miss
        landed = usable(outcomes)
        verified = time.monotonic()
        wrong = self._verify(keys, outcomes)
        computed = time.monotonic()
        self._put(calls, keys, landed)
        calls.timed("touch", lambda: self.space.touch(keys))
        ledger = account(request.input_tokens, self.block_tokens, miss, tiers, outcomes)
        return {
            "turn": job["turn"],
            "started": started,
            "ended": time.monotonic(),
            "verify_s": computed - verified,
            "ledger": ledger.to_json(),
            "bytes_verified": sum(o.status is Status.OK for o in outcomes) * self.block_bytes,
            "wrong_bytes": wrong,
            "calls": calls.made,
        }

    def _lookup(self, keys: bytes) -> keepwarm.Lookup:
        return self.space.lookup(keys, lease_s=LEASE_S, deadline_s=self.deadline_s)

    def _share(self, first: int, last: int) -> memoryview:
        return self.buffer[first * self.block_bytes : last * self.block_bytes]

    def _get(self, calls: Calls, keys: bytes) -> list[Outcome]:
        count = len(keys) // 16
        if not count:
            return []
        into = self._share(0, count)
        _spoil(into)
        outcomes, note = calls.timed(
            "get", lambda: self.space.get_into(keys, into, deadline_s=self.deadline_s)
        )
        note |= self._summary(outcomes, Status.OK)
        return outcomes

    def _put(self, calls: Calls, keys: bytes, landed: int) -> None:
        whole = len(keys) // 16
        if landed == whole:
            return
        rest, data = keys[landed * 16 :], self._share(landed, whole)
        blocks.fill_many(rest, data)
        outcomes, note = calls.timed(
            "put", lambda: self.space.put_from(rest, data, deadline_s=self.deadline_s)
        )
        note |= self._summary(outcomes, Status.STORED)

    def _summary(self, outcomes: list[Outcome], good: Status) -> dict[str, Any]:
        kinds = Counter(str(o.reason or o.status) for o in outcomes)
        bytes_moved = sum(o.status is good for o in outcomes) * self.block_bytes
        return {"blocks": len(outcomes), "bytes": bytes_moved, "outcomes": dict(kinds)}

    def _verify(self, keys: bytes, outcomes: list[Outcome]) -> int:
        wrong = 0
        for at, outcome in enumerate(outcomes):
            if outcome.status is Status.OK:
                key = keys[at * 16 : at * 16 + 16]
                mismatch = blocks.check(key, self._share(at, at + 1))
                wrong += mismatch.wrong_bytes if mismatch is not None else 0
        return wrong

    def probe(self) -> dict[str, Any]:
        """Get and put against memcpy of the same bytes, alternating, nothing else running."""
        count = min(PROBE_BLOCKS, len(self.buffer) // self.block_bytes)
        copies = Memcpy(self.block_bytes)
        data = self._share(0, count)
        gets: list[float] = []
        puts: list[float] = []
        copied: list[float] = []
        wrong = 0
        for round_number in range(PROBE_ROUNDS + 1):
            first = (round_number + 1) << 20
            tokens = range(first, first + count * self.block_tokens)
            keys = self.names.block_keys(list(tokens))
            blocks.fill_many(keys, data)
            put, _ = self._rate(self.space.put_from, keys, data, Status.STORED)
            _spoil(data)
            get, outcomes = self._rate(self.space.get_into, keys, data, Status.OK)
            wrong += self._verify(keys, outcomes)
            copy = copies.bytes_per_s(count)
            if round_number:  # the first round warms up
                puts, gets, copied = [*puts, put], [*gets, get], [*copied, copy]
        rates = {"get": gets, "put": puts, "memcpy": copied}
        return {**rates, "wrong_bytes": wrong}

    def _rate(
        self, call: Callable[..., list[Outcome]], keys: bytes, data: memoryview, good: Status
    ) -> tuple[float, list[Outcome]]:
        start = time.perf_counter()
        outcomes = call(keys, data)
        passed = time.perf_counter() - start
        return sum(o.status is good for o in outcomes) * self.block_bytes / passed, outcomes


def _spoil(share: memoryview) -> None:
    np.frombuffer(share, np.uint8)[:] = SPOILED_BYTE


def main() -> int:
    """Serves jobs until standard input ends."""
    replica = Replica(json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        answer = replica.probe() if job["do"] == "probe" else replica.turn(job)
        answer["open_files"] = len(list(Path("/proc/self/fd").iterdir()))
        print(json.dumps(answer), flush=True)
    replica.memory.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
