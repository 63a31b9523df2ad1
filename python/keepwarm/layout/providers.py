"""How providers cache prompts: minimum lengths, breakpoints, times to live, premiums.

The facts are data, in `providers.toml` beside this file, each with its source and the day when it
was read. A model that no rule names gets none: nothing is assumed of it.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from keepwarm.layout.fix import Target
from keepwarm.layout.requests import Family, LoggedRequest

__all__ = ["ProviderRule", "rule_for", "rules", "target_of"]

_VERSION_DOT = re.compile(r"(?<=\d)\.(?=\d)")


@dataclass(frozen=True, slots=True)
class ProviderRule:
    """What one provider does with prompts for some of its models."""

    provider: str
    models: tuple[str, ...]  # shell-style patterns
    minimum_tokens: int  # a shorter prefix is silently not cached
    step_tokens: int  # cached lengths are rounded down to it; 1: they are not
    breakpoints_max: int  # of the client's own in one request; 0: there are none
    lookback_blocks: int  # blocks searched for an entry, a breakpoint's own first; 0: all
    is_automatic: bool  # caches without a breakpoint
    ttl_s: tuple[int, ...]  # the first is what a breakpoint gets that asks for none
    write_factors: tuple[float, ...]  # on the price of input, for each ttl
    source: str
    as_of: str  # ISO date
    read_factor: float | None = None  # on the price of input; None: differs by model

    def cached_tokens(self, tokens: int) -> int:
        """How much of a repeated prefix the provider keeps."""
        return 0 if tokens < self.minimum_tokens else tokens - tokens % self.step_tokens

    def write_factor(self, ttl_s: int) -> float:
        """What writing costs that lives for `ttl_s`; the usual factor where that is not offered."""
        return dict(zip(self.ttl_s, self.write_factors, strict=True)).get(
            ttl_s, self.write_factors[0]
        )


@cache
def rules() -> tuple[ProviderRule, ...]:
    """All rules, in the order in which they are tried."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(tomllib.loads(text)["rule"], list[ProviderRule]))


def rule_for(model: str) -> ProviderRule | None:
    """The rule for a model as a request names it, with or without a provider in front."""
    name = _VERSION_DOT.sub("-", model.rpartition("/")[2].lower())
    return next(
        (rule for rule in rules() if any(fnmatchcase(name, each) for each in rule.models)), None
    )


def target_of(request: LoggedRequest) -> Target:
    """Where a request seems to go: by its model's name, else to an engine.

    A Claude model is Anthropic's in any shape of request, since gateways translate.
    """
    rule = rule_for(request.model())
    if rule is None:
        return Target.ENGINE
    if rule.provider.startswith("anthropic"):
        return Target.ANTHROPIC
    return Target.ENGINE if request.family is Family.ANTHROPIC else Target.OPENAI
