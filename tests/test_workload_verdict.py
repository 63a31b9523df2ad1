"""The verdict: each answer at both sides of each limit, its reason; the JSON of a description."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from keepwarm.workload.costs import cost_model
from keepwarm.workload.describe import description
from keepwarm.workload.geometry import geometry
from keepwarm.workload.measures import (
    Distribution,
    Estimate,
    Measures,
    PreviousUser,
    SessionShape,
    Weighted,
)
from keepwarm.workload.trace import TokensAre, TraceInfo
from keepwarm.workload.verdict import Advice, verdict


def spread(mean: float, p99: float | None = None, count: int = 1000) -> Distribution:
    top = p99 if p99 is not None else 2 * mean
    return Distribution(count, mean, 1, top, mean, mean, mean, mean, mean, top, 0.0, ())


def measures(
    *,
    reuse: float = 0.9,
    error: float = 0.0,
    long: float = 0.9,
    mean: float = 20_000,
    p99: float | None = None,
    sticky: float = 0.85,
    sessions: float = 50,
    requests: int = 1000,
    reach: float = 1e6,
    without_blocks: int = 0,
    tokens_are: TokensAre = TokensAre.EXACT,
) -> Measures:
    both = Weighted(Estimate(reuse, error), Estimate(reuse, error))
    own = Weighted(Estimate(sticky), Estimate(sticky))
    previous = PreviousUser(Estimate(0.9), Estimate(0.1), Estimate(0.0))
    info = TraceInfo("t", "mooncake", "generated", 64, tokens_are, synthetic=True)
    lengths = spread(mean, p99)
    return Measures(
        info=info,
        requests=requests,
        requests_without_blocks=without_blocks,
        span_s=3600.0,
        input_tokens=int(mean * requests),
        output_tokens=1000,
        input_length=lengths,
        output_length=spread(100),
        block_uses=1000,
        distinct_blocks=Estimate(500.0, 5.0),
        never_reused=Estimate(0.3),
        reuse_by_prefix=both,
        reuse_by_block=both,
        long_prefix_requests=Estimate(long, error),
        long_prefix_tokens=1024,
        long_prefix_share=0.5,
        reuse_distance_blocks=spread(reach / 64),
        reuse_time_s=spread(10),
        sharing_sessions=previous,
        sharing_tenants=previous,
        reuse_sticky=own,
        sessions=SessionShape(
            Estimate(sessions), 0, spread(20), spread(900), spread(5), spread(40_000), Estimate(0.1)
        ),
        hottest=(),
        watched_blocks=500,
        watched_share=1.0,
    )


def test_agents_are_a_strong_case_and_it_says_why() -> None:
    found = verdict(measures(reuse=0.95, sticky=0.94))
    assert found.advice is Advice.STRONG
    assert "95.0 % of all tokens repeat as prefixes" in found.reason
    assert "19,000 of the 20,000 tokens" in found.reason
    assert "a sticky router" in found.reason
    assert all(each.met for each in found.figures)
    assert found.would_change


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"reuse": 0.50}, Advice.STRONG),
        ({"reuse": 0.499}, Advice.PILOT),
        ({"reuse": 0.52, "error": 0.03}, Advice.PILOT),  # its low end is below
        ({"long": 0.50}, Advice.STRONG),
        ({"long": 0.49}, Advice.PILOT),
        ({"reuse": 0.9, "mean": 1138.0}, Advice.STRONG),
        ({"reuse": 0.9, "mean": 1136.0}, Advice.PILOT),
        ({"reuse": 0.10}, Advice.PILOT),
        ({"reuse": 0.099}, Advice.NO),
        ({"reuse": 0.09, "error": 0.02}, Advice.PILOT),  # its high end is not
        ({"reuse": 0.2, "mean": 1290.0}, Advice.PILOT),
        ({"reuse": 0.2, "mean": 1270.0}, Advice.NO),
        ({"requests": 19}, Advice.UNKNOWN),
        ({"reach": 65_536.0}, Advice.STRONG),
        ({"reach": 65_535.0}, Advice.PILOT),  # engines' own memory has it
        ({"reach": 65_535.0, "reuse": 0.099}, Advice.NO),
    ],
)
def test_each_limit_from_both_sides(changed: dict[str, float], advice: Advice) -> None:
    found = verdict(measures(**changed))  # type: ignore[arg-type]
    assert found.advice is advice
    assert found.reason
    assert found.would_change


def test_what_keeps_a_pilot_from_strong_is_named() -> None:
    found = verdict(measures(reuse=0.37, long=0.3, sessions=0))
    assert found.advice is Advice.PILOT
    assert "share of tokens that repeats as prefixes is below 50 %" in found.reason
    assert "names no sessions" in found.reason
    assert any("50 % or more" in each for each in found.would_change)


def test_what_comes_back_at_once_is_no_strong_case() -> None:
    found = verdict(measures(reuse=0.95, reach=6_400))
    assert found.advice is Advice.PILOT
    assert "within 6,400 tokens of other prompts" in found.reason
    assert any("--replicas" in each for each in found.would_change)


def test_few_requests_are_said_to_be_few() -> None:
    assert verdict(measures(requests=199)).reason.endswith("rests on 199 requests, which are few")
    assert "few" not in verdict(measures(requests=200)).reason


def test_what_is_computed_again_is_counted_from_the_beginning_on() -> None:
    """Half of a long prompt takes less than half of its time: later tokens are dearer."""
    model = geometry("Llama-3.1-8B")
    costs = cost_model(model, 64)
    reason = description(measures(reuse=0.5, mean=200_000), model, costs, "1 x H100").verdict.reason
    again = costs.prefill_s(0, 100_000)
    assert again < 0.4 * costs.prefill_s(0, 200_000)
    assert f"about {again:,.2f} s of it again" in reason


def test_unique_short_prompts_with_blocks() -> None:
    found = verdict(measures(reuse=0.01, long=0.0, mean=1100.0))
    assert found.advice is Advice.NO
    assert found.reason.startswith("prompts are mostly unique and short")
    found = verdict(measures(reuse=0.01, long=0.0, mean=30_000.0))
    assert found.reason.startswith("prompts are mostly unique:")
    found = verdict(measures(reuse=0.9, mean=200.0))
    assert found.reason.startswith("what repeats is too short")


def test_short_lengths_alone_are_enough_for_no() -> None:
    lengths = measures(
        reuse=0.0, mean=1155.0, p99=4142.0, tokens_are=TokensAre.LENGTHS_ONLY, without_blocks=1000
    )
    model = geometry("Llama-3.1-8B")
    costs = cost_model(model, 64, gpu="h100")
    found = description(lengths, model, costs, "1 x h100").verdict
    assert found.advice is Advice.NO
    assert "even if every prompt repeated whole, 1,155 tokens" in found.reason
    # 1,155 tokens of 6.98 G weights at 45 % of 989 TFLOP/s: 36 ms, and a little for attention.
    assert "37 ms of computing for Llama-3.1-8B on 1 x h100" in found.reason
    assert "to restore them" in found.reason


@pytest.mark.parametrize(("mean", "p99"), [(4097.0, 9000.0), (2000.0, 16_385.0)])
def test_long_lengths_alone_say_nothing(mean: float, p99: float) -> None:
    lengths = measures(mean=mean, p99=p99, tokens_are=TokensAre.LENGTHS_ONLY)
    found = verdict(lengths)
    assert found.advice is Advice.UNKNOWN
    assert "lengths only" in found.reason
    assert "block hashes" in found.would_change[0]


def test_mostly_without_blocks_is_as_lengths_only() -> None:
    found = verdict(measures(mean=30_000, without_blocks=501))
    assert found.advice is Advice.UNKNOWN
    assert found.reason.startswith("501 of the requests have lengths only")
    assert verdict(measures(mean=30_000, without_blocks=499)).advice is Advice.STRONG


def test_bytes_for_a_model() -> None:
    model = geometry("Llama-3.1-70B")
    found = description(measures(), model).kv
    assert found is not None
    assert found.block_bytes == 64 * 327_680
    assert found.session_bytes["p50"] == 40_000 * 327_680
    assert found.prompt_bytes["mean"] == 20_000 * 327_680
    assert (found.working_set_bytes, found.working_set_error) == (
        500 * found.block_bytes,
        5 * found.block_bytes,
    )


def test_a_description_is_json() -> None:
    odd = replace(measures(), reuse_time_s=replace(spread(1), mean=float("nan"), count=0))
    model = geometry("Llama-3.1-8B")
    found = description(odd, model, cost_model(model, 64), "1 x h100", {"not JSON": 3})
    shown = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (shown["schema"], shown["kind"]) == (1, "keepwarm.workload.describe")
    assert shown["measures"]["info"]["tokens_are"] == "exact"
    assert shown["measures"]["reuse_by_prefix"]["tokens"] == {"value": 0.9, "error": 0.0}
    assert shown["measures"]["reuse_time_s"]["mean"] is None
    assert shown["verdict"]["advice"] == "strong"
    assert shown["kv"]["bytes_per_token"] == 131_072
    assert shown["skipped"] == {"not JSON": 3}
    assert description(odd).as_json()["kv"] is None
