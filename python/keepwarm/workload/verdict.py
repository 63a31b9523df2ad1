"""Whether a memory pays for a trace's traffic: one of four answers, the rule and the figures.

The rules, their thresholds and why they are where they are stand in docs/workload.md. In short: a
memory pays where much of what is asked repeats, as long prefixes, of prompts that are long. Limits
are held against the end of a figure's interval that speaks against the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from keepwarm.workload.measures import Estimate, Measures
from keepwarm.workload.trace import TokensAre

#: At least so much of all tokens repeats as prefixes: strong.
STRONG_REUSE = 0.50
#: And at least so many of the requests begin with a long prefix that was asked for before.
STRONG_LONG_PREFIXES = 0.50
#: And so many tokens a request need not be computed.
STRONG_SAVED_TOKENS = 1024
#: Below either: nothing to deploy a memory for.
WEAK_REUSE = 0.10
WEAK_SAVED_TOKENS = 256
#: A trace of lengths alone: prompts this short are computed within a tenth of a second or so.
SHORT_MEAN_TOKENS = 4096
SHORT_P99_TOKENS = 16384
#: Fewer requests than this show nothing.
REQUESTS_MIN = 20
#: With fewer the answer is given, and said to rest on little.
REQUESTS_FEW = 200
#: A router's share of what repeats, from which on it does most of the work.
STICKY_MOST = 0.9
#: What comes back within so many tokens of other requests is still in an engine's own memory: any
#: engine of use has this much (20 GiB for a model of 70 G parameters, 8 GiB for one of 8 G).
ENGINE_TOKENS = 65_536


class Advice(StrEnum):
    """What to do."""

    STRONG = "strong"
    PILOT = "worth a pilot"
    NO = "do not deploy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Deciding:
    """A figure that the rules looked at."""

    name: str
    value: float
    error: float
    limit: float
    met: bool  # whether the figure, its error counted against it, reaches the limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, why, and what would change it."""

    advice: Advice
    reason: str
    figures: tuple[Deciding, ...]
    would_change: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Documented in docs/workload.md."""
        return {
            "advice": self.advice.value,
            "reason": self.reason,
            "figures": [
                {
                    "name": each.name,
                    "value": each.value,
                    "error": each.error,
                    "limit": each.limit,
                    "met": each.met,
                }
                for each in self.figures
            ],
            "would_change": list(self.would_change),
        }


@dataclass(frozen=True, slots=True)
class Prefill:
    """What computing the trace's mean prompt takes, on hardware that is named."""

    seconds: float
    again_s: float  # of that, its share of tokens that repeats, from the beginning on
    restore_s: float  # the same tokens from a node's DRAM
    model: str
    hardware: str


def verdict(measures: Measures, prefill: Prefill | None = None) -> Verdict:
    """Of a trace's structure; `prefill` makes the reason say what prompts cost to compute."""
    if measures.requests < REQUESTS_MIN:
        return Verdict(
            Advice.UNKNOWN,
            f"a trace of {measures.requests} shows nothing: {REQUESTS_MIN} requests are the least "
            "that this looks at",
            (),
            ("a longer trace, best of a whole day",),
        )
    known = measures.requests - measures.requests_without_blocks
    if measures.info.tokens_are is TokensAre.LENGTHS_ONLY or known * 2 < measures.requests:
        return _by_lengths(measures, prefill)
    found = _by_blocks(measures, prefill)
    if measures.requests < REQUESTS_FEW:
        few = f"{found.reason}. It rests on {measures.requests} requests, which are few"
        return replace(found, reason=few, would_change=(*found.would_change, "a longer trace"))
    return found


