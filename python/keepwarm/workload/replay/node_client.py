"""One client of a bare node, in a process of its own: what an engine does, with bytes it can prove.

    keys ─► lookup ─► get the prefix ─► verify every byte ─► fill the rest ─► put ─► touch

A block's bytes are a function of its key. The buffer is spoiled before each get: right bytes that
an earlier request left there must not pass for bytes that landed. Filling, spoiling and verifying
are the client's own work; they are timed apart, and are in none of the latencies.

Spoken over standard input and output: settings as a line of JSON, then frames (`Job.pack`), each
answered by one byte; after a frame without a job, the counts as JSON.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

import keepwarm
from keepwarm import Outcome, Prompt, Status
from keepwarm.testing import blocks, namespace
from keepwarm.workload.replay.histograms import Latencies

BUFFER_BYTES = 64 << 20
LEASE_S = 5.0
SPOILED_BYTE = 0xEE
CALLS = ("lookup", "get", "put", "touch")
READY, DONE = b"R", b"."
_HEAD = struct.Struct("<diQI?")
_END = -1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Job:
    """A request: when it was due (CLOCK_MONOTONIC), and its whole blocks from token 0."""

    due_s: float
    number: int
    input_tokens: int
    counted: bool
    block_ids: NDArray[np.uint64]

    def pack(self) -> bytes:
        """As it travels."""
        ids = self.block_ids.astype("<u8").tobytes()
        count = len(self.block_ids)
        return _HEAD.pack(self.due_s, count, self.number, self.input_tokens, self.counted) + ids

    @classmethod
    def read(cls, stream: BinaryIO) -> Job | None:
        """The next one; None where there is none, or nobody is there any more."""
        head = stream.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        due_s, count, number, input_tokens, counted = _HEAD.unpack(head)
        if count == _END:
            return None
        ids = np.frombuffer(stream.read(8 * count), "<u8").astype(np.uint64)
        return cls(due_s, number, input_tokens, counted, ids)


LAST = _HEAD.pack(0.0, _END, 0, 0, False)


@dataclass(slots=True)
class Counts:
    """What one or several clients have seen. Warm-up requests are in `all_*` alone."""

    requests: int = 0
    warm_up_requests: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    blocks: int = 0  # asked for
    hit_blocks: Counter[str] = field(default_factory=Counter)  # landed, by tier
    missed_blocks: Counter[str] = field(default_factory=Counter)  # by reason
    puts: Counter[str] = field(default_factory=Counter)  # by status, or why it was shed
    read_bytes: int = 0
    put_bytes: int = 0
    wrong_bytes: int = 0
    wrong_blocks: int = 0
    first_wrong: int | None = None  # a request's number
    call_s: dict[str, float] = field(default_factory=dict)
    own_s: float = 0.0
    #: To be held against the node's own counters, warm-up included.
    all_calls: Counter[str] = field(default_factory=Counter)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            name: dict(value) if isinstance(value, dict) else value
            for name in self.__slots__
            for value in (getattr(self, name),)
        }

    def add(self, plain: dict[str, Any]) -> None:
        """Adds what another's `plain` holds."""
        for name, value in plain.items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(value)
            elif isinstance(mine, dict):
                _add(mine, value)
            elif name == "first_wrong":
                found = [each for each in (mine, value) if each is not None]
                self.first_wrong = min(found, default=None)
            else:
                setattr(self, name, mine + value)


def _add(to: dict[str, float], seconds: Mapping[str, float]) -> None:
    for name, value in seconds.items():
        to[name] = to.get(name, 0.0) + value


