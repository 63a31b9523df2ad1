"""The command line. One file per command; this one only assembles them."""

from __future__ import annotations

import cyclopts

import keepwarm

app = cyclopts.App(
    name="keepwarm",
    help="A shared context memory for LLM inference fleets.",
    version=keepwarm.__version__,
)


def main() -> None:
    """Run the ``keepwarm`` command."""
    app()
