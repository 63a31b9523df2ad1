"""A replay against live endpoints, from targets to the JSON that docs/workload.md explains."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keepwarm.errors import ArgumentError
from keepwarm.workload.replay.asking import NOT_SENT, first_model
from keepwarm.workload.replay.bodies import Body
from keepwarm.workload.replay.compare import compare
from keepwarm.workload.replay.schedule import Arrival
from keepwarm.workload.replay.sending import Progress, Sender, Sending, open_session
from keepwarm.workload.replay.tally import Tally
from keepwarm.workload.replay.targets import Order, Target

SCHEMA = 1
LAG_S_MAX = 0.1
MODEL_S_MAX = 10.0
FILES_SPARE = 64


class Bodies(Protocol):
    """What is sent, and how it was made."""

    def body(self, arrival: Arrival) -> Body | None: ...
    def plain(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """One replay. `arrivals` gives the same requests each time it is called."""

    arrivals: Callable[[], Iterator[Arrival]]
    bodies: Bodies
    targets: Sequence[Target]
    order: Order = Order.INTERLEAVED
    sending: Sending = Sending()  # noqa: RUF009  (frozen)
    lag_s_max: float = LAG_S_MAX
    seed: int = 20261201


async def replay(
    plan: Plan, stop: asyncio.Event | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Replays a trace; an interruption by `stop` gives a partial result that says so."""
    stop = stop or asyncio.Event()
    _allow_files(plan)
    tallies = [Tally(target) for target in plan.targets]
    together = plan.order is Order.INTERLEAVED
    unsuited = 0
    for group in [tallies] if together else [[each] for each in tallies]:
        if stop.is_set():
            break
        sender = Sender(plan.arrivals(), plan.bodies, group, plan.sending, stop, progress)
        await sender.run()
        unsuited = sender.unsuited
    return _result(plan, tallies, stop.is_set(), unsuited)


async def model_of(target: Target, headers: dict[str, str]) -> str:
    """The first model that a target's first replica serves; ConnectionError: it is not there."""
    replica = target.replicas[0]
    async with open_session(replica, headers) as session:
        return await first_model(session, replica.url, MODEL_S_MAX)


def _allow_files(plan: Plan) -> None:
    """A connection is an open file: as many as may be under way must be allowed."""
    sides = len(plan.targets) if plan.order is Order.INTERLEAVED else 1
    wanted = sides * plan.sending.in_flight_max + FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ArgumentError(
            f"{plan.sending.in_flight_max} requests under way at {sides} targets need {wanted} "
            f"open files, and this process may have {hard}: raise ulimit -n, or lower "
            "--in-flight-max"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _result(
    plan: Plan, tallies: Sequence[Tally], interrupted: bool, unsuited: int
) -> dict[str, Any]:
    first, *others = tallies
    # After an interruption of one target after the other, later ones have not seen it all.
    return {
        "schema": SCHEMA,
        "kind": "keepwarm.workload.replay.endpoints",
        "interrupted": interrupted,
        "problems": _problems(plan, tallies),
        "notes": _notes(plan, tallies, interrupted, unsuited),
        "loop": "open",
        "order": str(plan.order) if others else None,
        "seed": plan.seed,
        "timeout_s": plan.sending.timeout_s,
        "in_flight_max": plan.sending.in_flight_max,
        "lag_s_max": plan.lag_s_max,
        "requests_unsuited": unsuited,
        "prompts": plan.bodies.plain(),
        "targets": [tally.plain() for tally in tallies],
        "comparisons": [compare(first, other, plan.seed) for other in others],
    }


def _problems(plan: Plan, tallies: Sequence[Tally]) -> list[str]:
    """What makes the figures no evidence: the command fails with these."""
    found = []
    for tally in tallies:
        name, lag = tally.target.name, tally.lag.at(0.99)
        if lag is not None and lag > plan.lag_s_max:
            found.append(
                f"{name}: the sender fell behind: 1 % of requests left {lag:.3f} s or more after "
                f"their time ({plan.lag_s_max:g} s are allowed): replay from a machine with more "
                "to spare, or at a lower speed"
            )
        if not tally.arrivals:
            found.append(f"{name}: no request was counted")
        elif not tally.completed:
            found.append(f"{name}: no request was answered")
    return found


def _notes(plan: Plan, tallies: Sequence[Tally], interrupted: bool, unsuited: int) -> list[str]:
    """What a reader should know before believing the figures."""
    found = []
    if interrupted:
        found.append("interrupted: only the requests up to then are counted")
    if unsuited:
        found.append(
            f"{unsuited} requests are left out: neither OpenAI's chat nor completions, or longer "
            "than any prompt"
        )
    if len(tallies) > 1 and plan.order is Order.INTERLEAVED:
        found.append(
            "the targets ran side by side: where they share a machine, they slowed each other"
        )
    for tally in tallies:
        name = tally.target.name
        failed = tally.failures.total()
        if failed:
            found.append(
                f"{name}: {failed} of {tally.arrivals} requests failed; ttft_s and total_s are of "
                "those that came so far, ttft_of_all_s counts the others as the slowest"
            )
        if unsent := tally.failures[NOT_SENT]:
            found.append(
                f"{name}: {unsent} requests were not sent, since {plan.sending.in_flight_max} were "
                "under way"
            )
        if tally.cut_prompts:
            found.append(f"{name}: {tally.cut_prompts} prompts were cut to the limit")
        if tally.without_cached and tally.completed:
            found.append(
                f"{name}: {tally.without_cached} answers did not tell cached tokens, which count "
                "as none (vLLM tells with --enable-prompt-tokens-details)"
            )
    return found