class NodeClient:
    """Serves requests one after the other. `space` is a real one or a fake one."""

    def __init__(
        self,
        space: keepwarm.Space,
        block_bytes: int,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.space = space
        self.block_bytes = block_bytes
        self.block_tokens = space.namespace.block_tokens
        self.deadline_s = deadline_s
        self.counts = Counts()
        self.latencies = {
            name: Latencies() for name in ("lag", *CALLS[:3], "restored_from_due", "done_from_due")
        }
        self._clock = clock
        self._step = max(BUFFER_BYTES // block_bytes, 1)
        self._buffer = memoryview(bytearray(self._step * block_bytes))
        self._spent: dict[str, float] = {}  # this request's seconds in calls

    def serve(self, job: Job) -> None:
        """One request."""
        begun = self._clock()
        self._spent.clear()
        prompt = self._prompt(job.block_ids)
        # One token at least is left to compute: a block that ends with the prompt is never asked.
        askable = min(max(job.input_tokens - 1, 0) // self.block_tokens, len(prompt))
        landed = self._restore(job, prompt, askable)
        restored_s = sum(self._spent.values())
        self._put(job, prompt, landed)
        if len(prompt):
            self._called("touch", lambda: self.space.touch(prompt, self.deadline_s))
        self._own(begun)
        if not job.counted:
            self.counts.warm_up_requests += 1
            return
        self.counts.requests += 1
        self.counts.tokens += job.input_tokens
        self.counts.hit_tokens += landed * self.block_tokens
        self.counts.blocks += askable
        _add(self.counts.call_s, self._spent)
        lag = max(begun - job.due_s, 0.0)
        self.latencies["lag"].record(lag)
        self.latencies["restored_from_due"].record(lag + restored_s)
        self.latencies["done_from_due"].record(lag + sum(self._spent.values()))
        for name in CALLS[:3]:
            if name in self._spent:
                self.latencies[name].record(self._spent[name])

    def _own(self, begun: float) -> None:
        self.counts.own_s += self._clock() - begun - sum(self._spent.values())

    def _prompt(self, ids: NDArray[np.uint64]) -> Prompt:
        # A trace's ids are chained as an engine's hashes are, so they are taken as such.
        raw = ids.astype("<u8").tobytes()
        names = self.space.namespace
        keys = names.engine_keys([raw[at : at + 8] for at in range(0, len(raw), 8)])
        return names.place(keys)

    def _called(self, kind: str, call: Callable[[], _T]) -> _T:
        start = self._clock()
        answer = call()
        _add(self._spent, {kind: self._clock() - start})
        return answer

    def _restore(self, job: Job, prompt: Prompt, askable: int) -> int:
        """Looks up and gets the prefix; returns how many of its blocks are in hand."""
        if not askable:
            return 0
        asked = prompt[:askable]
        with self._called(
            "lookup",
            lambda: self.space.lookup(asked, lease_s=LEASE_S, deadline_s=self.deadline_s),
        ) as found:
            self._note_lookup(found, askable)
            tiers = [str(tier) for tier in found.tiers[: found.prefix]]
            landed, why = 0, None
            leased = self._clock()
            for start in range(0, found.prefix, self._step):
                if self._clock() - leased > LEASE_S / 2:
                    self.space.renew(found, LEASE_S, self.deadline_s)
                    leased = self._clock()
                part = prompt[start : min(start + self._step, found.prefix)]
                got, why = self._get(job, part)
                landed += got
                if why is not None:
                    break
            reason = str(why or found.miss or "absent")
        if job.counted:
            self.counts.hit_blocks.update(tiers[:landed])
            self.counts.read_bytes += landed * self.block_bytes
            if landed < askable:
                self.counts.missed_blocks[reason] += 1
                self.counts.missed_blocks["after_gap"] += askable - landed - 1
        return landed

    def _note_lookup(self, found: keepwarm.Lookup, asked: int) -> None:
        calls, hits = self.counts.all_calls, sum(found.hits)
        calls["lookups"] += 1
        calls["lookup_hits"] += hits
        if found.miss is not None:
            calls[f"lookup_misses.{found.miss}"] += 1
            calls["lookup_after_miss"] += asked - hits - 1

    def _get(self, job: Job, part: Prompt) -> tuple[int, str | None]:
        """Gets a piece; returns how many blocks landed without a gap, and why not all."""
        into = self._buffer[: len(part) * self.block_bytes]
        np.frombuffer(into, np.uint8)[:] = SPOILED_BYTE
        outcomes = self._called(
            "get", lambda: self.space.get_into(part, into, deadline_s=self.deadline_s)
        )
        good, landed, why = 0, 0, None
        for place, outcome in enumerate(outcomes):
            if outcome.status is not Status.OK:
                why = why or str(outcome.reason or outcome.status)
                self.counts.all_calls[f"read_misses.{outcome.reason or outcome.status}"] += 1
                continue
            good += 1
            landed += why is None
            key = part.keys[place * 16 : place * 16 + 16]
            share = into[place * self.block_bytes : (place + 1) * self.block_bytes]
            wrong = blocks.check(key, share)
            if wrong is not None:
                self._wrong(job, wrong.wrong_bytes)
        self.counts.all_calls["reads"] += good
        self.counts.all_calls["read_bytes"] += good * self.block_bytes
        return landed, why

    def _wrong(self, job: Job, count: int) -> None:
        # Whether it warms up or not: wrong bytes are wrong.
        self.counts.wrong_bytes += count
        self.counts.wrong_blocks += 1
        if self.counts.first_wrong is None:
            self.counts.first_wrong = job.number

    def _put(self, job: Job, prompt: Prompt, landed: int) -> None:
        for start in range(landed, len(prompt), self._step):
            part = prompt[start : start + self._step]
            data = self._buffer[: len(part) * self.block_bytes]
            blocks.fill_many(part.keys, data)
            outcomes = self._called(
                "put",
                lambda part=part, data=data: self.space.put_from(  # type: ignore[misc]
                    part, data, deadline_s=self.deadline_s
                ),
            )
            self._note_put(job, outcomes)

    def _note_put(self, job: Job, outcomes: list[Outcome]) -> None:
        calls = self.counts.all_calls
        for outcome in outcomes:
            if outcome.status is Status.STORED:
                calls["stored"] += 1
                calls["stored_bytes"] += self.block_bytes
            elif outcome.status is Status.SHED:
                calls[f"shed.{outcome.reason}"] += 1
            else:
                calls[str(outcome.status)] += 1
            if job.counted:
                self.counts.puts[str(outcome.reason or outcome.status)] += 1
        if job.counted:
            stored = sum(outcome.status is Status.STORED for outcome in outcomes)
            self.counts.put_bytes += stored * self.block_bytes

    def plain(self) -> dict[str, Any]:
        """All of it, for JSON."""
        latencies = {name: each.plain() for name, each in self.latencies.items()}
        return {"counts": self.counts.plain(), "latencies": latencies}


def namespace_of(settings: dict[str, Any]) -> keepwarm.Namespace:
    """The namespace of replays with blocks of this size: no engine's, no other size's."""
    secret = settings.get("secret")
    return namespace(
        secret=secret,
        tenant=settings.get("tenant", "default"),
        model=f"keepwarm/replay-{settings['block_bytes']}",
        block_tokens=int(settings["block_tokens"]),
        connector="keepwarm.replay/1",
    )


def main() -> int:
    """Serves what comes on standard input."""
    stream, out = sys.stdin.buffer, sys.stdout.buffer
    settings = json.loads(stream.readline())
    with keepwarm.connect(settings["address"]) as memory:
        space = memory.attach(namespace_of(settings))
        client = NodeClient(space, int(settings["block_bytes"]), float(settings["deadline_s"]))
        out.write(READY)
        out.flush()
        while (job := Job.read(stream)) is not None:
            client.serve(job)
            out.write(DONE)
            out.flush()
    out.write(json.dumps(client.plain()).encode() + b"\n")
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
