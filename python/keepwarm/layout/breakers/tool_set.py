"""10: tools that come and go, in front of everything."""

from __future__ import annotations

from collections import Counter

from keepwarm.layout.breakers.about import About
from keepwarm.layout.breakers.toolbox import toolbox
from keepwarm.layout.divergence import Divergence, Verdict
from keepwarm.layout.findings import Breaker

ABOUT = About(
    Breaker.TOOL_SET,
    "tools came or went; they are rendered in front of the system prompt and the history",
    "send one constant set of tools for each role, and forbid some for a turn with tool_choice or "
    "allowed_tools instead of leaving them out",
)


def rule(found: Divergence) -> Verdict | None:
    """Different sets of tools that overlap; in one session, also some against none."""
    tools = toolbox(found)
    if tools is None or Counter(tools.names) == Counter(tools.their_names):
        return None
    shared = sum((Counter(tools.names) & Counter(tools.their_names)).values())
    if not shared and not (found.is_same_session and not (tools.names and tools.their_names)):
        return None
    pointer = found.mine.segments[tools.segment].pointer if tools.mine else "/tools"
    detail = f"{len(tools.mine)} tools, {len(tools.theirs)} before, {shared} in both"
    return Verdict(Breaker.TOOL_SET, tools.resume, 0, pointer, 0, detail)
