"""What breaks prefixes in a whole log: one finding for each cause, with what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from keepwarm.errors import ArgumentError
from keepwarm.layout.findings import Finding
from keepwarm.layout.profile import Observed, Profile, Settings, pattern_of, severity_of
from keepwarm.layout.requests import LoggedRequest

__all__ = ["Cause", "Lint", "LintReport", "ModelLoss", "Settings", "lint"]

#: Causes kept apart; further ones are counted in `LintReport.causes_left_out`.
CAUSES_MAX = 10_000
_REFUSALS_MAX = 10


@dataclass(slots=True)
class ModelLoss:
    """What one cause cost at one model."""

    requests: int = 0
    lost_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding for all requests that it hit, and its cost by model."""

    finding: Finding
    pattern: str  # the field's pointer, with * for places in lists
    by_model: dict[str, ModelLoss]


@dataclass(frozen=True, slots=True)
class LintReport:
    """All causes, dearest first, and the log's tokens.

    `reused_tokens` is what a prefix cache that forgets nothing of the window would have had,
    `lost_tokens` what it would have had more, but for the causes.
    """

    causes: tuple[Cause, ...]
    requests: int
    requests_hit: int  # with a finding that is not expected
    tokens: int
    reused_tokens: int
    lost_tokens: int
    tokens_are: str
    refused: tuple[str, ...] = ()  # the first requests that the template refused
    requests_refused: int = 0
    causes_left_out: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes' findings."""
        return tuple(cause.finding for cause in self.causes)

    @property
    def actual_reuse(self) -> float:
        """Share of all input tokens that could be reused as the log is."""
        return self.reused_tokens / self.tokens if self.tokens else 0.0

    @property
    def ideal_reuse(self) -> float:
        """The same, had no cause been there."""
        return (self.reused_tokens + self.lost_tokens) / self.tokens if self.tokens else 0.0


@dataclass(slots=True)
class Lint:
    """A lint in progress: `add` requests in order of time, then `report`."""

    settings: Settings = field(default_factory=Settings)
    _profile: Profile = field(init=False)
    _causes: dict[tuple[str, str, bool], Cause] = field(default_factory=dict)
    _requests: int = 0
    _hit: int = 0
    _tokens: int = 0
    _reused: int = 0
    _lost: int = 0
    _refused: list[str] = field(default_factory=list)
    _requests_refused: int = 0
    _left_out: int = 0

    def __post_init__(self) -> None:
        self._profile = Profile(self.settings)

    def add(self, request: LoggedRequest) -> Observed | None:
        """One more request; None where the chat template refuses it, which is counted."""
        try:
            seen = self._profile.measure(request)
        except ArgumentError as error:
            self._requests_refused += 1
            if len(self._refused) < _REFUSALS_MAX:
                self._refused.append(str(error))
            return None
        self._requests += 1
        self._tokens += seen.tokens
        self._reused += seen.reused_tokens
        self._lost += seen.lost_tokens
        self._hit += any(not finding.is_expected for finding in seen.findings)
        for finding in seen.findings:
            self._count(finding, seen.model)
        return seen

    def _count(self, finding: Finding, model: str) -> None:
        pattern = pattern_of(finding.place.pointer)
        key = (finding.breaker.value, pattern, finding.is_expected)
        cause = self._causes.get(key)
        if cause is None:
            if len(self._causes) >= CAUSES_MAX:
                self._left_out += 1
                return
            cause = self._causes[key] = Cause(finding, pattern, {})
        else:
            summed = replace(
                cause.finding,
                requests=cause.finding.requests + finding.requests,
                lost_tokens=cause.finding.lost_tokens + finding.lost_tokens,
            )
            cause = self._causes[key] = Cause(summed, pattern, cause.by_model)
        loss = cause.by_model.setdefault(model, ModelLoss())
        loss.requests += finding.requests
        loss.lost_tokens += finding.lost_tokens

    def report(self) -> LintReport:
        """What was found so far."""
        causes = sorted(self._causes.values(), key=lambda cause: -cause.finding.lost_tokens)
        return LintReport(
            causes=tuple(self._weighed(cause) for cause in causes),
            requests=self._requests,
            requests_hit=self._hit,
            tokens=self._tokens,
            reused_tokens=self._reused,
            lost_tokens=self._lost,
            tokens_are=self.settings.tokens.description,
            refused=tuple(self._refused),
            requests_refused=self._requests_refused,
            causes_left_out=self._left_out,
        )

    def _weighed(self, cause: Cause) -> Cause:
        """With a severity that is measured against the whole log."""
        finding = cause.finding
        severity = severity_of(finding.lost_tokens, self._tokens, finding.is_expected)
        return replace(cause, finding=replace(finding, severity=severity))


def lint(requests: Iterable[LoggedRequest], settings: Settings | None = None) -> LintReport:
    """Reads requests in order of time, in bounded memory, and says what broke their prefixes."""
    running = Lint(settings or Settings())
    for request in requests:
        running.add(request)
    return running.report()
