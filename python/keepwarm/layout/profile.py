"""The live divergence profile: each request against those before it, one at a time.

`Profile.observe` takes one request and answers what broke its prefix. Memory is bounded by `Limits`
whatever the traffic; a request costs what its new text costs, and about a microsecond for each
stretch that is known.
"""

from __future__ import annotations

import bisect
import re
from collections import OrderedDict
from dataclasses import dataclass, field, replace

import numpy as np

from keepwarm.layout import breakers
from keepwarm.layout.breakers import block_straddle, cache_salt, cold_fan_out, model_switch
from keepwarm.layout.breakers.json_places import place_in
from keepwarm.layout.divergence import Loss, Spot, Verdict, Walk, walk
from keepwarm.layout.fields import Kind, conversation
from keepwarm.layout.findings import Breaker, Finding, Place, Severity
from keepwarm.layout.prompts import Prompt, Stretch, identity_fields, identity_of, media_of
from keepwarm.layout.rendering import Rendered, RenderSettings, Segment, render, render_reply
from keepwarm.layout.requests import LoggedRequest
from keepwarm.layout.tokens import ApproximateTokens, Tokens, tokenise
from keepwarm.layout.window import Limits, Warm, Window

#: Tokens that a cause must cost in a request before it is named: less is noise.
LOST_TOKENS_MIN = 32
#: The same across sessions, where prompts may resemble each other by chance.
LOST_TOKENS_MIN_APART = 64
_CHARACTERS_A_TOKEN_MIN = 2
_VALUES_MIN = 3
_VALUES_MAX = 16
_CONTEXTS_MAX = 4096
_TENANTS_MAX = 1024
_SEGMENTS_BEHIND = 3
_NUMBER = re.compile(r"/\d+(?=/|$)")


@dataclass(frozen=True, slots=True)
class Settings:
    """How requests are rendered, cut and compared."""

    rendering: RenderSettings = field(default_factory=RenderSettings)
    tokens: Tokens = field(default_factory=ApproximateTokens)
    limits: Limits = field(default_factory=Limits)
    block_tokens: int = 16  # vLLM's and SGLang's usual page


@dataclass(frozen=True, slots=True)
class Observed:
    """What one request was, to a prefix cache that forgets nothing of the window."""

    model: str
    tokens: int
    reused_tokens: int  # that some earlier request had in front
    lost_tokens: int  # that more would have been, but for the findings
    findings: list[Finding]


class _Request:
    """One request while it is being compared."""

    def __init__(self, request: LoggedRequest, rendered: Rendered, settings: Settings) -> None:
        self.request = request
        self.rendered = rendered
        self.ids, offsets = tokenise(rendered, settings.tokens)
        self.begins = offsets
        self.ends = np.append(offsets[1:], rendered.starts[-1])[: len(offsets)]

    def tokens_in(self, begin: int, end: int) -> int:
        """Whole tokens within a range of characters."""
        first = int(np.searchsorted(self.begins, begin))
        return max(0, int(np.searchsorted(self.ends, end, side="right")) - first)

    def token_at(self, at: int) -> int:
        """The token that has a character."""
        return max(0, int(np.searchsorted(self.ends, at, side="right")))


@dataclass(slots=True)
class _Values:
    """Values seen at one varying place, and what was held back until it was sure."""

    seen: set[int] = field(default_factory=set)
    requests: int = 0
    lost: int = 0


