"""Writes bench/README.md from bench/results.json, so that no figure is typed by hand.

`make bench-record` measures and calls this; `--check` says whether the page is what it would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from keepwarm.bench.report import heading, rows

HERE = Path(__file__).resolve().parent
TEMPLATE = """\
# Figures

Each is a ratio against a limit that the same run measures, or CPU time: absolute rates depend on
the machine. Do not edit: `make bench-record` measures, writes `results.json`, and makes this page
of it. `make bench` measures and prints; `make bench-peers` installs what the comparisons need.

Machine and run: {heading}.

| figure | median | min..max of pairs | floor (goal) | | command |
| --- | --- | --- | --- | --- | --- |
{table}

## How each is taken

- A pair is a round of the limit and then one of ours, over the same number of bytes at the same
  places; the first pair warms up and does not count. The median of the pairs' ratios is told, with
  the extremes. Rounds move {round_mib} MiB in blocks of 2 MiB unless the figure says otherwise.
- Nodes are `keepwarm serve` in a process of their own, clients use the Python API: what a user
  gets. All memory is touched before the first round.
- **memcpy** is the C library's, one thread, between two mappings of the kind that an arena is.
- **A bare socket loop** (`crates/bench/src/streams.rs`) is another process that answers a 32-byte
  request with heads and payloads as large as a node's, or takes them; it has no keys, index or
  hash, but system calls, socket buffers and a wait for a quarter of a mebibyte as a node has. Both
  use one stream.
- **A bare rustls loop** is the same over rustls's own stream, TLS 1.3, the same suite.
- **A bare io_uring loop** (`file.rs`) is one file on the same file system, O_DIRECT, the same size
  and depth. A put ends when the store says that its blocks are on flash, a get's blocks have left
  memory before.
- On a machine that others use, `chrt -r 1` before the command puts nodes, clients and limits above
  them; the line above says where that was done.
- **CPU** is the serving process's own clock, user and system, over the rounds.
- **The index** is measured alone (`index.rs`), by its thread's CPU clock: prompts of 512 keys drawn
  at random over a full table, each key found, its use and its lease state written.
{peers}
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(result: dict[str, Any]) -> str:
    """The page for a result."""
    table = []
    for row in rows(result):
        notes = f"; {row.notes}" if row.notes else ""
        what = f"**{row.name}**: {row.what}{notes}"
        command = f"`{result['details'][row.name]['command']}`"
        cells = (what, row.value, row.spread, row.wanted, row.verdict, command)
        table.append(f"| {' | '.join(map(_cell, cells))} |")
    return TEMPLATE.format(
        heading=heading(result),
        table="\n".join(table),
        round_mib=32 if result["quick"] else 64,
        peers=_peers(result),
    )


def _peers(result: dict[str, Any]) -> str:
    found = {
        detail["peer"]: detail.get("settings", "")
        for detail in result["details"].values()
        if "peer" in detail
    }
    return "\n".join(f"- **{peer}**: {settings}" for peer, settings in sorted(found.items()))


def main() -> int:
    """Writes the page, or checks it."""
    result = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    target, made = HERE / "README.md", page(result).rstrip("\n") + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if target.read_text(encoding="utf-8") == made else 1
    target.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
