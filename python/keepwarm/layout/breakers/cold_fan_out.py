"""19: requests with one new prefix sent at once, so that each computes it."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import Prompt
from keepwarm.layout.window import Warm

ABOUT = About(
    Breaker.COLD_FAN_OUT,
    "several requests with the same new prefix were sent before the first had computed it",
    "send one request first and hold the others for its prefill, or send all to one replica",
)
#: Prefill, in tokens a second, of a replica that is not otherwise busy: sets how long a prefix
#: that was just asked for is not there yet. Between these bounds, in seconds.
PREFILL_TOKENS_PER_S = 8_000
WAIT_S_MIN, WAIT_S_MAX = 0.05, 10.0


def cold_from(prompt: Prompt, warm: Warm) -> int | None:
    """The first segment of the warm prefix that is still being computed; None: all is there."""
    if prompt.time_s is None:
        return None
    for place, node in enumerate(warm.nodes):
        born = node.born
        if born is None or born.time_s is None:
            continue
        wait = born.new_tokens / PREFILL_TOKENS_PER_S
        is_fresh = 0 <= prompt.time_s - born.time_s < min(WAIT_S_MAX, max(WAIT_S_MIN, wait))
        # A session's next turn waits for its last one; more of the same do not wait.
        is_own = prompt.session is not None and prompt.session == born.session
        is_own = is_own and len(prompt.messages) > len(born.messages)
        if is_fresh and not is_own:
            return place
    return None
