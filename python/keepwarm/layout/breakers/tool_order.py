"""5: the same tools in another order."""

from __future__ import annotations

from collections import Counter

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.toolbox import toolbox
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.TOOL_ORDER,
    "the same tools are listed in another order than before",
    "sort the tools by name (built-in ones first, then those of servers) before each request",
)


def rule(found: Divergence) -> Verdict | None:
    """Equal tools, or equal names, in different orders."""
    tools = toolbox(found)
    if tools is None or len(tools.mine) < 2 or tools.names == tools.their_names:
        return None
    if Counter(tools.names) != Counter(tools.their_names):
        return None
    start = found.mine.starts
    here = start[found.spot.segment] + found.spot.character
    recovered = max(0, start[tools.resume[0].segment] - here)
    return Verdict(
        Breaker.TOOL_ORDER,
        tools.resume,
        recovered if tools.common() == len(tools.mine) else 0,
        found.mine.segments[tools.segment].pointer,
        0,
        is_fixable=True,
    )
