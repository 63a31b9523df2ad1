"""Measures what was asked for and makes one object of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keepwarm
from keepwarm.bench import flash, local, machine, network, peers, tables
from keepwarm.bench.context import Context, Group, UnavailableError
from keepwarm.bench.figures import BY_NAME, FIGURES, Figure
from keepwarm.bench.pairs import Spread

SEED = 20261201
SCHEMA = 1
GROUPS: tuple[Group, ...] = (
    *local.GROUPS,
    *network.GROUPS,
    *flash.GROUPS,
    *tables.GROUPS,
    *peers.GROUPS,
)

Progress = Callable[[int, int, str], None]
"""Told how many groups are done, of how many, and what is measured now."""


def names(given: Sequence[str] = ()) -> list[str]:
    """The figures that these names, or beginnings of names, stand for; all without any."""
    known = [figure.name for figure in FIGURES]
    if not given:
        return known
    found = [name for name in known if any(name.startswith(each) for each in given)]
    for each in given:
        if not any(name.startswith(each) for name in known):
            raise keepwarm.ArgumentError(
                f"only is {each!r}: give a figure, or how several begin: {', '.join(known)}"
            )
    return found


def run(
    only: Sequence[str] = (),
    *,
    quick: bool = False,
    seed: int = SEED,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Measures; every figure by name, None where there is none, and `details`."""
    wanted = names(only)
    began, before = time.monotonic(), machine.describe()
    values: dict[str, float | None] = dict.fromkeys(wanted)
    details: dict[str, dict[str, Any]] = {}
    groups = [group for group in GROUPS if set(group.names) & set(wanted)]
    with tempfile.TemporaryDirectory(prefix="kw-bench-") as folder:
        for place, group in enumerate(groups):
            doing = group.names[0]
            progress(place, len(groups), doing)

            def say(step: str, place: int = place, doing: str = doing) -> None:
                progress(place, len(groups), f"{doing}: {step}")

            context = Context(Path(folder), quick, seed, say)
            for name, detail in _measured(group, context).items():
                if name in values:
                    values[name] = detail.get("median")
                    details[name] = detail
    progress(len(groups), len(groups), "done")
    return {
        "schema": SCHEMA,
        "kind": "keepwarm.bench",
        **values,
        "details": details,
        "machine": {**before, "load_1m_after": machine.describe()["load_1m"]},
        "version": keepwarm.__version__,
        "quick": quick,
        "seed": seed,
        "took_s": round(time.monotonic() - began, 1),
    }


def _measured(group: Group, context: Context) -> dict[str, dict[str, Any]]:
    try:
        found = group.measure(context)
    except UnavailableError as reason:
        return {name: _absent(BY_NAME[name], str(reason)) for name in group.names}
    return {
        name: _present(BY_NAME[name], found[name], context)
        if name in found
        else _absent(BY_NAME[name], "not measured")
        for name in group.names
    }


def _present(figure: Figure, spread: Spread, context: Context) -> dict[str, Any]:
    median = _rounded(spread.median)
    return {
        "median": median,
        "min": _rounded(spread.min),
        "max": _rounded(spread.max),
        "pairs": spread.pairs,
        **_facts(figure, median),
        "command": f"keepwarm bench --only {figure.name}{' --quick' * context.quick}",
        **spread.notes,
    }


def _absent(figure: Figure, reason: str) -> dict[str, Any]:
    command = f"keepwarm bench --only {figure.name}"
    return {"median": None, **_facts(figure, None), "command": command, "reason": reason}


def _facts(figure: Figure, median: float | None) -> dict[str, Any]:
    return {
        "floor": figure.floor,
        "goal": figure.goal,
        "more_is_better": figure.least,
        "passed": figure.passes(median),
    }


def _rounded(value: float) -> float:
    """Four significant digits: what lies behind them is noise."""
    return float(f"{value:.4g}")
