"""What came of a target's requests: counts, distributions, and a bounded sample to be paired."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keepwarm.workload.replay.asking import NOT_SENT, Answer
from keepwarm.workload.replay.bodies import Body
from keepwarm.workload.replay.histograms import Latencies, with_missing
from keepwarm.workload.replay.schedule import Arrival, spread
from keepwarm.workload.replay.targets import Target

SAMPLE_MAX = 1 << 16


class Kept(NamedTuple):
    """What pairing needs of one request."""

    session: int
    ttft_s: float | None
    total_s: float | None
    digest: bytes | None


class Sample:
    """Requests drawn by a hash of their number, so that every target's sample has the same ones.

    All of them up to `most`; beyond it half of what is there goes, again and again.
    """

    def __init__(self, most: int = SAMPLE_MAX) -> None:
        self.most = most
        self.below = 1 << 64
        self.kept: dict[int, Kept] = {}

    def add(self, number: int, kept: Kept) -> None:
        """Keeps a request, if it is drawn."""
        if spread(number) >= self.below:
            return
        self.kept[number] = kept
        while len(self.kept) > self.most:
            self.below //= 2
            self.kept = {at: each for at, each in self.kept.items() if spread(at) < self.below}

    def common(self, other: Sample) -> list[tuple[int, Kept, Kept]]:
        """Requests that both have kept, by number."""
        below = min(self.below, other.below)
        both = sorted(self.kept.keys() & other.kept.keys())
        return [(at, self.kept[at], other.kept[at]) for at in both if spread(at) < below]


@dataclass(slots=True)
class ReplicaCount:
    """Of one replica."""

    sent: int = 0
    completed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Tally:
    """A target's. Warm-up requests are counted in `warm_up` and nowhere else."""

    target: Target
    ttft: Latencies = field(default_factory=Latencies)
    total: Latencies = field(default_factory=Latencies)
    gap: Latencies = field(default_factory=Latencies)
    lag: Latencies = field(default_factory=Latencies)
    rounds: int = 0  # requests that went round the replicas
    arrivals: int = 0
    warm_up: int = 0
    sent: int = 0
    completed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first_failures: dict[str, int] = field(default_factory=dict)  # by kind: the request's number
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    without_usage: int = 0
    without_cached: int = 0
    cut_prompts: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    sample: Sample = field(default_factory=Sample)
    replicas: list[ReplicaCount] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replicas = [ReplicaCount() for _ in self.target.replicas]

    def choose(self, arrival: Arrival) -> int:
        """The replica of the next request; each must be asked for, sent or not."""
        chosen = self.target.choose(arrival)
        if chosen is None:
            chosen = self.rounds % len(self.replicas)
            self.rounds += 1
        return chosen

    def not_sent(self, arrival: Arrival) -> None:
        """A request that found too many under way."""
        if not arrival.counted:
            self.warm_up += 1
            return
        self.arrivals += 1
        self._fail(arrival.number, NOT_SENT)
        self.sample.add(arrival.number, Kept(arrival.session, None, None, None))

    def take(self, body: Body, replica: int, answer: Answer) -> None:
        """A request that was sent, and what came of it."""
        arrival = body.arrival
        if not arrival.counted:
            self.warm_up += 1
            return
        self.arrivals += 1
        self.sent += 1
        self.cut_prompts += body.cut
        self.first_s = answer.due_s if self.first_s is None else min(self.first_s, answer.due_s)
        self.last_s = max(self.last_s, answer.ended_s)
        self.lag.record(answer.begun_s - answer.due_s)
        ttft = None if answer.first_s is None else answer.first_s - answer.due_s
        if ttft is not None:
            self.ttft.record(ttft)
        total = None
        if answer.failure is None:
            total = answer.ended_s - answer.due_s
            self.total.record(total)
            self.completed += 1
        else:
            self._fail(arrival.number, answer.failure)
        self._tokens(replica, answer)
        digest = answer.digest if body.comparable and answer.failure is None else None
        self.sample.add(arrival.number, Kept(arrival.session, ttft, total, digest))

    def _fail(self, number: int, kind: str) -> None:
        self.failures[kind] += 1
        self.first_failures.setdefault(kind, number)

    def _tokens(self, replica: int, answer: Answer) -> None:
        count = self.replicas[replica]
        count.sent += 1
        if answer.failure is not None:
            return
        count.completed += 1
        if answer.prompt_tokens is None:
            self.without_usage += 1
            return
        self.prompt_tokens += answer.prompt_tokens
        count.prompt_tokens += answer.prompt_tokens
        self.output_tokens += answer.output_tokens or 0
        self.without_cached += answer.cached_tokens is None
        self.cached_tokens += answer.cached_tokens or 0
        count.cached_tokens += answer.cached_tokens or 0

    def plain(self) -> dict[str, Any]:
        """For JSON; docs/workload.md says what each figure is."""
        seconds = self.last_s - self.first_s if self.first_s is not None else 0.0
        unseen = self.arrivals - len(self.ttft)
        return {
            "name": self.target.name,
            "router": str(self.target.router) if len(self.target.replicas) > 1 else None,
            "requests": self.arrivals,
            "warm_up_requests": self.warm_up,
            "sent": self.sent,
            "completed": self.completed,
            "failures": dict(self.failures.most_common()),
            "first_failures": dict(self.first_failures),
            "seconds": seconds,
            "in_flight_max": self.in_flight_max,
            "requests_per_s": self.completed / seconds if seconds else None,
            "output_tokens_per_s": self.output_tokens / seconds if seconds else None,
            "ttft_s": self.ttft.plain(),
            "ttft_of_all_s": with_missing(self.ttft, unseen),
            "total_s": self.total.plain(),
            "gap_s": self.gap.plain(),
            "send_lag_s": self.lag.plain(),
            "tokens": {
                "prompt": self.prompt_tokens,
                "cached": self.cached_tokens,
                "cached_share": self.cached_share,
                "output": self.output_tokens,
                "requests_without_usage": self.without_usage,
                "requests_without_cached_tokens": self.without_cached,
            },
            "prompts_cut": self.cut_prompts,
            "replicas": [
                {
                    "url": replica.shown,
                    "sent": count.sent,
                    "completed": count.completed,
                    "prompt_tokens": count.prompt_tokens,
                    "cached_tokens": count.cached_tokens,
                }
                for replica, count in zip(self.target.replicas, self.replicas, strict=True)
            ],
        }

    @property
    def cached_share(self) -> float | None:
        """Cached over prompt tokens, as reported; None where nobody reported any usage."""
        told = self.prompt_tokens and self.without_cached < self.completed - self.without_usage
        return self.cached_tokens / self.prompt_tokens if told else None
