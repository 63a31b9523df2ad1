"""Provider rules, prices, and what breakpoints do in a log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from keepwarm.errors import ArgumentError
from keepwarm.layout.breakpoints import BreakpointAudit
from keepwarm.layout.findings import Breaker, Finding, Severity
from keepwarm.layout.fix import Target
from keepwarm.layout.money import Price, Prices, parse_price, read_prices
from keepwarm.layout.providers import rule_for, rules, target_of
from keepwarm.layout.requests import Family, LoggedRequest, Usage

MODEL = "claude-sonnet-4-5"  # at least 1,024 tokens, at most 4 breakpoints
FOUR = Price(4.0, 0.5, 5.0, "test")
MARK = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("model", "provider", "minimum", "step"),
    [
        ("claude-opus-5", "anthropic", 512, 1),
        ("anthropic/claude-haiku-4.5", "anthropic", 4096, 1),
        ("claude-opus-4-6-20260205", "anthropic", 4096, 1),
        ("claude-opus-4-7", "anthropic", 2048, 1),
        ("Claude-Sonnet-4-5-20250929", "anthropic", 1024, 1),
        ("us.anthropic.claude-opus-4-7-v1:0", "anthropic on bedrock", 4096, 1),
        ("gpt-4o-mini", "openai", 1024, 128),
        ("gpt-5.1-codex", "openai", 1024, 128),
        ("gpt-5.6", "openai", 1024, 1),
        ("google/gemini-2.5-pro", "google", 2048, 1),
        ("gemini-3.5-flash", "google", 4096, 1),
    ],
)
def test_models_find_their_rule(model: str, provider: str, minimum: int, step: int) -> None:
    rule = rule_for(model)
    assert rule is not None
    assert (rule.provider, rule.minimum_tokens, rule.step_tokens) == (provider, minimum, step)
    assert rule.cached_tokens(minimum - 1) == 0
    assert rule.cached_tokens(minimum + 129) == minimum + 129 - (129 % step)


@pytest.mark.parametrize("model", ["", "Qwen/Qwen3-8B", "gpt-oss-120b", "meta-llama/Llama-3.1-8B"])
def test_other_models_have_no_rule_and_go_to_an_engine(model: str) -> None:
    assert rule_for(model) is None
    request = LoggedRequest("log.jsonl:1", Family.OPENAI_CHAT, {"model": model})
    assert target_of(request) is Target.ENGINE


def test_targets_follow_the_model() -> None:
    def target(model: str, family: Family) -> Target:
        return target_of(LoggedRequest("log.jsonl:1", family, {"model": model}))

    assert target(MODEL, Family.OPENAI_CHAT) is Target.ANTHROPIC
    assert target("gpt-5", Family.OPENAI_RESPONSES) is Target.OPENAI


def test_every_rule_is_whole_and_says_where_it_is_from() -> None:
    seen: set[str] = set()
    for rule in rules():
        assert len(rule.ttl_s) == len(rule.write_factors) > 0
        assert rule.write_factor(rule.ttl_s[-1]) == rule.write_factors[-1]
        assert rule.write_factor(7) == rule.write_factors[0]
        assert re.search(r"\.(com|dev|ai)/", rule.source)
        assert date(2026, 1, 1) < date.fromisoformat(rule.as_of)
        assert rule.is_automatic or rule.breakpoints_max > 0
        assert not seen & set(rule.models)
        seen |= set(rule.models)


def test_prices_of_the_operator_come_first_and_none_is_invented() -> None:
    model, price = parse_price("org/my=model=2,0.2,2.5")
    assert (model, price.input, price.cached, price.write) == ("org/my=model", 2.0, 0.2, 2.5)
    prices = Prices({"gpt-4o": FOUR, model: price})
    assert prices.of("openai/gpt-4o") is FOUR
    assert prices.of("no-such-model") is None
    assert prices.of("", is_provider=True) is None
    assert price.lost(1_000_000) == pytest.approx(1.8)
    assert price.lost(500_000, written=True) == pytest.approx(1.15)
    assert Prices(has_list=False).of("gpt-4o") is None
    assert Prices().of("gpt-4o", is_provider=False) is None


def test_the_price_list_knows_providers_models() -> None:
    pytest.importorskip("genai_prices")
    price = Prices().of("claude-opus-5")
    assert price is not None
    assert price.cached == pytest.approx(price.input / 10)
    assert price.write == pytest.approx(price.input * 1.25)
    assert price.source.startswith("genai-prices ")
    assert price.source.endswith("anthropic/claude-opus-5")


@pytest.mark.parametrize("text", ["", "m", "m=1", "m=1,2", "=1,2,3", "m=1,2,x", "m=1,2,3,4"])
def test_prices_that_cannot_be_read_say_how(text: str) -> None:
    with pytest.raises(ArgumentError, match="model=input,cached,write"):
        parse_price(text)


@pytest.mark.parametrize("text", ["m=-1,2,3", "m=1,nan,3", "m=1,2,inf"])
def test_prices_are_amounts(text: str) -> None:
    with pytest.raises(ArgumentError, match="negative or endless"):
        parse_price(text)


def test_a_file_of_prices_has_one_currency(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"currency": "EUR", "models": {"m": {"input": 2, "cached": 1}}}))
    found = read_prices(path)
    assert found == {"m": Price(2.0, 1.0, 2.0, str(path), "EUR")}
    assert Prices(found).currency == "EUR"
    assert Prices(found).of("gpt-4o") is None  # a list in USD cannot be added to EUR
    with pytest.raises(ArgumentError, match="several currencies"):
        _ = Prices({**found, "n": FOUR}).currency
    for text in ("", "[]", '{"models": 3}', '{"models": {"m": {}}}', "[" * 9999):
        path.write_text(text)
        with pytest.raises(ArgumentError, match=r"prices\.json: not a file of prices"):
            read_prices(path)
    path.write_text('{"models": {"m": {"input": -2}}}')
    with pytest.raises(ArgumentError, match=r"prices\.json: price of 'm' has a negative"):
        read_prices(path)
    with pytest.raises(ArgumentError, match="No such file"):
        read_prices(tmp_path / "none.json")


def words(tokens: int, name: str) -> str:
    """Text of about so many tokens, four characters each."""
    return (name + " " * 4)[:4] * tokens


def request(
    at: int, system: list[Any], messages: list[Any], model: str = MODEL, **extra: Any
) -> LoggedRequest:
    body = {"model": model, "system": system, "messages": messages, **extra}
    return LoggedRequest(f"log.jsonl:{at}", Family.ANTHROPIC, body, time_s=60.0 * at)


def block(text: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text, **({"cache_control": mark} if mark else {})}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def audited(requests: Iterator[LoggedRequest] | list[LoggedRequest]) -> list[Finding]:
    audit = BreakpointAudit(Prices({MODEL: FOUR}, has_list=False))
    for each in requests:
        audit.see(each)
    found = audit.findings()
    assert all(each.breaker is Breaker.CACHE_MARKERS for each in found)
    return found


SYSTEM = block(words(3000, "sys"))


def test_a_good_layout_has_no_findings() -> None:
    marked = block(SYSTEM["text"], MARK)
    assert not audited([request(n, [marked], [user(block(f"q{n}"))]) for n in range(9)])


def test_reuse_without_a_breakpoint_is_found_with_its_price() -> None:
    asked = [request(n, [SYSTEM], [user(block(f"question {n}"))]) for n in range(5)]
    (found,) = audited(asked)
    assert found.explanation.startswith("requests repeat a prefix")
    assert (found.place.where, found.place.pointer) == ("log.jsonl:1", "/system/0")
    assert found.compared_with == "log.jsonl:0"
    assert found.requests == 4
    assert found.lost_tokens == 4 * 3000
    assert found.lost_money == pytest.approx(4 * 3000 * 3.5 / 1e6)


def test_automatic_caching_is_a_breakpoint_at_the_end() -> None:
    history = [user(block(words(900, f"m{n}"))) for n in range(8)]
    asked = [request(n, [SYSTEM], history[: n + 1], cache_control=MARK) for n in range(8)]
    assert not audited(asked)
    (found,) = audited(
        [request(n, [block(SYSTEM["text"], MARK)], history[:n]) for n in range(1, 9)]
    )
    assert found.explanation.startswith("requests repeat a prefix after their last breakpoint")


def test_a_breakpoint_behind_what_changes_is_found() -> None:
    asked = [
        request(n, [SYSTEM, block(f"now: {n}"), block(words(500, "end"), MARK)], [user(block("q"))])
        for n in range(4)
    ]
    (found,) = audited(asked)
    assert found.place.pointer == "/system/1"
    assert "changes with each request" in found.explanation
    assert found.lost_money == pytest.approx(3 * 3000 * 4.5 / 1e6)  # it was written again, too


def test_a_marked_prefix_below_the_minimum_is_found() -> None:
    short = block(words(1000, "sys"), MARK)
    (found,) = audited([request(n, [short], [user(block(f"q{n}"))]) for n in range(4)])
    assert "shorter than 1024 tokens" in found.explanation
    assert found.severity is Severity.NOTE
    long = block(words(1030, "sys"), MARK)
    assert not audited([request(n, [long], [user(block(f"q{n}"))]) for n in range(4)])


def test_more_than_four_breakpoints_are_found() -> None:
    marked = [block(words(600, f"s{n}"), MARK) for n in range(5)]
    (found,) = audited([request(n, marked, [user(block(f"q{n}"))]) for n in range(3)])
    assert found.explanation.startswith("5 breakpoints in one request; 4 are allowed")
    assert not audited([request(n, marked[:4], [user(block(f"q{n}"))]) for n in range(3)])


def test_an_hour_behind_five_minutes_is_found_at_once() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}
    first, then = words(2000, "one"), words(2000, "two")
    wrong = request(0, [block(first, MARK), block(then, hour)], [user(block("q"))])
    (found,) = audited([wrong])
    assert "an hour to live stands behind" in found.explanation
    assert (found.lost_tokens, found.place.pointer) == (0, "/system/1")
    right = [block(first, hour), block(then, MARK)]
    assert not audited([request(n, right, [user(block(f"q{n}"))]) for n in range(4)])


def openai(at: int, system: str, **extra: Any) -> LoggedRequest:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"q {at}"}]
    body = {"model": "gpt-5.6", "messages": messages, **extra}
    return LoggedRequest(f"log.jsonl:{at}", Family.OPENAI_CHAT, body, time_s=60.0 * at)


def test_what_is_too_short_for_a_provider_is_expected() -> None:
    (found,) = audited([openai(n, words(900, "sys")) for n in range(4)])
    assert found.is_expected
    assert "shorter than 1024 tokens" in found.explanation
    assert found.lost_tokens == 3 * 900
    assert not audited([openai(n, words(1100, "sys")) for n in range(4)])


def test_explicit_mode_without_a_breakpoint_caches_nothing() -> None:
    explicit = {"prompt_cache_options": {"mode": "explicit"}}
    (found,) = audited([openai(n, words(1100, "sys"), **explicit) for n in range(4)])
    assert found.explanation.startswith("requests repeat a prefix")
    assert not found.is_expected
    assert not audited([openai(n, words(1100, "sys")) for n in range(4)])


@pytest.mark.parametrize(("blocks", "is_found"), [(18, False), (19, False), (20, True), (30, True)])
def test_an_entry_is_looked_for_in_twenty_blocks(blocks: int, is_found: bool) -> None:
    first = [block(words(100, f"b{n}")) for n in range(20)]
    more = [block(words(10, f"c{n}")) for n in range(blocks)]

    def asked(given: list[dict[str, Any]], at: int) -> LoggedRequest:
        return request(at, [], [user(*given[:-1], {**given[-1], "cache_control": MARK})])

    found = audited([asked(first, 0), asked(first + more, 1)])
    assert bool(found) is is_found
    if is_found:
        assert "more than 20 blocks before" in found[0].explanation


def test_time_that_passes_is_no_fault_of_the_layout() -> None:
    marked = [block(SYSTEM["text"], MARK)]
    late = [request(10 * n, marked, [user(block(f"q{n}"))]) for n in range(4)]
    assert not audited(late)


def test_the_endpoints_own_count_decides_about_the_minimum() -> None:
    short = block(words(1000, "sys"), MARK)
    asked = [request(n, [short], [user(block("q"))]) for n in range(4)]
    counted = [
        LoggedRequest(
            each.where, each.family, each.body, each.time_s, usage=Usage(input_tokens=1300)
        )
        for each in asked
    ]
    assert audited(asked)
    assert not audited(counted)


def test_other_models_and_tenants_are_kept_apart() -> None:
    engines = [request(n, [SYSTEM], [user(block(f"q{n}"))], model="my-model") for n in range(4)]
    assert not audited(engines)
    tenants = [
        LoggedRequest(each.where, each.family, each.body, each.time_s, tenant=str(n))
        for n, each in enumerate(request(n, [SYSTEM], [user(block(f"q{n}"))]) for n in range(4))
    ]
    assert not audited(tenants)
