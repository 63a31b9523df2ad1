"""The fault proxy's shell interface: `python -m keepwarm.testing.fault_shell --to ADDRESS`.

Prints the address it listens at, then answers one command a line; `help` lists them.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from keepwarm.testing.faults import FaultProxy, Side, Towards

_HELP = """\
set node|client FAULT=VALUE …   replace a direction's faults; faults: delay_s bytes_per_s cut_after
                                corrupt_at corrupt_every stall reorder chunk_bytes
refuse on|off · half-open client|node|off · drop · clear · stats · quit"""


def _value(text: str) -> Any:
    if text in ("on", "true", "off", "false"):
        return text in ("on", "true")
    return float(text) if "." in text else int(text)


def command(proxy: FaultProxy, line: str) -> str:
    """Runs one command line of the shell interface and returns its answer."""
    match line.split():
        case ["set", towards, *settings]:
            pairs = (setting.partition("=") for setting in settings)
            proxy.set(Towards(towards), **{name: _value(value) for name, _, value in pairs})
        case ["refuse", switch]:
            proxy.refuse(switch == "on")
        case ["half-open", side]:
            proxy.half_open(None if side == "off" else Side(side))
        case ["drop"]:
            return f"dropped {proxy.drop()}"
        case ["clear"]:
            proxy.clear()
        case ["stats"]:
            return str(proxy.stats())
        case _:
            return _HELP
    return "ok"


def main(arguments: list[str] | None = None) -> int:
    """The shell interface; ends when its standard input ends or says quit."""
    parser = argparse.ArgumentParser(prog="python -m keepwarm.testing.fault_shell")
    parser.add_argument("--listen", default="tcp:127.0.0.1:0", help="unix:PATH or tcp:HOST:PORT")
    parser.add_argument("--to", required=True, help="the node's address")
    chosen = parser.parse_args(arguments)
    with FaultProxy(chosen.to, chosen.listen) as proxy:
        print(f"listening at {proxy.address}", flush=True)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            try:
                print(command(proxy, line), flush=True)
            except (TypeError, ValueError) as error:
                print(f"error: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
