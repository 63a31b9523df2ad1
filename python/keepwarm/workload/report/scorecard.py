"""The scorecard: named figures, each with its definition, its error, and the command that made it.

A figure that nothing measured stays in the list, with what would measure it: a reader sees what is
not known.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from keepwarm.config import show_duration, show_size
from keepwarm.workload.describe import Description
from keepwarm.workload.measures import Distribution, Estimate
from keepwarm.workload.report.fleets import Fleets
from keepwarm.workload.trace import TokensAre

Basis = Literal["counted", "estimated", "simulated", "measured", "missing"]
Unit = Literal["share", "tokens", "bytes", "bytes/s", "s", "ratio", "per request"]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a command line has to say to read the same trace, count with the same costs, and make
    the same report."""

    trace: str
    costs: str  # the trace included
    report: str  # trace, costs, fleet and results of other commands


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the scorecard. `value` is None where nothing measured it."""

    key: str
    name: str
    unit: Unit
    value: float | None
    definition: str
    command: str
    error: float = 0.0
    basis: Basis = "counted"

    def title(self) -> str:
        """Its name where nothing beside it says what it rests on."""
        return f"{self.name}, simulated" if self.basis == "simulated" else self.name

    def shown(self) -> str:
        """The value for people, with its unit."""
        if self.value is None:
            return "not measured"
        if self.unit == "share":
            error = f" ± {100 * self.error:.1f}" if self.error >= 5e-4 else ""
            return f"{100 * self.value:.1f}{error} %"
        if self.unit == "bytes":
            return show_size(self.value)
        if self.unit == "bytes/s":
            return f"{show_size(self.value)}/s"
        if self.unit == "s":
            return show_duration(self.value)
        digits = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:,.3g}"
        error = f" ± {self.error:,.0f}" if self.error >= 0.5 else ""
        return f"{digits}{error}"

    def as_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            "key": self.key,
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "error": self.error,
            "basis": self.basis,
            "definition": self.definition,
            "command": self.command,
        }


def structure(found: Description, arguments: Arguments) -> list[Figure]:
    """What the trace alone says; of lengths alone nothing is known to repeat, nor not to."""
    measures, command = found.measures, f"keepwarm workload describe {arguments.trace}"
    has_blocks = measures.info.tokens_are is not TokensAre.LENGTHS_ONLY

    def share(key: str, name: str, value: Estimate, definition: str) -> Figure:
        if not has_blocks:
            return missing(key, name, "share", definition, "a trace with blocks")
        basis: Basis = "counted" if value.is_exact else "estimated"
        return Figure(key, name, "share", value.value, definition, command, value.error, basis)

    figures = [
        share(
            "hit_rate_prefix",
            "hit rate by prefix, unbounded memory",
            measures.reuse_by_prefix.tokens,
            "input tokens in the longest prefix that an earlier request began with / input tokens",
        ),
        share(
            "hit_rate_block",
            "hit rate by block, unbounded memory",
            measures.reuse_by_block.blocks,
            "block uses of a block that was used before, behind a broken prefix too / block uses",
        ),
        share(
            "long_prefix_requests",
            "requests with a stable long prefix",
            measures.long_prefix_requests,
            f"requests whose prefix of at least {measures.long_prefix_tokens:,} tokens and "
            f"{100 * measures.long_prefix_share:.0f} % of the prompt was asked for before / "
            "requests",
        ),
    ]
    figures += _lengths(measures.input_length, command)
    figures += _kv(found, f"keepwarm workload describe {arguments.costs}")
    has_sessions = measures.sessions.sessions.value > 0
    sticky = share(
        "hit_rate_sticky",
        "hit rate of a sticky router alone, at least",
        measures.reuse_sticky.tokens,
        "tokens of repeated prefixes whose previous user was the same session / input tokens; what "
        "sessions share comes on top, once each engine has a copy",
    )
    if has_blocks and not has_sessions:
        sticky = missing(sticky.key, sticky.name, "share", sticky.definition, "a log with sessions")
    return [*figures, sticky]


def _lengths(lengths: Distribution, command: str) -> list[Figure]:
    return [
        Figure(
            f"context_tokens_{name}",
            f"context length, {name.upper()}",
            "tokens",
            getattr(lengths, name) if lengths.count else None,
            f"input tokens of a request; {name[1:]} of 100 requests have no more (lower end of a "
            "bin: at most 1.6 % too low)",
            command,
        )
        for name in ("p50", "p90", "p99")
    ]


def _kv(found: Description, command: str) -> list[Figure]:
    made = []
    definition = "KV that an engine holds for a session's last request, input and output"
    for name in ("p50", "p99"):
        key, title = f"session_kv_bytes_{name}", f"KV bytes of a session, {name.upper()}"
        if found.kv is None:
            made.append(missing(key, title, "bytes", definition, "--model"))
        elif not found.kv.session_bytes:
            made.append(missing(key, title, "bytes", definition, "a log with sessions"))
        else:
            value = found.kv.session_bytes[name]
            is_exact = found.measures.sessions.tokens_at_end.rank_error == 0
            basis: Basis = "counted" if is_exact else "estimated"
            made.append(Figure(key, title, "bytes", value, definition, command, basis=basis))
    return made


TTFT = "from arrival to the end of prefill: restore, queue and prefill by the stated cost model"
#: What a simulated figure needs that this trace's simulation has not.
_NEEDED = {
    "sessions": "a log with sessions",
    "evicted": "a trace where what one engine computed is asked of it again",
    "restored": "a fleet in which something is restored",
}
FLEETS = (("without", "without a memory", "alone"), ("with", "with a shared memory", "shared"))


def fleet(found: Fleets | None, arguments: Arguments, lacking: str) -> list[Figure]:
    """What simulated fleets say, with and without a memory, same arrivals; else what is lacking."""

    def simulated(
        key: str, name: str, unit: Unit, definition: str, kind: str, value: Callable[[Fleets], Any]
    ) -> Figure:
        if found is None:
            return missing(key, name, unit, definition, lacking)
        number = value(found)
        if number is None:
            return missing(key, name, unit, definition, _NEEDED[kind])
        command = f"keepwarm workload report {arguments.report}"
        if kind in found.results:
            command = f"keepwarm workload simulate {arguments.costs} {found.flags(kind)}"
        return Figure(key, name, unit, number, definition, command, basis="simulated")

    ttft = [
        simulated(
            f"ttft_{name}_{key}",
            f"TTFT {name.upper()}, {title}",
            "s",
            TTFT,
            kind,
            partial(Fleets.ttft, kind=kind, name=name),
        )
        for name in ("p50", "p99")
        for key, title, kind in FLEETS
    ]
    return [
        *ttft,
        simulated(
            "device_eviction_rate",
            "device eviction rate",
            "share",
            "tokens that a replica had computed before and its own memory had let go of / tokens "
            "that it had computed before, engines alone",
            "evicted",
            Fleets.device_eviction_rate,
        ),
        simulated(
            "cross_replica_routing_rate",
            "cross-replica routing rate",
            "share",
            "requests served by another replica than the one before of their session / requests "
            "with one before in their session",
            "sessions",
            Fleets.cross_replica_rate,
        ),
        simulated(
            "restore_over_recompute",
            "restore against recompute under load",
            "ratio",
            "of the tokens that a planner chose to restore: seconds from arrival until they were "
            "there, links shared / seconds that computing them takes alone; below 1 restoring is "
            "faster",
            "restored",
            Fleets.restore_over_recompute,
        ),
    ]


def measured(documents: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """What was measured elsewhere and given as JSON: replays, a bench."""
    return [
        *_replayed(documents.get("endpoints")),
        *_node(documents.get("node")),
        *_bench(documents.get("bench")),
    ]


def _made_by(document: Mapping[str, Any]) -> str:
    return shlex.join(document["command"])


def _replayed(replay: Mapping[str, Any] | None) -> list[Figure]:
    command = "keepwarm workload replay TRACE --against a=URL --against b=URL --out replay.json"
    figures = []
    for name in ("p50", "p99"):
        key, title = f"replayed_ttft_{name}", f"TTFT {name.upper()}, replayed"
        definition = (
            "from a request's intended time to its first token, at live endpoints, of the requests "
            "that got one"
        )
        targets = () if replay is None else replay["targets"]
        if replay is None or not targets:
            figures.append(missing(key, title, "s", definition, command))
            continue
        for target in targets:
            value, failed = target["ttft_s"][name], sum(target["failures"].values())
            figures.append(
                _measured(
                    f"{key}_{target['name']}",
                    f"{title} at {target['name']}",
                    "s",
                    value,
                    f"{definition} ({failed:,} of {target['requests']:,} failed)",
                    _made_by(replay),
                )
            )
    return figures


def _measured(
    key: str, name: str, unit: Unit, value: float | None, definition: str, command: str
) -> Figure:
    """Of a run that was given; it may have measured nothing."""
    if value is None:
        return missing(key, name, unit, definition, f"a run that measures it, unlike {command}")
    return Figure(key, name, unit, value, definition, command, basis="measured")


def _node(node: Mapping[str, Any] | None) -> list[Figure]:
    command = "keepwarm workload replay TRACE --node ADDRESS --out node.json"
    bandwidth = (
        "restore_bandwidth",
        "restore bandwidth of a client",
        "bytes got / seconds inside get calls, of all clients added up, from a node",
    )
    latency = (
        "restore_latency_p99",
        "restore latency, P99",
        "from a request's due time until its prefix is there: waiting for a client, lookup, gets",
    )
    if node is None:
        return [
            missing(bandwidth[0], bandwidth[1], "bytes/s", bandwidth[2], command),
            missing(latency[0], latency[1], "s", latency[2], command),
        ]
    speed, spread = _gib(node["gib_per_s"]["get"]), node["latencies_s"]["restored_from_due"]
    return [
        _measured(*bandwidth[:2], "bytes/s", speed, bandwidth[2], _made_by(node)),
        _measured(*latency[:2], "s", spread["p99"], latency[2], _made_by(node)),
    ]


def _gib(value: float | None) -> float | None:
    return None if value is None else value * (1 << 30)


def _bench(bench: Mapping[str, Any] | None) -> list[Figure]:
    """Copies and protocol overhead of the data path, as ratios to the bare operation."""
    command = "keepwarm bench --json"
    rows = (
        ("shm_get_over_memcpy", "data path: shared-memory get over memcpy"),
        ("tcp_get_over_socket", "data path: TCP get over a bare socket"),
        ("tcp_get_cpu_over_socket", "data path: processor time of a TCP get over a bare socket"),
        ("flash_get_over_raw", "data path: flash get over a bare file"),
    )
    definition = "the same bytes, verified, against the bare operation in the same run"
    if bench is None:
        return [missing(key, name, "ratio", definition, command) for key, name in rows]
    return [
        missing(key, name, "ratio", definition, command)
        if bench.get(key) is None
        else _measured(key, name, "ratio", bench[key], definition, bench["details"][key]["command"])
        for key, name in rows
    ]


def missing(key: str, name: str, unit: Unit, definition: str, needs: str) -> Figure:
    """A figure that nothing measured, and what would."""
    return Figure(key, name, unit, None, definition, f"needs {needs}", basis="missing")
