"""`keepwarm doctor`: what is wrong with a node, or between engines and nodes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from keepwarm.cli.exits import FAILED, UNREACHABLE
from keepwarm.cli.output import tell
from keepwarm.config import parse_duration
from keepwarm.errors import ConfigError

if TYPE_CHECKING:
    from keepwarm.ops.doctor.checks import Check
    from keepwarm.ops.doctor.node import Report
    from keepwarm.ops.doctor.vllm import FleetReport

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}

app = cyclopts.App(
    name="doctor",
    help="Test a node (node), or running engines (vllm), and name the one thing to change first.",
    help_format="plaintext",
)


@app.command
def node(
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
    return _concluded(report, json_)


@app.command
def vllm(
    *,
    url: Annotated[list[str], Parameter(negative=())],
    token_file: Path | None = None,
    probe: bool = True,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Test running vLLM engines from outside, and name the one thing to change first.

    Looks at each engine's figures, compares those that serve one model,
    and sends a random prompt to the first and then the second, which must
    restore it. Exit code 0 if all is well or could be better, 1 if
    something does not work, 3 if no engine answers.

    Parameters
    ----------
    url
        An engine, as http://host:8000. Give it for two at least: --url A --url B.
    token_file
        A file with the engines' API key.
    probe
        Send the prompt. It costs two prefills of at most 2,048 tokens.
    json_
        One JSON object instead of the table.
    """
    from keepwarm.engines.asking import EngineError
    from keepwarm.ops.doctor.vllm import examine

    try:
        token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
        told = (lambda _: None) if json_ else _say
        report = examine(url, token=token, probe=probe, tell=told)
    except (EngineError, OSError, ValueError) as error:
        raise ConfigError(str(error), "url") from None
    return _concluded(report, json_)


def _concluded(report: Report | FleetReport, as_json: bool) -> int:
    if as_json:
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


def _conclude(report: Report | FleetReport) -> None:
    from keepwarm.ops.doctor.checks import the_one

    first = the_one(report.checks)
    wrong = [check for check in report.checks if check.level != "ok"]
    if first is None:
        tell(f"\nall well: {len(report.checks)} checks")
        return
    tell(f"\nchange this first ({first.name}): {first.todo}")
    for check in sorted(wrong, key=lambda each: each.rank)[1:]:
        tell(f"then {check.name}: {check.todo}")
