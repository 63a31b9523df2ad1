"""The result for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from keepwarm.bench.figures import BY_NAME
from keepwarm.bench.machine import line

VERDICTS = {True: "pass", False: "MISSED", None: "-"}


class Row(NamedTuple):
    """One figure as text."""

    what: str
    name: str
    value: str
    spread: str
    wanted: str
    verdict: str
    notes: str


def rows(result: Mapping[str, Any]) -> Iterator[Row]:
    """The figures of a result, in the catalogue's order."""
    for name, figure in BY_NAME.items():
        detail = result["details"].get(name)
        if detail is None:
            continue
        if detail["median"] is None:
            value, spread, notes = "none", "-", detail["reason"]
        else:
            value = f"{number(detail['median'])} {figure.unit}".rstrip()
            spread = f"{number(detail['min'])}..{number(detail['max'])} of {detail['pairs']}"
            notes = _notes(detail)
        verdict = VERDICTS[detail["passed"]]
        yield Row(figure.what, name, value, spread, figure.wanted, verdict, notes)


def number(value: float) -> str:
    """Two digits behind the point of a small number, one of a larger one."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


_NOTES = {
    "limit_gb_per_s": "limit {} GB/s",
    "ours_gb_per_s": "ours {} GB/s",
    "limit_cpu_s_per_gib": "limit {} CPU s/GiB",
    "ours_cpu_s_per_gib": "ours {} CPU s/GiB",
    "p99_ms": "p99 {} ms",
    "adjacent_ns": "{} ns where prompts lie adjacent",
    "bytes_an_entry": "{} B an entry",
    "transport": "over {}",
    "peer": "{}",
}


def _notes(detail: Mapping[str, Any]) -> str:
    return ", ".join(form.format(detail[key]) for key, form in _NOTES.items() if key in detail)


def heading(result: Mapping[str, Any]) -> str:
    """The machine, and how it was measured."""
    after = result["machine"]["load_1m_after"]
    kind = "quick, " if result["quick"] else ""
    return (
        f"{line(result['machine'])} (after: {after:g}); Keepwarm {result['version']}, "
        f"{kind}seed {result['seed']}, {result['took_s']:.0f} s"
    )
