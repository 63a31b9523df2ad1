"""`keepwarm workload`: evidence from an operator's own traffic; one file per verb."""

from __future__ import annotations

import cyclopts

app = cyclopts.App(
    name="workload",
    help="What repeats in your traffic, what a memory would save, and how large it should be.",
    result_action="return_value",
)