def _by_lengths(measures: Measures, prefill: Prefill | None) -> Verdict:
    """Without blocks nothing is known to repeat; but short prompts have little to save at all."""
    lengths = measures.input_length
    only = "the trace has lengths only"
    if measures.requests_without_blocks < measures.requests:
        only = f"{measures.requests_without_blocks:,} of the requests have lengths only"
    figures = (
        _most("mean tokens a prompt", lengths.mean, SHORT_MEAN_TOKENS),
        _most("P99 tokens a prompt", lengths.p99, SHORT_P99_TOKENS),
    )
    is_short = all(each.met for each in figures)
    if not is_short:
        return Verdict(
            Advice.UNKNOWN,
            f"{only}, and prompts of {lengths.mean:,.0f} tokens on average "
            f"(P99 {lengths.p99:,.0f}) are long enough to be worth keeping if they repeat; "
            "whether they do cannot be seen from lengths",
            figures,
            (
                "block hashes: have requests logged with their text or their engine's block "
                "hashes, and describe that (keepwarm workload anonymise keeps no text)",
            ),
        )
    return Verdict(
        Advice.NO,
        f"prompts are short: {lengths.mean:,.0f} tokens on average, P99 {lengths.p99:,.0f}. "
        f"{only[0].upper()}{only[1:]}, so what repeats is not known; but even if every prompt "
        f"repeated whole, {lengths.mean:,.0f} tokens a request is all that could be saved"
        f"{_cost(prefill)}. Prefixes this short fit an engine's own cache",
        figures,
        (
            f"prompts of more than {SHORT_MEAN_TOKENS:,} tokens on average: agents, long documents",
            "a trace with block hashes that shows a long prefix shared by most requests, and an "
            "engine whose own cache has no room for it",
        ),
    )


def _cost(prefill: Prefill | None) -> str:
    if prefill is None:
        return ""
    return (
        f", {1e3 * prefill.seconds:,.0f} ms of computing for {prefill.model} on "
        f"{prefill.hardware}, against {1e3 * prefill.restore_s:,.0f} ms to restore them"
    )


def _by_blocks(measures: Measures, prefill: Prefill | None) -> Verdict:
    reuse, long = measures.reuse_by_prefix.tokens, measures.long_prefix_requests
    mean = measures.input_length.mean
    saved = Estimate(reuse.value * mean, reuse.error * mean)
    least = (
        _least("share of tokens that repeats as prefixes", reuse, STRONG_REUSE),
        _least(
            f"share of requests whose prefix of {measures.long_prefix_tokens:,} tokens or more "
            "was asked for before",
            long,
            STRONG_LONG_PREFIXES,
        ),
        _least("tokens a request that need not be computed", saved, STRONG_SAVED_TOKENS),
    )
    said = (
        f"{_percent(reuse)} of all tokens repeat as prefixes, {_percent(long)} of the requests "
        f"begin with a prefix of {measures.long_prefix_tokens:,} tokens or more that was asked for "
        f"before, and {saved.value:,.0f} of the {mean:,.0f} tokens of a request need not be "
        f"computed{_share_of(prefill)}"
    )
    weak = (
        _least("share of tokens that repeats as prefixes", reuse, WEAK_REUSE, best=True),
        _least("tokens a request that need not be computed", saved, WEAK_SAVED_TOKENS, best=True),
    )
    if not all(each.met for each in weak):
        return Verdict(Advice.NO, _weak_reason(weak, said, mean), weak, _weak_changes(weak))
    is_near = _is_near(measures)
    if all(each.met for each in least) and not is_near:
        return Verdict(
            Advice.STRONG,
            f"{said}. {_sticky(measures)}",
            least,
            (
                f"less than {100 * STRONG_REUSE:.0f} % of the tokens repeating, for instance by a "
                "date or an id at the front of prompts (keepwarm lint finds such)",
                "engines whose own memory holds it all: keepwarm workload size says what a memory "
                "of each size adds in money",
            ),
        )
    if is_near:
        return _near(measures, said, least)
    missing = [each for each in least if not each.met]
    named = "; ".join(f"{each.name} is below {_limit(each)}" for each in missing)
    return Verdict(
        Advice.PILOT,
        f"{said}. Something repeats, but not enough to be sure: {named}. {_sticky(measures)}",
        least,
        (
            "keepwarm workload size: whether it pays at your prices, and at which size",
            "keepwarm lint: whether something breaks prefixes that would repeat",
            f"{' and '.join(f'{each.name} of {_limit(each)} or more' for each in missing)}: strong",
        ),
    )


