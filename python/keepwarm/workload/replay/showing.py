"""A replay's result as rows of text for people; the JSON has all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keepwarm.config import show_duration, show_size

Row = tuple[str, ...]


def seconds(value: float | None) -> str:
    """A duration, where there is one."""
    return "-" if value is None else show_duration(value)


def share(value: float | None) -> str:
    """In per cent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"


def _distribution(found: Mapping[str, Any]) -> str:
    return " / ".join(seconds(found[name]) for name in ("p50", "p90", "p99", "max"))


def endpoint_rows(result: Mapping[str, Any]) -> list[Row]:
    """A heading, then a row for each figure with a cell for each target."""
    targets: Sequence[Mapping[str, Any]] = result["targets"]

    def row(name: str, *cells: str) -> Row:
        return (name, *cells)

    def each(name: str, shown: Any) -> Row:
        return row(name, *(shown(target) for target in targets))

    return [
        each("", lambda t: t["name"]),
        each("requests", lambda t: f"{t['requests']:,} in {seconds(t['seconds'])}"),
        each("completed", lambda t: f"{t['completed']:,}"),
        each("failed", lambda t: _counts(t["failures"])),
        each("prompt tokens", lambda t: f"{t['tokens']['prompt']:,}"),
        each("of which cached", lambda t: share(t["tokens"]["cached_share"])),
        each("TTFT p50/p90/p99/max", lambda t: _distribution(t["ttft_s"])),
        each(
            "TTFT p99, failed as slowest",
            lambda t: seconds(t["ttft_of_all_s"]["p99"]) if t["requests"] else "-",
        ),
        each("between chunks", lambda t: _distribution(t["gap_s"])),
        each("whole answer", lambda t: _distribution(t["total_s"])),
        each("output tokens/s", lambda t: f"{t['output_tokens_per_s'] or 0:,.1f}"),
        each("under way at most", lambda t: f"{t['in_flight_max']:,}"),
        each("send lag", lambda t: _distribution(t["send_lag_s"])),
    ]


def comparison_lines(result: Mapping[str, Any]) -> list[str]:
    """A sentence or two for each pair of targets."""
    lines = []
    for found in result["comparisons"]:
        pair = f"{found['second']} against {found['first']}"
        ratio, answers = found["ttft_ratio"], found["answers"]
        if not ratio["pairs"]:
            lines.append(f"{pair}: no request was answered by both")
            continue
        lines.append(
            f"{pair}: TTFT x {ratio['median']:.3f} in the median{_interval(ratio)}, "
            f"x {ratio['p10']:.3f} to x {ratio['p90']:.3f} in eight of ten requests, "
            f"longer in {share(ratio['second_longer'])} of {ratio['pairs']:,}"
        )
        lines.append(
            f"{pair}: {answers['different']:,} of {answers['compared']:,} answers at temperature 0 "
            "differ"
        )
    return lines


def _interval(ratio: Mapping[str, Any]) -> str:
    if ratio["median_interval"] is None:
        return " (too few for an interval)"
    low, high = ratio["median_interval"]
    return f" (95 %: {low:.3f} to {high:.3f}, by {ratio['drawn_by']})"


def node_rows(result: Mapping[str, Any]) -> list[Row]:
    """A row for each figure."""
    latencies, rates = result["latencies_s"], result["gib_per_s"]

    def speed(name: str) -> str:
        moved = show_size(result["bytes"][name])
        return moved if rates[name] is None else f"{moved}, {rates[name]:.2f} GiB/s in calls"

    return [
        ("requests", f"{result['requests']:,} in {seconds(result['seconds'])}"),
        ("not sent", f"{result['not_sent']:,}"),
        ("hit rate by block", share(result["hit_rate"]["block"])),
        ("hit rate by token", share(result["hit_rate"]["token"])),
        ("hits by tier", _counts(result["hits_by_tier"])),
        ("misses by reason", _counts(result["misses_by_reason"])),
        ("puts", _counts(result["puts"])),
        ("wrong bytes", f"{result['wrong_bytes']:,}"),
        ("got", speed("get")),
        ("put", speed("put")),
        ("lookup p50/p90/p99/max", _distribution(latencies["lookup"])),
        ("get", _distribution(latencies["get"])),
        ("put", _distribution(latencies["put"])),
        ("waited for a client", _distribution(latencies["lag"])),
        ("restored, from due time", _distribution(latencies["restored_from_due"])),
        ("done, from due time", _distribution(latencies["done_from_due"])),
        ("node and clients agree", "yes" if result["agrees"] else "NO"),
    ]
