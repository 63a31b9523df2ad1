"""Where every token went: counted once, restored by tier or missed by reason.

    tokens asked = restored (by tier) + missed (by reason)

A prompt is cut into whole blocks and a rest. The engine needs one token to start from, so a block
that ends exactly at the prompt's end is never asked for (`last_token`), and a rest that fills no
block cannot be (`partial_block`). Of the blocks asked for, the first that is missing has the
node's reason; those behind it are `after_gap`, whether they are here or not, because a prefix
cannot be used beyond a gap. `behind` says which reason stood in front of them. Where no node
answered, nobody knows about any block: all of them have that reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keepwarm import Outcome, Reason, Status

REASONS = frozenset(
    (
        "absent",
        "evicted",
        "expired",
        "epoch",
        "quota",
        "pending",
        "corrupt",
        "identity",
        "deadline",
        "store_down",
        "throttled",
        "planner",
        "host_pool_full",
        "after_gap",
        "partial_block",
        "last_token",
        "load_failed",
        "disabled",
    )
)
"""Why a token is recomputed: a closed list, shared by every adapter; each token has exactly one."""

UNANSWERED = frozenset({"store_down", "deadline", "throttled", "identity"})


@dataclass(slots=True)
class Ledger:
    """Tokens of one or many requests."""

    asked: int = 0
    device_hit: int = 0
    restored: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    behind: Counter[str] = field(default_factory=Counter)

    def add(self, other: Ledger) -> None:
        """Adds another's tokens to these."""
        self.asked += other.asked
        self.device_hit += other.device_hit
        self.restored.update(other.restored)
        self.missed.update(other.missed)
        self.behind.update(other.behind)

    def restored_tokens(self) -> int:
        """Tokens restored, all tiers together."""
        return sum(self.restored.values())

    def missed_tokens(self) -> int:
        """Tokens to recompute, all reasons together."""
        return sum(self.missed.values())

    def problem(self) -> str | None:
        """What does not add up; None when all does."""
        total = self.device_hit + self.restored_tokens() + self.missed_tokens()
        if total != self.asked:
            return f"tokens do not add up: {total:,} accounted for, {self.asked:,} asked"
        gap = sum(self.behind.values())
        if gap != self.missed["after_gap"]:
            return f"{gap:,} tokens behind gaps, {self.missed['after_gap']:,} after_gap"
        unknown = set(self.missed) - REASONS
        return f"reasons outside the closed list: {sorted(unknown)}" if unknown else None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "asked": self.asked,
            "device_hit": self.device_hit,
            "restored": dict(self.restored),
            "missed": dict(self.missed),
            "behind": dict(self.behind),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Ledger:
        """The opposite of `to_json`."""
        return cls(
            plain["asked"],
            plain["device_hit"],
            Counter(plain["restored"]),
            Counter(plain["missed"]),
            Counter(plain["behind"]),
        )


def askable_blocks(input_tokens: int, block_tokens: int) -> int:
    """Blocks of a prompt that may be restored: at least one token is left to compute."""
    return max(input_tokens - 1, 0) // block_tokens


def usable(outcomes: Sequence[Outcome]) -> int:
    """Blocks before the first that did not land."""
    return next((at for at, o in enumerate(outcomes) if o.status is not Status.OK), len(outcomes))


def account(
    input_tokens: int,
    block_tokens: int,
    miss: str | None,
    tiers: Sequence[object],
    outcomes: Sequence[Outcome],
) -> Ledger:
    """The ledger of one request.

    `tiers` and `outcomes` are those of the prefix that the lookup found, which was asked for
    whole; `miss` is the lookup's reason for the first block behind it.
    """
    ledger = Ledger(asked=input_tokens)
    asked = askable_blocks(input_tokens, block_tokens)
    landed = usable(outcomes)
    for tier in tiers[:landed]:
        ledger.restored[str(tier)] += block_tokens
    gap: str | None = None
    for outcome in outcomes[landed:]:
        if outcome.status is Status.OK:
            _after(ledger, gap, block_tokens)
            continue
        reason = str(outcome.reason or outcome.status)
        gap = gap or reason
        ledger.missed[reason] += block_tokens
    behind = asked - len(outcomes)
    if behind and miss in UNANSWERED and gap is None:
        ledger.missed[str(miss)] += behind * block_tokens
    elif behind:
        first = 0 if gap is not None else 1
        gap = gap or str(miss or Reason.ABSENT)
        ledger.missed[gap] += first * block_tokens
        _after(ledger, gap, (behind - first) * block_tokens)
    rest = input_tokens - asked * block_tokens
    if rest:
        ledger.missed["last_token" if rest == block_tokens else "partial_block"] += rest
    ledger.missed = +ledger.missed
    return ledger


def _after(ledger: Ledger, gap: str | None, tokens: int) -> None:
    if tokens:
        ledger.missed["after_gap"] += tokens
        ledger.behind[str(gap)] += tokens
