"""What the run amounts to: times, whether restoring won, whether every answer was the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepwarm.demo.machine import percentile
from keepwarm.demo.vllm.accounts import Accounts
from keepwarm.demo.vllm.run import TOLD, Asked, Kind, Record

# The prompt again where it was: served from that engine's own prefix cache.
REFERENCES = (Kind.SAME_REPLICA, Kind.AGAIN)
RESTORED_SHARE_LEAST = 0.5


@dataclass(slots=True)
class Summary:
    """Figures for the report; `problems` is empty when all held."""

    ttft_ms: dict[Kind, dict[str, float]] = field(default_factory=dict)
    of_cold: dict[Kind, list[float]] = field(default_factory=dict)
    """Of each request, its time against the same conversation's cold one."""
    accounts: Accounts = field(default_factory=Accounts)
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether every answer was its reference, token by token."""
        return self.compared > 0 and not self.differing

    def ratio(self, kind: Kind) -> float:
        """The median of the kind's requests, each against its own cold one."""
        return percentile(self.of_cold[kind], 0.5)

    @property
    def won(self) -> bool:
        """Whether what was restored came sooner than what was computed."""
        return all(self.ratio(kind) < 1 for kind in (Kind.OTHER_REPLICA, Kind.AFTER_RESTART))


def summarise(record: Record) -> Summary:
    """Computes all figures and collects all problems."""
    summary = Summary()
    for kind in TOLD:
        took = [each.completion.first_token_s * 1e3 for each in record.of(kind)]
        summary.ttft_ms[kind] = {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}
        summary.of_cold[kind] = _of_cold(record, kind)
    for each in record.asked:
        summary.accounts.add(each.accounts)
    _compare(record, summary)
    _count(record, summary)
    if not summary.identical:
        summary.problems += summary.differing or ["no answer was compared"]
    for kind in (Kind.OTHER_REPLICA, Kind.AFTER_RESTART):
        _judge_restored(record, summary, kind)
    return summary


def _of_cold(record: Record, kind: Kind) -> list[float]:
    """Conversations differ in length, so each is compared with itself; one that was never asked
    cold, with the cold one that comes at the same place by length."""
    by_length = sorted(record.of(Kind.COLD), key=lambda each: each.prompt_tokens)
    by_name = {each.name: each for each in by_length}
    ratios = []
    for at, each in enumerate(sorted(record.of(kind), key=lambda each: each.prompt_tokens)):
        cold = by_name.get(each.name) or (by_length[at] if at < len(by_length) else None)
        if cold is not None and cold.completion.first_token_s > 0:
            ratios.append(each.completion.first_token_s / cold.completion.first_token_s)
    return ratios


def _compare(record: Record, summary: Summary) -> None:
    expected = {each.name: each for each in record.of(*REFERENCES)}
    for each in record.asked:
        if each.kind in REFERENCES:
            continue
        reference = expected.get(each.name)
        if reference is None:
            summary.problems.append(f"{_named(each)}: nothing to compare it with")
            continue
        summary.compared += 1
        ours, theirs = each.completion.tokens, reference.completion.tokens
        if ours != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            summary.differing.append(
                f"{_named(each)}: token {at + 1} of the answer is another than {reference.replica} "
                "gives from its own prefix cache"
            )


def _count(record: Record, summary: Summary) -> None:
    for each in record.asked:
        counted = each.accounts.prompt
        if counted != each.prompt_tokens:
            summary.problems.append(
                f"{_named(each)}: {each.prompt_tokens:,} prompt tokens asked, the engine's "
                f"figures account for {counted:,}"
            )


def _judge_restored(record: Record, summary: Summary, kind: Kind) -> None:
    asked = record.of(kind)
    prompt = sum(each.prompt_tokens for each in asked)
    restored = sum(each.accounts.restored.total() for each in asked)
    label = kind.replace("_", " ")
    if restored < RESTORED_SHARE_LEAST * prompt:
        summary.problems.append(
            f"{label}: {restored:,} of {prompt:,} prompt tokens were restored; the reasons for the "
            "others are in tokens.by_reason"
        )
    if summary.ratio(kind) >= 1:
        summary.problems.append(
            f"{label}: {summary.ratio(kind):.2f} of the cold time to first token: restoring lost"
        )


def _named(each: Asked) -> str:
    return f"{each.name} at {each.replica} ({each.kind.replace('_', ' ')})"
