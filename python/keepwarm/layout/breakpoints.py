"""What a provider's cache does with a log's breakpoints, and what it could have done.

A provider that caches at breakpoints (Anthropic) is followed block by block: what each request
writes, reads, and shares with an earlier one. What it shares but does not read is put down to one
cause. Prompts are compared as chains of hashes of their blocks, in the order tools, system,
messages; lengths in tokens come from `count`, scaled to what the endpoint reported.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from keepwarm.layout.fields import Kind, conversation
from keepwarm.layout.findings import Breaker, Finding, Place, Severity
from keepwarm.layout.fix import MARKERS, Target, marker_paths
from keepwarm.layout.money import Prices
from keepwarm.layout.providers import ProviderRule, rule_for, target_of
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.layout.splice import pointer

__all__ = ["BreakpointAudit", "Cause"]

# Remembered blocks; beyond them the oldest are forgotten, and reuse of these goes unnoticed.
BLOCKS_MAX = 1_000_000
_CHARACTERS_PER_TOKEN = 4
# What a request loses below this share of its prompt is the usual end of a conversation.
_LOST_SHARE_MIN = 0.1
_HOUR_S, _USUAL_TTL_S = 3600, 300


class Cause(StrEnum):
    """Why a provider does not read what it could."""

    MISSING = "missing"
    BELOW_MINIMUM = "below-minimum"
    TOO_MANY = "too-many"
    AFTER_VOLATILE = "after-volatile"
    TOO_FAR = "too-far"
    TTL_ORDER = "ttl-order"
    TOO_SHORT = "too-short"  # for a provider that caches by itself


_REPAIRS = {
    Cause.MISSING: "put cache_control on the last block that the next request repeats, or use "
    "automatic caching (cache_control at the top level)",
    Cause.BELOW_MINIMUM: "gather more stable content before the breakpoint, or remove it: below "
    "the minimum it is ignored without a word",
    Cause.TOO_MANY: "remove breakpoints; the end of what all share and the end of the conversation "
    "are enough",
    Cause.AFTER_VOLATILE: "put the breakpoint before the block that changes, or move that block "
    "behind it",
    Cause.TOO_FAR: "put one more breakpoint between, so that no stretch without one is longer than "
    "what is searched",
    Cause.TTL_ORDER: "put breakpoints that live an hour before those that live five minutes",
    Cause.TOO_SHORT: "nothing, unless more of what is stable can stand in front",
}


_MINOR = (Cause.BELOW_MINIMUM, Cause.TOO_SHORT)
_REFUSED = (Cause.TOO_MANY, Cause.TTL_ORDER)  # by the endpoint: each is worth a word


@dataclass(slots=True)
class _Block:
    pointer: str
    chain: bytes
    tokens: float  # of the prompt up to its end


@dataclass(slots=True)
class _Tally:
    place: Place
    compared_with: str
    explanation: str
    requests: int = 0
    lost: float = 0.0
    money: float | None = None


@dataclass(slots=True)
class _Cache:
    """What one tenant has sent to one model: blocks seen, and entries with their ends."""

    seen: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    entries: dict[bytes, float] = field(default_factory=dict)


def count_characters(text: str) -> float:
    """Tokens as a quarter of the characters: the usual approximation for English."""
    return len(text) / _CHARACTERS_PER_TOKEN


class BreakpointAudit:
    """Follows requests in the order of their arrival; `findings` may be asked at any time."""

    def __init__(
        self, prices: Prices | None = None, count: Callable[[str], float] = count_characters
    ) -> None:
        self._prices = prices or Prices()
        self._count = count
        self._caches: dict[tuple[str, str], _Cache] = {}
        self._tallies: dict[tuple[Cause, str], _Tally] = {}
        self._blocks = 0

    def see(self, request: LoggedRequest) -> None:
        """Takes the next request; those to engines, and to models without a rule, are passed by."""
        rule = rule_for(request.model())
        if rule is None or target_of(request) is Target.ENGINE:
            return
        blocks = self._blocks_of(request)
        if not blocks:
            return
        cache = self._caches.setdefault((request.tenant or "", request.model()), _Cache())
        shared = _last_seen(cache, blocks)
        if rule.is_automatic:
            self._see_automatic(request, blocks, shared, rule)
            self._remember(cache, blocks, request.where)
            return
        marks = _marks(request, blocks)
        now = request.time_s or 0.0
        read = _read(cache, blocks, marks, rule, now)
        cause = _cause(cache, blocks, marks, shared, read, rule, now)
        if cause is not None and (shared >= 0 or cause in _REFUSED):
            self._add(cause, request, blocks, marks, shared, read, rule)
        if cause not in _REFUSED:
            for at, ttl_s in marks.items():
                if blocks[at].tokens >= rule.minimum_tokens:
                    cache.entries[blocks[at].chain] = now + ttl_s
        self._remember(cache, blocks, request.where)

    def _see_automatic(
        self, request: LoggedRequest, blocks: list[_Block], shared: int, rule: ProviderRule
    ) -> None:
        """A provider that caches by itself: what is too short for it, or forbidden to it.

        A breakpoint there adds to what is kept anyway, and does no harm.
        """
        if shared < 0:
            return
        if rule.cached_tokens(round(blocks[shared].tokens)) == 0:
            self._add(Cause.TOO_SHORT, request, blocks, {}, shared, -1, rule)
        elif _is_explicit(request) and not _has_marker(request, MARKERS[1]):
            self._add(Cause.MISSING, request, blocks, {}, shared, -1, rule)

    def findings(self) -> list[Finding]:
        """One finding for each cause and model, the most expensive first."""
        made = [self._finding(cause, tally) for (cause, _), tally in self._tallies.items()]
        return sorted(made, key=lambda each: (-each.lost_tokens, each.place.where))

    def _blocks_of(self, request: LoggedRequest) -> list[_Block]:
        parts = conversation(request)
        pieces = [*parts.tools, *(piece for turn in parts.turns for piece in turn.pieces)]
        blocks: list[_Block] = []
        chain, total = b"", 0.0
        for piece in pieces:
            if piece.kind is Kind.MARKER:
                continue
            digest = hashlib.blake2b(chain, digest_size=16)
            digest.update(f"{piece.kind.name}\0{piece.text}".encode("utf-8", "surrogatepass"))
            chain = digest.digest()
            total += piece.media_tokens or self._count(piece.text)
            place = _block_pointer(piece.pointer)
            if blocks and blocks[-1].pointer == place:
                blocks[-1].chain, blocks[-1].tokens = chain, total
            else:
                blocks.append(_Block(place, chain, total))
        reported = _reported(request)
        if reported and total:
            for block in blocks:
                block.tokens *= reported / total
        return blocks

    def _remember(self, cache: _Cache, blocks: list[_Block], where: str) -> None:
        for block in blocks:
            if block.chain not in cache.seen:
                self._blocks += 1
            cache.seen[block.chain] = where
            cache.seen.move_to_end(block.chain)
        while self._blocks > BLOCKS_MAX and cache.seen:
            chain, _ = cache.seen.popitem(last=False)
            cache.entries.pop(chain, None)
            self._blocks -= 1

    def _add(
        self,
        cause: Cause,
        request: LoggedRequest,
        blocks: list[_Block],
        marks: dict[int, int],
        shared: int,
        read: int,
        rule: ProviderRule,
    ) -> None:
        have = blocks[read].tokens if read >= 0 else 0.0
        lost = blocks[shared].tokens - have if shared > read else 0.0
        if lost < _LOST_SHARE_MIN * blocks[-1].tokens and cause not in _REFUSED:
            return
        key = (cause, request.model())
        tally = self._tallies.get(key)
        if tally is None:
            at = _place(cause, blocks, marks, shared)
            before = blocks[at - 1].tokens if at else 0.0
            place = Place(request.where, blocks[at].pointer, 0, round(before))
            cache = self._caches[(request.tenant or "", request.model())]
            against = cache.seen[blocks[shared].chain] if shared >= 0 else ""
            tally = _Tally(place, against, _explain(cause, marks, rule))
            self._tallies[key] = tally
        tally.requests += 1
        tally.lost += lost
        price = self._prices.of(request.model())
        if price is not None:
            paid = price.lost(round(lost), written=bool(marks) and cause is not Cause.MISSING)
            tally.money = (tally.money or 0.0) + paid

    def _finding(self, cause: Cause, tally: _Tally) -> Finding:
        return Finding(
            breaker=Breaker.CACHE_MARKERS,
            severity=Severity.NOTE if cause in _MINOR else Severity.WARNING,
            place=tally.place,
            compared_with=tally.compared_with,
            requests=tally.requests,
            lost_tokens=round(tally.lost),
            lost_money=tally.money,
            explanation=tally.explanation,
            repair=_REPAIRS[cause],
            is_fixable=False,
            is_expected=cause is Cause.TOO_SHORT,
            currency=self._prices.currency,
        )


def _block_pointer(place: str) -> str:
    """The block that a field is part of: /messages/3/content/0, /system/0, /tools/2."""
    steps = place.split("/")
    return "/".join(steps[: 5 if steps[1:2] in (["messages"], ["input"]) else 3])


def _reported(request: LoggedRequest) -> int:
    """Prompt tokens as the endpoint counted them. Anthropic's input leaves out what was cached."""
    usage = request.usage
    if usage.input_tokens is None:
        return 0
    if request.family is not Family.ANTHROPIC:
        return usage.input_tokens
    return usage.input_tokens + (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0)


