"""`keepwarm workload`: evidence from an operator's own traffic; one file per verb."""

from __future__ import annotations

import cyclopts

from keepwarm.cli.workload.anonymise import anonymise
from keepwarm.cli.workload.curve import curve
from keepwarm.cli.workload.describe import describe
from keepwarm.cli.workload.replay import replay
from keepwarm.cli.workload.report import report
from keepwarm.cli.workload.simulate import simulate
from keepwarm.cli.workload.size import size
from keepwarm.cli.workload.synth import synth

app = cyclopts.App(
    name="workload",
    help="What repeats in your traffic, what a memory would save, and how large it should be.",
    help_format="plaintext",
    result_action="return_value",
)
app.command(describe)
app.command(curve)
app.command(simulate)
app.command(size)
app.command(report)
app.command(replay)
app.command(anonymise)
app.command(synth)