class Profile:
    """Recent requests, and what breaks their prefixes."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._window = Window(self.settings.limits)
        self._straddles = block_straddle.Straddles(self.settings.block_tokens)
        self._salts: OrderedDict[str, cache_salt.Salts] = OrderedDict()
        self._values: OrderedDict[int, _Values] = OrderedDict()

    @property
    def held_characters(self) -> int:
        """Distinct text in the window, in characters."""
        return self._window.characters

    @property
    def held_requests(self) -> int:
        """Requests in the window."""
        return len(self._window)

    def observe(self, request: LoggedRequest) -> list[Finding]:
        """What broke this request's prefix. Raises ArgumentError if a template refuses it."""
        return self.measure(request).findings

    def measure(self, request: LoggedRequest) -> Observed:
        """The same, with the request's tokens."""
        rendered = render(request, self.settings.rendering)
        tenant = request.tenant or ""
        mine = _Request(request, rendered, self.settings)
        prompt = self._prompt(request, rendered, tenant)
        salts = self._salts.setdefault(tenant, cache_salt.Salts())
        self._salts.move_to_end(tenant)
        if len(self._salts) > _TENANTS_MAX:
            self._salts.popitem(last=False)
        salts.observe(prompt)
        warm = self._window.warm(tenant, prompt)
        reused = mine.tokens_in(0, warm.characters)
        prompt.new_tokens = len(mine.ids) - reused
        findings = self._fan_out(mine, prompt, warm)
        still_cold = sum(each.lost_tokens for each in findings)
        findings += self._compare(mine, prompt, warm, tenant)
        if not findings:
            findings += self._straddle(mine, prompt, warm, reused)
        self._window.add(tenant, prompt)
        lost = sum(each.lost_tokens for each in findings)
        return Observed(request.model(), len(mine.ids), reused - still_cold, lost, findings)

    def _prompt(self, request: LoggedRequest, rendered: Rendered, tenant: str) -> Prompt:
        fresh: dict[str, Stretch] = {}
        stretches: list[Stretch] = []
        lines: list[int] = []
        for segment in rendered.segments:
            stretch = fresh.get(segment.text) or self._window.stretch(tenant, segment.text)
            if not stretch.holders and segment.text not in fresh:
                fresh[segment.text] = stretch
                if segment.pointer:
                    lines.extend(stretch.lines())
            stretches.append(stretch)
        segments = [
            each if each.text is kept.text else Segment(kept.text, *each[1:])
            for each, kept in zip(rendered.segments, stretches, strict=True)
        ]
        salt_field, adapter_field = identity_fields(request)
        sent: frozenset[str] = frozenset()
        if self.settings.rendering.template is not None:
            turns = conversation(request).turns
            pieces = [piece for turn in turns for piece in turn.pieces]
            sent = frozenset(each.pointer for each in pieces if each.kind is Kind.REASONING)
        return Prompt(
            where=request.where,
            time_s=request.time_s,
            session=request.session,
            identity=identity_of(request),
            segments=segments,
            starts=rendered.starts,
            stretches=stretches,
            media=media_of(request, segments),
            reasoning_sent=sent,
            reply=render_reply(request),
            new_lines=lines,
            salt_field=salt_field,
            adapter_field=adapter_field,
        )

    def _compare(self, mine: _Request, prompt: Prompt, warm: Warm, tenant: str) -> list[Finding]:
        """Findings against the earlier request that would have given most."""
        best: tuple[int, Walk, Prompt, bool] | None = None
        for shared, theirs in self._window.candidates(tenant, prompt)[:3]:
            if shared < warm.characters + LOST_TOKENS_MIN * _CHARACTERS_A_TOKEN_MIN:
                break
            is_same = theirs.is_continued_by(prompt)
            if not self._may_share(prompt, theirs, is_same, tenant):
                continue
            found = walk(prompt, theirs, breakers.RULES, is_same)
            found.losses[:0] = _identity_losses(prompt, theirs, found)
            lost = sum(self._lost(mine, loss, warm) for loss in found.losses)
            if best is None or lost > best[0]:
                best = (lost, found, theirs, is_same)
        if best is None:
            return []
        lost, found, theirs, is_same = best
        if lost < (LOST_TOKENS_MIN if is_same else LOST_TOKENS_MIN_APART):
            return []
        costs = [self._lost(mine, loss, warm) for loss in found.losses]
        while costs and not costs[-1]:
            costs.pop()  # explained, but nothing behind it would have been reused
        made = [
            finding
            for loss, cost in zip(found.losses, costs, strict=False)
            if (finding := self._finding(mine, theirs, loss, cost, found)) is not None
        ]
        return _one_a_cause(made, len(mine.ids))

    def _may_share(self, prompt: Prompt, theirs: Prompt, is_same: bool, tenant: str) -> bool:
        """Whether one could have had the other's prefix, were it not for a breaker."""
        if prompt.identity == theirs.identity:
            return True
        if model_switch.differs(prompt, theirs):
            # Unnamed, one request to two models compares them; only a later turn is a switch.
            is_named = prompt.session is not None
            return is_same and (is_named or len(prompt.messages) > len(theirs.messages))
        is_salt = prompt.identity.adapter == theirs.identity.adapter
        return is_same or (is_salt and self._salts[tenant].are_per_request())

    @staticmethod
    def _lost(mine: _Request, loss: Loss, warm: Warm) -> int:
        """Tokens of a loss that no other earlier request would have given."""
        return sum(
            mine.tokens_in(max(begin, warm.characters), end)
            for begin, end in loss.ranges
            if end > warm.characters
        )

    def _finding(
        self, mine: _Request, theirs: Prompt, loss: Loss, lost: int, found: Walk
    ) -> Finding | None:
        requests = 1
        if loss.verdict.varying is not None:
            held = self._hold_back(loss.verdict.varying, lost)
            if held is None:
                return None
            requests, lost = held
        token = mine.token_at(loss.at)
        if loss is found.losses[0]:
            token = min(token, self._first_different(mine, theirs, loss.at))
        place = _place(mine.request.where, loss, token)
        return _made(loss.verdict, place, theirs.where, requests, lost, len(mine.ids))

    def _hold_back(self, varying: tuple[int, int, int], lost: int) -> tuple[int, int] | None:
        """Nothing until three values were seen; then all that was held back at once."""
        context, *values = varying
        known = self._values.setdefault(context, _Values())
        self._values.move_to_end(context)
        if len(self._values) > _CONTEXTS_MAX:
            self._values.popitem(last=False)
        if len(known.seen) < _VALUES_MAX:
            known.seen.update(values)
        known.requests += 1
        known.lost += lost
        if len(known.seen) < _VALUES_MIN:
            return None
        report = (known.requests, known.lost)
        known.requests = known.lost = 0
        return report

    def _first_different(self, mine: _Request, theirs: Prompt, at: int) -> int:
        """The first token that differs: those before it are what an engine would reuse.

        Only as much of `theirs` is cut as the tokens around the difference can depend on.
        """
        end = bisect.bisect_right(theirs.starts, at) + _SEGMENTS_BEHIND
        ids, _ = tokenise(Rendered(theirs.segments[:end]), self.settings.tokens)
        size = min(len(ids), len(mine.ids))
        parts = np.flatnonzero(ids[:size] != mine.ids[:size])
        return int(parts[0]) if len(parts) else size

    def _fan_out(self, mine: _Request, prompt: Prompt, warm: Warm) -> list[Finding]:
        first = cold_fan_out.cold_from(prompt, warm)
        if first is None:
            return []
        starts = prompt.starts
        lost = mine.tokens_in(starts[first], warm.characters)
        if lost < LOST_TOKENS_MIN_APART:
            return []
        born = warm.nodes[first].born
        places = range(first, len(prompt.segments))
        field = next((k for k in places if prompt.segments[k].pointer), first)
        segment = prompt.segments[field]
        loss = Loss(Verdict(Breaker.COLD_FAN_OUT, (Spot(0), Spot(0))), segment, 0, starts[first])
        place = _place(mine.request.where, loss, mine.token_at(starts[first]))
        where = born.where if born is not None else ""
        return [_made(loss.verdict, place, where, 1, lost, len(mine.ids))]

    def _straddle(self, mine: _Request, prompt: Prompt, warm: Warm, reused: int) -> list[Finding]:
        """Only for prefixes that are short, and that another session left."""
        if not warm.nodes or reused > 16 * self.settings.block_tokens:
            return []
        node = warm.nodes[-1]
        if node.born is not None and node.born.is_continued_by(prompt):
            return []
        report = self._straddles.observe(id(node), reused)
        if report is None:
            return []
        fields = [k for k, each in enumerate(prompt.segments[: warm.segments]) if each.pointer]
        if not fields:
            return []
        segment = prompt.segments[fields[-1]]
        at = prompt.starts[fields[-1]] + len(segment.text)
        verdict = Verdict(Breaker.BLOCK_STRADDLE, (Spot(0), Spot(0)), is_expected=True)
        loss = Loss(verdict, segment, len(segment.text), at)
        place = _place(mine.request.where, loss, reused)
        where = node.born.where if node.born is not None else ""
        return [_made(verdict, place, where, *report, len(mine.ids))]