def _marks(request: LoggedRequest, blocks: list[_Block]) -> dict[int, int]:
    """Breakpoints as blocks' positions, with the time to live that each asks for."""
    found = {}
    for path in marker_paths(request.body, request.family):
        if path[-1] != MARKERS[0]:
            continue
        marker: Any = request.body
        for step in path:
            marker = marker[step]
        if not isinstance(marker, dict):
            continue  # null says that there is none
        holder = pointer(path[:-1])
        places = [
            at
            for at, block in enumerate(blocks)
            if not holder
            or block.pointer == holder
            or block.pointer.startswith(f"{holder}/")
            # A mark on a block inside of a tool's result ends that result.
            or holder.startswith(f"{block.pointer}/")
        ]
        if places:
            found[places[-1]] = _HOUR_S if marker.get("ttl") == "1h" else _USUAL_TTL_S
    return dict(sorted(found.items()))


def _is_explicit(request: LoggedRequest) -> bool:
    """Whether an OpenAI request forbids breakpoints of the provider's own choice."""
    options = request.body.get("prompt_cache_options")
    return isinstance(options, dict) and options.get("mode") == "explicit"


def _has_marker(request: LoggedRequest, name: str) -> bool:
    return any(path[-1] == name for path in marker_paths(request.body, request.family))


