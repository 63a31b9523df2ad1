"""`keepwarm workload`: evidence from an operator's own traffic; one file per verb."""

from __future__ import annotations

from collections.abc import Callable

import cyclopts

from keepwarm.cli.workload.anonymise import anonymise
from keepwarm.cli.workload.curve import curve
from keepwarm.cli.workload.describe import describe
from keepwarm.cli.workload.replay import replay
from keepwarm.cli.workload.report import report
from keepwarm.cli.workload.simulate import simulate
from keepwarm.cli.workload.size import size
from keepwarm.cli.workload.synth import synth

HELP = """\
What repeats in your traffic, what a memory would save, and how large it should be.

Reads request logs of gateways and engines, spans, or traces of block
hashes, in bounded memory, and keeps no text. Does anything repeat? How
much memory would pay? All of it on one page:

  keepwarm workload describe requests.jsonl
  keepwarm workload size requests.jsonl --model Llama-3.3-70B
  keepwarm workload report requests.jsonl --model Llama-3.3-70B

Without a log, keepwarm workload synth agents.parquet makes one up.
"""

app = cyclopts.App(
    name="workload",
    help=HELP,
    help_format="plaintext",
    result_action="return_value",
)
# In the order in which help shows them.
_VERBS: tuple[Callable[..., object], ...] = (
    describe,
    size,
    curve,
    simulate,
    report,
    replay,
    anonymise,
    synth,
)
for _place, _verb in enumerate(_VERBS):
    app.command(_verb, sort_key=_place)
