"""18: another model in the middle of a session."""

from __future__ import annotations

from keepwarm.layout.breakers.about import About
from keepwarm.layout.findings import Breaker
from keepwarm.layout.prompts import Prompt

ABOUT = About(
    Breaker.MODEL_SWITCH,
    "the session went to another model, which knows nothing of its prefix",
    "keep a session on the model that answered it until its prefix is cold; price the switch",
)


def differs(mine: Prompt, theirs: Prompt) -> bool:
    """Whether the models differ."""
    return mine.identity.model != theirs.identity.model