def _last_seen(cache: _Cache, blocks: list[_Block]) -> int:
    """The last block up to which an earlier prompt was the same; -1: none."""
    at = len(blocks) - 1
    while at >= 0 and blocks[at].chain not in cache.seen:
        at -= 1
    return at


def _read(
    cache: _Cache, blocks: list[_Block], marks: dict[int, int], rule: ProviderRule, now: float
) -> int:
    """The last block that is read from an entry, whose life begins anew; -1: none."""
    for mark in sorted(marks, reverse=True):
        oldest = max(0, mark - rule.lookback_blocks + 1) if rule.lookback_blocks else 0
        for at in range(mark, oldest - 1, -1):
            if cache.entries.get(blocks[at].chain, -1.0) >= now:
                cache.entries[blocks[at].chain] = max(
                    cache.entries[blocks[at].chain], now + marks[mark]
                )
                return at
    return -1


def _cause(
    cache: _Cache,
    blocks: list[_Block],
    marks: dict[int, int],
    shared: int,
    read: int,
    rule: ProviderRule,
    now: float,
) -> Cause | None:
    """Why less is read than is shared; None: it is not, or time has passed, or it is too short."""
    if len(marks) > rule.breakpoints_max:
        return Cause.TOO_MANY
    lives = list(marks.values())
    if any(later > earlier for earlier, later in pairwise(lives)):
        return Cause.TTL_ORDER
    if marks and blocks[max(marks)].tokens < rule.minimum_tokens:
        return Cause.BELOW_MINIMUM
    if read >= shared or blocks[shared].tokens < rule.minimum_tokens:
        return None
    if not marks:
        return Cause.MISSING
    kept = [at for at in range(read + 1, shared + 1) if blocks[at].chain in cache.entries]
    if kept:
        is_alive = any(cache.entries[blocks[at].chain] >= now for at in kept)
        return Cause.TOO_FAR if is_alive else None
    return Cause.AFTER_VOLATILE if read < 0 and min(marks) > shared else Cause.MISSING


def _place(cause: Cause, blocks: list[_Block], marks: dict[int, int], shared: int) -> int:
    if cause in (Cause.BELOW_MINIMUM, Cause.TOO_FAR, *_REFUSED):
        return max(marks)
    return shared if cause in (Cause.MISSING, Cause.TOO_SHORT) else min(shared + 1, len(blocks) - 1)


def _explain(cause: Cause, marks: dict[int, int], rule: ProviderRule) -> str:
    said = {
        Cause.MISSING: "requests repeat a prefix after their last breakpoint, or have none: it is "
        "paid for in full each time",
        Cause.BELOW_MINIMUM: f"the marked prefix is shorter than {rule.minimum_tokens} tokens, and "
        "so is not cached",
        Cause.TOO_MANY: f"{len(marks)} breakpoints in one request; {rule.breakpoints_max} are "
        "allowed, and more are refused",
        Cause.AFTER_VOLATILE: "all breakpoints stand after content that changes with each request, "
        "so that what they write is never read",
        Cause.TOO_FAR: f"an entry lies more than {rule.lookback_blocks} blocks before the next "
        "breakpoint, where it is not looked for",
        Cause.TTL_ORDER: "a breakpoint with an hour to live stands behind one with five minutes, "
        "which is refused",
        Cause.TOO_SHORT: f"what prompts share is shorter than {rule.minimum_tokens} tokens, from "
        "where on this provider caches",
    }
    return f"{said[cause]} ({rule.provider}, as of {rule.as_of})"
