"""What the run amounts to, and whether everything adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from keepwarm.demo.ledger import Ledger
from keepwarm.demo.machine import percentile
from keepwarm.demo.run import Record
from keepwarm.testing.traces import replay

LATE_S_MAX = 1.0
UNSURE = ("deadline", "store_down")


@dataclass(slots=True)
class Moved:
    """What clients say they got and gave, in one life of the node."""

    lookup_hits: int = 0
    got_blocks: int = 0
    restored_blocks: int = 0
    got_bytes: int = 0
    stored_blocks: int = 0
    stored_bytes: int = 0
    unsure_blocks: int = 0
    beyond_gap_blocks: int = 0


@dataclass(slots=True)
class Summary:
    """Figures for the report; `problems` is empty when everything adds up."""

    ledger: Ledger
    ideal_tokens: int = 0
    replayed_rate: float = 0.0
    bytes_verified: int = 0
    wrong_bytes: int = 0
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    bytes_per_s: dict[str, float] = field(default_factory=dict)
    ratio: dict[str, dict[str, float]] = field(default_factory=dict)
    longest_late_s: float = 0.0
    longest_call: dict[str, Any] = field(default_factory=dict)
    late_calls: int = 0
    first_hit_s: float | None = None
    first_hit_after_ready_s: float | None = None
    first_answer_after_ready_s: float = 0.0
    lost_by_kill_tokens: int = 0
    put_outcomes: dict[str, int] = field(default_factory=dict)
    reconciled: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def hit_rate(self) -> float:
        """Restored tokens over tokens asked."""
        return self.ledger.restored_tokens() / self.ledger.asked if self.ledger.asked else 0.0

    def ideal_rate(self) -> float:
        """What a memory without limits would have restored."""
        return self.ideal_tokens / self.ledger.asked if self.ledger.asked else 0.0


def _calls(record: Record) -> Iterator[dict[str, Any]]:
    for served in record.served:
        yield from served.answer["calls"]


def summarise(record: Record) -> Summary:
    """Computes all figures and collects all problems."""
    summary = Summary(ledger=Ledger())
    for served in record.served:
        problem = served.ledger.problem()
        if problem is not None:
            summary.problems.append(f"turn {served.turn.number}: {problem}")
        restored = served.ledger.restored_tokens()
        if restored > served.most_tokens:
            summary.problems.append(
                f"turn {served.turn.number}: {restored:,} tokens restored, "
                f"{served.most_tokens:,} were ever stored"
            )
        summary.ledger.add(served.ledger)
        summary.ideal_tokens += served.ideal_tokens
        summary.bytes_verified += served.answer["bytes_verified"]
        summary.wrong_bytes += served.answer["wrong_bytes"]
    summary.wrong_bytes += record.probe["wrong_bytes"]
    requests = [turn.request for turn in record.plan.turns]
    arena_blocks = record.plan.arena_bytes // record.plan.config.block_bytes
    summary.replayed_rate = replay(requests, arena_blocks).by_token()
    _times(record, summary)
    _recovery(record, summary)
    _reconcile(record, summary)
    _judge(record, summary)
    return summary


def _times(record: Record, summary: Summary) -> None:
    deadline = record.plan.config.deadline_s
    puts: Counter[str] = Counter()
    for kind in ("lookup", "get", "put", "touch"):
        calls = [call for call in _calls(record) if call["kind"] == kind]
        took = [call["end"] - call["start"] for call in calls]
        summary.latency_ms[kind] = {
            "calls": len(took),
            "p50": percentile(took, 0.5) * 1e3,
            "p99": percentile(took, 0.99) * 1e3,
            "max": max(took, default=0.0) * 1e3,
        }
        moved = [(c["bytes"], t) for c, t in zip(calls, took, strict=True) if c.get("bytes")]
        if moved:
            total_s = sum(t for _, t in moved)
            summary.bytes_per_s[kind] = sum(b for b, _ in moved) / total_s
    for call in _calls(record):
        took_s = call["end"] - call["start"]
        summary.late_calls += took_s > deadline + 0.05
        if not summary.longest_call or took_s > summary.longest_call["took_s"]:
            summary.longest_call = {"kind": call["kind"], "took_s": took_s, "deadline_s": deadline}
        if call["kind"] == "put":
            puts.update(call["outcomes"])
    summary.longest_late_s = summary.longest_call.get("took_s", 0.0) - deadline
    summary.put_outcomes = dict(puts)
    for kind in ("get", "put"):
        ratios = [a / b for a, b in zip(record.probe[kind], record.probe["memcpy"], strict=True)]
        summary.ratio[kind] = {"median": median(ratios), "min": min(ratios), "max": max(ratios)}


def _recovery(record: Record, summary: Summary) -> None:
    """When hits came back, and what the kill cost."""
    for served in sorted(record.served, key=lambda served: float(served.answer["ended"])):
        gets = [
            call
            for call in served.answer["calls"]
            if call["kind"] == "get" and call["start"] > record.restarted and call["bytes"]
        ]
        if gets:
            summary.first_hit_s = gets[0]["end"] - record.killed
            summary.first_hit_after_ready_s = gets[0]["end"] - record.ready
            break
    answered = [
        call["end"] - record.ready
        for call in _calls(record)
        if call["kind"] == "lookup"
        and call["start"] > record.restarted
        and call.get("miss") not in UNSURE
    ]
    summary.first_answer_after_ready_s = min(answered, default=0.0)
    for served in record.served:
        if served.answer["ended"] > record.killed:
            lost = served.ideal_tokens - served.ledger.restored_tokens()
            gone = served.ledger.missed["absent"] + served.ledger.behind["absent"]
            gone += served.ledger.missed["store_down"] + served.ledger.missed["deadline"]
            summary.lost_by_kill_tokens += max(min(lost, gone), 0)


def _moved(calls: Iterable[dict[str, Any]]) -> Moved:
    moved = Moved()
    for call in calls:
        outcomes = call.get("outcomes", {})
        if call["kind"] == "lookup":
            moved.lookup_hits += call["hits"]
            # The node may have answered, and counted, just after the client had given up.
            moved.unsure_blocks += call["blocks"] if call["miss"] == "deadline" else 0
        elif call["kind"] == "get":
            moved.got_blocks += outcomes.get("ok", 0)
            if call["blocks"] > outcomes.get("ok", 0):  # some may have landed behind a gap
                moved.beyond_gap_blocks += outcomes.get("ok", 0)
            moved.got_bytes += call["bytes"]
        elif call["kind"] == "put":
            moved.stored_blocks += outcomes.get("stored", 0)
            moved.stored_bytes += call["bytes"]
        moved.unsure_blocks += outcomes.get("deadline", 0)
    return moved


def _reconcile(record: Record, summary: Summary) -> None:
    """The node's counters against the clients', for each of its two lives.

    A node may have counted what its client did not wait for or what the restart cut off: by so
    much, and no more, it may be ahead. It may never be behind. What the ledger calls restored is
    held against the node's reads: of a get with a gap, what landed behind it is read, not restored.
    """
    calls = list(_calls(record))
    # The first life up to the idle moment at which its counters were read.
    first = [call for call in calls if call["end"] <= record.idle]
    second = [call for call in calls if call["start"] >= record.restarted]
    astride = [call for call in calls if call["start"] < record.restarted < call["end"]]
    for life, own, cut, stat in (
        ("before the kill", first, [], record.stat_before_kill),
        ("after the restart", second, astride, record.stat_at_end),
    ):
        moved = _moved(own)
        moved.restored_blocks = _restored_blocks(record, own)
        unsure = moved.unsure_blocks + sum(call.get("blocks", 0) for call in cut)
        for name, node in node_counters(stat).items():
            clients = int(getattr(moved, name))
            unit = record.plan.config.block_bytes if name.endswith("bytes") else 1
            tolerance = unsure * unit
            if name == "restored_blocks":
                tolerance += moved.beyond_gap_blocks
            row = {"life": life, "what": name, "clients": clients, "node": node}
            summary.reconciled.append(row | {"tolerance": tolerance})
            if not clients <= node <= clients + tolerance:
                summary.problems.append(
                    f"{life}: the node counts {node:,} {name}, its clients {clients:,}"
                )


def _restored_blocks(record: Record, calls: list[dict[str, Any]]) -> int:
    """Blocks that the ledgers call restored, of the turns whose get is among these calls."""
    gets = {id(call) for call in calls if call["kind"] == "get"}
    restored = [
        served.ledger.restored_tokens()
        for served in record.served
        if any(id(call) in gets for call in served.answer["calls"])
    ]
    return sum(restored) // record.plan.trace.block_tokens


def node_counters(stat: dict[str, Any]) -> dict[str, int]:
    """The node's own counts under the names that `Moved` uses."""
    return {
        "lookup_hits": stat["lookup_hits"],
        "got_blocks": stat["reads"],
        "restored_blocks": stat["reads"],
        "got_bytes": stat["read_bytes"],
        "stored_blocks": stat["stored"],
        "stored_bytes": stat["stored_bytes"],
    }