def pattern_of(pointer: str) -> str:
    """A field's pointer with * for places in lists: the same field of all requests."""
    return _NUMBER.sub("/*", pointer)


def _one_a_cause(findings: list[Finding], tokens: int) -> list[Finding]:
    """A cause that shows at many places of one request is one finding, at its first place."""
    merged: dict[tuple[Breaker, str, bool], Finding] = {}
    for finding in findings:
        key = (finding.breaker, pattern_of(finding.place.pointer), finding.is_expected)
        first = merged.setdefault(key, finding)
        if first is not finding:
            requests = max(first.requests, finding.requests)
            lost = first.lost_tokens + finding.lost_tokens
            severity = severity_of(lost, tokens * requests, finding.is_expected)
            merged[key] = replace(first, requests=requests, lost_tokens=lost, severity=severity)
    return list(merged.values())


def _identity_losses(prompt: Prompt, theirs: Prompt, found: Walk) -> list[Loss]:
    """What a salt, an adapter or a model costs: all that was equal from the start."""
    if prompt.identity == theirs.identity:
        return []
    if model_switch.differs(prompt, theirs):
        breaker, pointer, detail = Breaker.MODEL_SWITCH, "/model", ""
    else:
        breaker = Breaker.CACHE_SALT
        pointer, detail = cache_salt.pointer(prompt, theirs)
    equal = min(found.equal, theirs.starts[-1])
    verdict = Verdict(breaker, (Spot(0), Spot(0)), 0, pointer, 0, detail)
    return [Loss(verdict, Segment(""), 0, 0, [(0, equal)])]


