"""One check's answer, and which of several comes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

Level = Literal["ok", "warn", "fail"]

# What to mend first, where several are wrong: what lies under the others, then what costs most.
# A path's checks are named `get over unix` and so on: its first word counts.
ORDER = (
    "node",
    "replica",
    "connector",
    "caching",
    "joined",
    "namespaces",
    "failures",
    "probe",
    "figures",
    "descriptors",
    "attach",
    "version",
    "bytes",
    "put",
    "get",
    "drop",
    "corrupt",
    "suspect",
    "breaker",
    "flash",
    "disk",
    "epochs",
    "clock",
    "clients",
    "hits",
    "quota",
    "pressure",
    "sheds",
    "leases",
    "threads",
    "swap",
    "stalls",
    "violations",
    "transport",
    "round",
    "memory",
    "pages",
    "memlock",
    "mtu",
    "checksum",
    "planner",
    "block",
    "release",
    "log",
)


class Check(NamedTuple):
    """What was looked at, how it stands, and what to do about it."""

    name: str
    level: Level
    figure: str
    todo: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """The smallest of a list is what to mend first."""
        first = self.name.partition(" ")[0]
        place = ORDER.index(first) if first in ORDER else len(ORDER)
        return (("fail", "warn", "ok").index(self.level), place)


def ok(name: str, figure: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", figure)


def warn(name: str, figure: str, todo: str) -> Check:
    """It works, and could work better."""
    return Check(name, "warn", figure, todo)


def fail(name: str, figure: str, todo: str) -> Check:
    """It does not work as it should."""
    return Check(name, "fail", figure, todo)


def the_one(checks: Iterable[Check]) -> Check | None:
    """What to change first; None where all is well."""
    wrong = [check for check in checks if check.level != "ok"]
    return min(wrong, key=lambda check: check.rank, default=None)


def worst(checks: Iterable[Check]) -> Level:
    """How it stands in all."""
    levels = {check.level for check in checks}
    return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"


def as_values(checks: Sequence[Check]) -> dict[str, Any]:
    """A report for machines."""
    first = the_one(checks)
    return {
        "level": worst(checks),
        "change": None if first is None else first._asdict(),
        "checks": [check._asdict() for check in checks],
    }
