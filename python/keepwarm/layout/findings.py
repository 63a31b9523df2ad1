"""What a lint finds: which breaker, where in which request, what it costs, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Breaker(StrEnum):
    """The ways in which prefixes break; values are the rules' ids in SARIF and JSON."""

    PSEUDO_HEADER = "pseudo-header"  # a per-request header in the system prompt
    DATE_AT_FRONT = "date-at-front"
    TEMPLATE_DATE = "template-date"
    DYNAMIC_ID = "dynamic-id"
    TOOL_ORDER = "tool-order"
    KEY_ORDER = "key-order"  # JSON key order, whitespace, number format
    WHITESPACE = "whitespace"  # white space, line ends, Unicode form
    REASONING_STRIPPED = "reasoning-stripped"
    CACHE_MARKERS = "cache-markers"
    TOOL_SET = "tool-set"  # tools that come and go in front of everything
    USER_IN_SYSTEM = "user-in-system"
    FEW_SHOT = "few-shot"
    CHUNK_ORDER = "chunk-order"  # retrieved documents in another order
    MEDIA = "media"
    CACHE_SALT = "cache-salt"  # adapters, salts
    BLOCK_STRADDLE = "block-straddle"
    HISTORY_REWRITTEN = "history-rewritten"  # compaction, truncation, random placeholders
    MODEL_SWITCH = "model-switch"
    COLD_FAN_OUT = "cold-fan-out"


class Severity(StrEnum):
    """How SARIF calls it: an error costs more than a note."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a request."""

    where: str  # "file.jsonl:17"
    pointer: str  # JSON pointer (RFC 6901) into the body; empty: what the template adds
    offset: int  # characters into that field's text
    token: int  # first diverging token of the rendered prompt


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, with all requests that it hit."""

    breaker: Breaker
    severity: Severity
    place: Place  # of the first request that it hit
    compared_with: str  # the request whose prefix it broke with: "file.jsonl:12"
    requests: int
    lost_tokens: int  # tokens computed again for this cause, all requests together
    lost_money: float | None  # in `currency`; None where no price is known
    explanation: str  # what happened, without quoting text of the prompt
    repair: str
    is_fixable: bool  # `fix` does it
    is_expected: bool = False  # the template or the provider does so; nobody can mend it
    currency: str = "USD"