def _place(where: str, loss: Loss, token: int) -> Place:
    """The field to blame: the verdict's, else the differing one, else the template's."""
    verdict, segment = loss.verdict, loss.segment
    if verdict.pointer is not None:
        return Place(where, verdict.pointer, verdict.offset or 0, token)
    if segment.role == "tools" and segment.pointer.count("/") > 1:
        inner, offset = place_in(segment.text, loss.character)
        return Place(where, segment.pointer + inner, offset, token)
    offset = segment.offset + loss.character if segment.pointer else 0
    return Place(where, segment.pointer, offset, token)


def _made(
    verdict: Verdict, place: Place, where: str, requests: int, lost: int, tokens: int
) -> Finding:
    about = breakers.ABOUT[verdict.breaker]
    explanation = f"{about.explanation} ({verdict.detail})" if verdict.detail else about.explanation
    severity = severity_of(lost, tokens * requests, verdict.is_expected)
    return Finding(
        breaker=verdict.breaker,
        severity=severity,
        place=place,
        compared_with=where,
        requests=requests,
        lost_tokens=lost,
        lost_money=None,
        explanation=explanation,
        repair=about.repair,
        is_fixable=verdict.is_fixable,
        is_expected=verdict.is_expected,
    )


def severity_of(lost: int, tokens: int, is_expected: bool) -> Severity:
    """An error from a tenth of all input tokens, a warning from a hundredth, else a note."""
    if is_expected or lost * 100 < tokens:
        return Severity.NOTE
    return Severity.ERROR if lost * 10 >= tokens else Severity.WARNING
