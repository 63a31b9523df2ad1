"""What an operator wants of a memory: a hit rate, a time to the first token, or most money left."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from keepwarm.config import parse_duration
from keepwarm.errors import ArgumentError, ConfigError

HELP = "give hit-rate=0.6, p99-ttft=2s or money"


class Wanted(StrEnum):
    """Kinds of target."""

    HIT_RATE = "hit-rate"
    P99_TTFT = "p99-ttft"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Target:
    """One of them; `value` is a share of tokens or seconds, and 0 for money."""

    wanted: Wanted
    value: float = 0.0

    def text(self) -> str:
        """As it was asked for."""
        if self.wanted is Wanted.HIT_RATE:
            return f"a token hit rate of {100 * self.value:g} %"
        if self.wanted is Wanted.P99_TTFT:
            return f"a P99 time to first token of {self.value:g} s"
        return "most money left"


def parse_target(text: str) -> Target:
    """From `hit-rate=0.6`, `hit-rate=60%`, `p99-ttft=2s`, `money`; raises ArgumentError."""
    name, equals, value = text.strip().partition("=")
    if name == Wanted.MONEY and not equals:
        return Target(Wanted.MONEY)
    if name == Wanted.HIT_RATE and (match := re.fullmatch(r"(\d*\.?\d+)\s*(%?)", value.strip())):
        share = float(match[1]) / (100 if match[2] else 1)
        if 0 < share <= 1:
            return Target(Wanted.HIT_RATE, share)
        raise ArgumentError(f"target {text!r}: a hit rate is above 0 and at most 1: {HELP}")
    if name == Wanted.P99_TTFT:
        try:
            seconds = parse_duration(value, "p99-ttft")
        except ConfigError as error:
            raise ArgumentError(f"target {text!r}: {error}") from None
        if seconds > 0:
            return Target(Wanted.P99_TTFT, seconds)
    raise ArgumentError(f"target {text!r} is none: {HELP}")