def _judge(record: Record, summary: Summary) -> None:
    if summary.wrong_bytes:
        summary.problems.append(f"{summary.wrong_bytes:,} wrong bytes were handed to a replica")
    problem = summary.ledger.problem()
    if problem is not None:
        summary.problems.append(problem)
    asked = sum(turn.request.input_tokens for turn in record.plan.turns)
    if summary.ledger.asked != asked:
        summary.problems.append(f"{summary.ledger.asked:,} tokens asked, {asked:,} planned")
    if summary.longest_late_s > LATE_S_MAX:
        summary.problems.append(
            f"a {summary.longest_call['kind']} took {summary.longest_call['took_s']:.2f} s "
            f"with a deadline of {summary.longest_call['deadline_s']:.2f} s"
        )
    if summary.first_hit_s is None:
        summary.problems.append(
            "no hit after the restart: the replicas did not find the node again"
        )
    if not summary.ledger.restored_tokens():
        summary.problems.append("nothing was restored at all")
    for what, stat in (("kill -9", record.stat_at_end), ("restart", record.stat_after_stop)):
        if not stat.get("flash_recovered"):
            summary.problems.append(f"nothing was left on flash after the {what}")
    if not summary.ledger.missed["store_down"]:
        summary.problems.append("nobody noticed that the node was down")