def _near(measures: Measures, said: str, least: tuple[Deciding, ...]) -> Verdict:
    """What repeats would be found without a memory."""
    return Verdict(
        Advice.PILOT,
        f"{said}. But nearly all of it comes back soon: in 90 of 100 cases within "
        f"{_reach(measures):,.0f} tokens of other prompts. An engine that saw it still has it "
        "in its own memory, and a router by session or prefix finds it there. "
        f"{_sticky(measures)}",
        least,
        (
            "keepwarm workload simulate with --replicas and --capacity device=SIZE: what your "
            "engines find by themselves",
            f"more users at once, so that {ENGINE_TOKENS:,} tokens or more of other prompts "
            "come between: strong",
            "retries of equal requests, or a benchmark's, that real traffic would not have",
        ),
    )


def _weak_reason(weak: Sequence[Deciding], said: str, mean: float) -> str:
    reuse, saved = weak
    if not reuse.met and mean < SHORT_MEAN_TOKENS:
        return f"prompts are mostly unique and short: {said}"
    if not reuse.met:
        return f"prompts are mostly unique: {said}"
    return f"what repeats is too short to be worth keeping ({saved.value:,.0f} tokens): {said}"


def _weak_changes(weak: Sequence[Deciding]) -> tuple[str, ...]:
    named = " and ".join(f"{each.name} of {_limit(each)} or more" for each in weak if not each.met)
    return (
        f"{named}: worth a pilot",
        "a repair, if something breaks prefixes that would repeat: keepwarm lint finds dates, ids "
        "and shuffled tools at the front of prompts",
    )


def _reach(measures: Measures) -> float:
    """Tokens of other prompts between two uses of what repeats, in 90 of 100 cases at most."""
    return measures.reuse_distance_blocks.p90 * measures.info.block_tokens


def _is_near(measures: Measures) -> bool:
    """Whether engines' own memory has nearly all that repeats, whatever a memory would hold."""
    return measures.reuse_distance_blocks.count > 0 and _reach(measures) < ENGINE_TOKENS


def _sticky(measures: Measures) -> str:
    """How much of it a router gets alone, which matters to what a memory adds."""
    all_of, own = measures.reuse_by_prefix.tokens.value, measures.reuse_sticky.tokens.value
    if not measures.sessions.sessions.value:
        return "The trace names no sessions, so what a sticky router alone would get is not known"
    if all_of and own / all_of >= STICKY_MOST:
        return (
            f"Sessions repeat mostly themselves: a sticky router with room for all of it would get "
            f"{100 * own:.0f} % or more alone; a memory adds what its engines cannot hold, and "
            "what is lost when load moves, an engine restarts or a replica goes"
        )
    return (
        f"A sticky router alone, with room for all of it, would get {100 * own:.0f} % or more; the "
        "rest is shared between sessions, and needs a shared memory or a copy in each engine"
    )


def _share_of(prefill: Prefill | None) -> str:
    if prefill is None:
        return ""
    return (
        f" (a mean prompt takes {prefill.seconds:,.2f} s to compute for {prefill.model} on "
        f"{prefill.hardware}, about {prefill.again_s:,.2f} s of it again)"
    )


def _least(name: str, figure: Estimate, limit: float, *, best: bool = False) -> Deciding:
    """`best`: the error counts for the figure, since the rule asks whether it is surely below."""
    counted = figure.value + (figure.error if best else -figure.error)
    return Deciding(name, figure.value, figure.error, limit, counted >= limit)


def _most(name: str, value: float, limit: float) -> Deciding:
    return Deciding(name, value, 0.0, limit, value <= limit)


def _limit(figure: Deciding) -> str:
    return f"{100 * figure.limit:.0f} %" if figure.limit <= 1 else f"{figure.limit:,.0f}"


def _percent(figure: Estimate) -> str:
    error = f" (± {100 * figure.error:.1f})" if figure.error >= 0.0005 else ""
    return f"{100 * figure.value:.1f} %{error}"
