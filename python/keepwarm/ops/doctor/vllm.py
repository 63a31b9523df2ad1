"""`keepwarm doctor vllm`: asks running engines, compares them, and sends one prompt through two.

The probe is a prompt of random tokens that nobody has asked before: the first replica computes and
stores it, and the second must find it. It costs two prefills of a few blocks, and leaves those
blocks behind as any prompt does. Without two replicas of one namespace there is nothing to probe.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from keepwarm.engines.asking import EngineClient, EngineError, Figures
from keepwarm.ops.doctor.checks import Check, Level, as_values, fail, ok, warn, worst
from keepwarm.ops.doctor.replica import HITS, TOKENS, Replica, checks, leading, remedy

PROBE_TOKENS_MAX = 2048
PROBE_TOKENS_LEAST = 64
# In the vocabulary of every model, and no special token of those in use.
TOKEN_IDS = range(300, 1900)
# How long the first replica is given to store, attempt by attempt.
STORE_S = (1.0, 4.0)
COUNTED_S_MAX = 3.0
# How the names of our figures begin: vLLM shows them from an engine's first request on.
OURS = "keepwarm_connector_"

Tell = Callable[[Check], None]


@dataclass(slots=True)
class FleetReport:
    """All that was found."""

    urls: list[str]
    checks: list[Check] = field(default_factory=list)
    reached: int = 0

    @property
    def is_reached(self) -> bool:
        """Whether any engine answers."""
        return self.reached > 0

    @property
    def level(self) -> Level:
        """How it stands in all."""
        return worst(self.checks)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"urls": self.urls, **as_values(self.checks)}


def examine(
    urls: Sequence[str],
    *,
    token: str | None = None,
    probe: bool = True,
    tell: Tell = lambda _: None,
    store_s: Sequence[float] = STORE_S,
) -> FleetReport:
    """Looks at running engines; `tell` hears each check as it is done."""
    clients = [EngineClient(url, token) for url in urls]
    report = FleetReport([client.url for client in clients])
    for check in _examine(report, clients, probe, store_s):
        report.checks.append(check)
        tell(check)
    return report


def _examine(
    report: FleetReport, clients: Sequence[EngineClient], probe: bool, store_s: Sequence[float]
) -> Iterator[Check]:
    replicas = []
    for client in clients:
        replica = Replica(client, client.url.partition("://")[2])
        try:
            replica.version = client.version()
            replica.model = next(iter(client.models()), {})
            replica.figures = client.figures()
            if probe and not replica.figures.has(OURS):
                replica.figures = _awakened(replica)
        except EngineError as error:
            todo = "start this engine, or correct the address; with a key give --token-file"
            yield fail(f"replica {replica.name}", str(error), todo)
            continue
        report.reached += 1
        replicas.append(replica)
        yield ok(f"replica {replica.name}", f"serves {replica.model.get('id', 'no model')}")
        yield from checks(replica)
    ours = [each for each in replicas if each.figures.has(OURS)]
    yield from _namespaces(ours)
    if probe and ours:
        yield from _probe(ours, store_s)


def _awakened(replica: Replica) -> Figures:
    """The figures of an engine that shows none of ours, once it has served two tokens."""
    until, pause = time.monotonic() + COUNTED_S_MAX, threading.Event()
    try:
        replica.client.complete(list(TOKEN_IDS[:2]), 1, str(replica.model.get("id", "")))
    except EngineError:
        return replica.figures  # it does not complete prompts; what it shows is what there is
    while True:
        found = replica.client.figures()
        if found.has(OURS) or time.monotonic() > until:
            return found
        pause.wait(0.05)


def _namespaces(replicas: Sequence[Replica]) -> Iterator[Check]:
    """Replicas of one model must name blocks alike."""
    names: dict[str, dict[str, str]] = {}
    for replica in replicas:
        fingerprint = replica.info.get("namespace")
        if fingerprint:
            model = str(replica.model.get("root") or replica.model.get("id", ""))
            names.setdefault(model, {})[replica.name] = fingerprint
    for model, found in names.items():
        if len(found) < 2:
            continue
        if len(set(found.values())) == 1:
            figure = f"{len(found)} replicas of {model}: {next(iter(found.values()))[:16]}"
            yield ok("namespaces", figure)
            continue
        figure = f"{model}: " + ", ".join(f"{name} {each[:16]}" for name, each in found.items())
        todo = (
            "these replicas cannot use each other's blocks: the node's log names the fields "
            "(namespace_differs), usually dtype, --block-size, version, weights or the attention "
            "back end; an engine after a weight update has a namespace of its own"
        )
        yield fail("namespaces", figure, todo)


def _probe(replicas: Sequence[Replica], store_s: Sequence[float]) -> Iterator[Check]:
    if len(replicas) < 2:
        yield ok("probe", "not done: give two replicas with --url")
        return
    first, second = replicas[0], replicas[1]
    gained, missed, count = 0, "", 0
    for wait_s in store_s:
        try:
            prompt = _prompt(first, second)
            count = len(prompt)
            gained, missed = _through(first, second, prompt, wait_s)
        except EngineError as error:
            yield fail("probe", str(error), "the engine must complete a prompt of token ids")
            return
        if gained:
            figure = f"{gained:,} of {count:,} tokens from {first.name} restored at {second.name}"
            yield ok("probe", figure)
            return
    figure = f"none of {count:,} tokens from {first.name} restored at {second.name}: {missed}"
    told = remedy(missed)
    if missed == "planner":
        yield warn("probe", figure, told)
    else:
        yield fail("probe", figure, told)


def _prompt(first: Replica, second: Replica) -> list[int]:
    """As many tokens as both take, and never the same twice."""
    limits = [each.model.get("max_model_len") for each in (first, second)]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    count = min([PROBE_TOKENS_MAX, *(limit // 2 for limit in known)])
    return random.SystemRandom().choices(TOKEN_IDS, k=max(count, PROBE_TOKENS_LEAST))


def _through(first: Replica, second: Replica, prompt: list[int], wait_s: float) -> tuple[int, str]:
    """The prompt at one, then the other: tokens that came from the memory, or why none did."""
    first.client.complete(prompt, 1, str(first.model.get("id", "")))
    threading.Event().wait(wait_s)
    before = second.client.figures()
    second.client.complete(prompt, 1, str(second.model.get("id", "")))
    after = _counted(second.client, before, len(prompt))
    gained = int(after.total(HITS) - before.total(HITS))
    reasons = after.by(TOKENS, "reason", source="recomputed")
    reasons.subtract(before.by(TOKENS, "reason", source="recomputed"))
    return gained, leading(+reasons)


def _counted(client: EngineClient, before: Figures, tokens: int) -> Figures:
    """The counters once they hold the prompt; they lag by a step."""
    until, pause = time.monotonic() + COUNTED_S_MAX, threading.Event()
    while True:
        found = client.figures()
        if found.total(TOKENS) - before.total(TOKENS) >= tokens or time.monotonic() > until:
            return found
        pause.wait(0.05)
