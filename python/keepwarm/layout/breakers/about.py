"""What every breaker says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.layout.findings import Breaker


@dataclass(frozen=True, slots=True)
class About:
    """What happened, and what to do, in words that quote nothing of a prompt."""

    breaker: Breaker
    explanation: str
    repair: str
