"""`keepwarm doctor`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from keepwarm.cli.exits import FAILED, UNREACHABLE
from keepwarm.cli.output import tell
from keepwarm.config import parse_duration

if TYPE_CHECKING:
    from keepwarm.ops.doctor.checks import Check
    from keepwarm.ops.doctor.node import Report

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def doctor(
    what: Literal["node"],
    address: str | None = None,
    *,
    tenant: str = "default",
    secret: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    deadline: str = "5s",
) -> int:
    """Test a node from all sides, and name the one thing to change first.

    Stores a few blocks in a namespace of its own over every path, reads them
    back, times them, and drops them. Exit code 0 if all is well or could be
    better, 1 if something does not work, 3 if no node answers.

    Parameters
    ----------
    what
        What to test: node.
    address
        unix:/path, a path, tcp://host:port or tls://host:port. Without it
        KEEPWARM_ADDRESS, else the default socket.
    tenant
        Under which tenant to store.
    secret
        That tenant's secret file. Tenant default has none.
    json_
        One JSON object instead of the table.
    deadline
        How long each call may take.
    """
    del what
    deadline_s = parse_duration(deadline, "deadline")

    from keepwarm.ops.doctor.node import examine

    # As Ctrl-C does, so that what was stored is dropped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = examine(
        address,
        tenant=tenant,
        secret=secret,
        deadline_s=deadline_s,
        tell=(lambda _: None) if json_ else _say,
    )
    if json_:
        tell(json.dumps(report.as_json(), indent=2))
    else:
        _conclude(report)
    if not report.is_reached:
        return UNREACHABLE
    return FAILED if report.level == "fail" else 0


def _say(check: Check) -> None:
    level = f"{check.level:<4}"
    if sys.stdout.isatty():
        level = f"\x1b[{_COLOURS[check.level]}m{level}\x1b[0m"
    tell(f"{level}  {check.name:<16} {check.figure}")


def _conclude(report: Report) -> None:
    from keepwarm.ops.doctor.checks import the_one

    first = the_one(report.checks)
    wrong = [check for check in report.checks if check.level != "ok"]
    if first is None:
        tell(f"\nall well: {len(report.checks)} checks")
        return
    tell(f"\nchange this first ({first.name}): {first.todo}")
    for check in sorted(wrong, key=lambda each: each.rank)[1:]:
        tell(f"then {check.name}: {check.todo}")
