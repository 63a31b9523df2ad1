"""The engine one request at a time: bounds, tenants, speed, templates, what reports say."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import planting
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.layout.breakers.json_places import place_in
from keepwarm.layout.chat_template import ChatTemplate
from keepwarm.layout.findings import Breaker, Severity
from keepwarm.layout.lint import Lint, lint
from keepwarm.layout.profile import Profile, Settings
from keepwarm.layout.rendering import RenderSettings
from keepwarm.layout.requests import Family, LoggedRequest
from keepwarm.layout.template_check import check_template
from keepwarm.layout.window import Limits, common_length
from keepwarm.testing import conversations

REQUESTS_PER_S_MIN = 200
PROMPT_TOKENS = 8_000


def chat(where: str, messages: list[dict[str, Any]], **more: Any) -> LoggedRequest:
    body = {"model": "m", "messages": messages}
    return LoggedRequest(where, Family.OPENAI_CHAT, body, **more)


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"{rng.choice('bdgklmnprst')}o{rng.randint(0, 999)}" for _ in range(count))


def sessions(rng: random.Random, count: int, turns: int) -> list[LoggedRequest]:
    """Sessions that grow to about 8,000 tokens and stay near it, one after another."""
    system = words(rng, 1_400)
    requests = []
    for session in range(count):
        messages = [{"role": "system", "content": system}]
        for _ in range(30):
            messages.append({"role": "user", "content": words(rng, 35)})
            messages.append({"role": "assistant", "content": words(rng, 35)})
        for turn in range(turns):
            messages.append({"role": "user", "content": words(rng, 20)})
            where = f"{session}:{turn}"
            requests.append(chat(where, list(messages), session=str(session)))
            messages.append({"role": "assistant", "content": words(rng, 20)})
    return requests


def as_parsed(requests: list[LoggedRequest]) -> list[LoggedRequest]:
    """With strings of their own, as from a log's lines."""
    import msgspec

    return [
        LoggedRequest(
            each.where,
            each.family,
            msgspec.json.decode(msgspec.json.encode(each.body)),
            session=each.session,
        )
        for each in requests
    ]


@pytest.mark.parametrize("is_broken", [False, True], ids=["clean", "dated"])
def test_two_hundred_requests_of_8k_tokens_a_second(is_broken: bool) -> None:
    requests = as_parsed(sessions(random.Random(3), 12, 20))
    if is_broken:
        for number, request in enumerate(requests):
            system = request.body["messages"][0]
            system["content"] = f"Now: 2026-05-04 10:{number % 60:02}:07\n" + system["content"]
    rates, wanted = [], REQUESTS_PER_S_MIN / 2 if is_broken else REQUESTS_PER_S_MIN
    for _ in range(3):  # other work on the machine slows a run, nothing makes one faster
        running = Lint()
        began = time.process_time()
        for request in requests:
            running.add(request)
        rates.append(len(requests) / (time.process_time() - began))
        if rates[-1] >= wanted:
            break
    report = running.report()
    mean = report.tokens / report.requests
    print(f"{max(rates):.0f} requests/s of {mean:.0f} tokens")
    assert mean > PROMPT_TOKENS
    assert max(rates) >= wanted
    assert (report.requests_hit > 200) is is_broken


def test_memory_is_bounded_whatever_comes() -> None:
    limits = Limits(requests=50, characters=200_000)
    profile = Profile(Settings(limits=limits))
    rng = random.Random(5)
    for number in range(400):
        text = words(rng, rng.randint(1, 3_000))
        request = chat(
            f"a:{number}",
            [{"role": "system", "content": "x" * 100}, {"role": "user", "content": text}],
            session=str(number // 3),
            tenant=str(number % 7),
        )
        profile.observe(request)
        assert profile.held_requests <= limits.requests
        assert profile.held_characters <= limits.characters or profile.held_requests == 1
    held = profile._window
    assert len(held._tenants) <= 7
    assert held.segments == sum(len(prompt.segments) for _, prompt in held._order)
    count = 0
    for group in held._tenants.values():
        nodes = list(group.roots.values())
        while nodes:
            node = nodes.pop()
            count += 1
            nodes += node.children.values()
        assert all(prompt.is_alive for prompt in group.lines.values())
        assert all(prompt.is_alive for prompt in group.sessions.values())
        assert all(stretch.holders for stretch in group.stretches.values())
    assert count <= 50 * 12
    texts = sum(len(s.text) for g in held._tenants.values() for s in g.stretches.values())
    assert texts == held.characters


def test_long_histories_leave_less_room_for_others() -> None:
    profile = Profile(Settings(limits=Limits(segments=2_000)))
    for number in range(40):
        messages = [{"role": "user", "content": f"{k}"} for k in range(10 * number)]
        profile.observe(chat(f"a:{number}", messages))
        assert profile._window.segments <= 2_000
    assert profile.held_requests < 5


def test_a_window_too_small_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a window needs"):
        Limits(requests=1)


def test_tenants_are_never_compared() -> None:
    planted = planting.dynamic_id(conversations.generated(6, 1), random.Random(1))
    profile = Profile()
    for number, request in enumerate(planted.requests):
        alone = LoggedRequest(
            request.where, request.family, request.body, tenant=f"tenant-{number}"
        )
        assert profile.observe(alone) == []


def test_observing_one_by_one_finds_what_a_lint_finds() -> None:
    planted = planting.tool_order(conversations.generated(6, 2), random.Random(2))
    profile = Profile()
    found = [each for request in planted.requests for each in profile.observe(request)]
    report = lint(planted.requests)
    assert sum(each.lost_tokens for each in found) == report.lost_tokens
    assert sum(each.requests for each in found) == sum(f.requests for f in report.findings)


def test_a_report_sums_up_by_cause_and_model_and_quotes_nothing() -> None:
    planted = planting.user_in_system(conversations.generated(12, 3), random.Random(3))
    report = lint(planted.requests)
    cause = report.causes[0]
    assert cause.pattern == "/messages/*/content"
    assert cause.finding.breaker is Breaker.USER_IN_SYSTEM
    assert sum(each.lost_tokens for each in cause.by_model.values()) == cause.finding.lost_tokens
    assert set(cause.by_model) == {"example-model"}
    assert report.actual_reuse < report.ideal_reuse <= 1.0
    shown = repr(report)
    said = " ".join(str(m["content"]) for m in planted.requests[-1].body["messages"]).split()
    assert len(said) > 100
    assert not [word for word in said if len(word) > 6 and word.strip(".") in shown]


def test_an_ordinary_edit_or_another_conversation_is_no_finding() -> None:
    rng = random.Random(8)
    system = {"role": "system", "content": words(rng, 300)}
    first = {"role": "user", "content": words(rng, 50)}
    answer = {"role": "assistant", "content": words(rng, 50)}
    profile = Profile()
    asked = [
        chat("a:1", [system, first], session="s"),
        chat("a:2", [system, first, answer, {"role": "user", "content": "go on"}], session="s"),
        chat("a:3", [system, first, answer, {"role": "user", "content": "no: stop"}], session="s"),
        chat("a:4", [system, {"role": "user", "content": words(rng, 90)}], session="t"),
        chat("a:5", [system, first], session="u"),
        chat("a:6", [{"role": "user", "content": words(rng, 200)}], session="v"),
    ]
    assert [finding for request in asked for finding in profile.observe(request)] == []


def test_what_the_template_drops_is_expected() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% if m.reasoning_content and loop.revindex < 3 %}"
        "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    )
    rng = random.Random(4)
    thought = {"role": "assistant", "content": words(rng, 60), "reasoning_content": words(rng, 40)}
    messages: list[dict[str, Any]] = [{"role": "user", "content": words(rng, 40)}, thought]
    messages.append({"role": "user", "content": words(rng, 60)})
    later = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go"}]
    settings = Settings(rendering=RenderSettings(ChatTemplate(source, "made-up")))
    profile = Profile(settings)
    assert profile.observe(chat("a:1", messages, session="s")) == []
    found = profile.observe(chat("a:2", later, session="s"))
    assert [each.breaker for each in found] == [Breaker.REASONING_STRIPPED]
    assert found[0].is_expected
    assert found[0].severity is Severity.NOTE
    assert found[0].place.pointer == "/messages/1/reasoning_content"


def test_a_template_that_refuses_is_counted_not_raised() -> None:
    settings = Settings(rendering=RenderSettings(ChatTemplate("{{ 1 / 0 }}", "broken")))
    report = lint([chat("a:1", []), chat("a:2", [])], settings)
    assert report.requests_refused == 2
    assert "a:1" in report.refused[0]


TEMPLATES = {
    "dated": ("{{ strftime_now('%d %b') }}{{ messages[0].content }}", {Breaker.TEMPLATE_DATE}),
    "defaulted": (
        "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}"
        "{{ date_string }}{{ messages[0].content }}",
        {Breaker.TEMPLATE_DATE},
    ),
    "tools first": (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
        "{{ m.reasoning_content }}{{ m.content }}{% endfor %}",
        {Breaker.TOOL_SET},
    ),
    "drops reasoning": (
        "{% for m in messages %}{% if loop.revindex < 3 %}{{ m.reasoning_content }}{% endif %}"
        "{{ m.content }}{% endfor %}{{ tools | tojson }}",
        {Breaker.REASONING_STRIPPED},
    ),
    "clean": (
        "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}",
        set(),
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_linted_without_traffic(name: str, tmp_path: Path) -> None:
    source, expected = TEMPLATES[name]
    (tmp_path / "chat_template.jinja").write_text(source)
    found = check_template(ChatTemplate.from_folder(tmp_path), "chat_template.jinja")
    kinds = {each.breaker for each in found}
    if name in ("dated", "defaulted"):
        kinds.discard(Breaker.REASONING_STRIPPED)
    assert kinds == expected
    assert all(each.place.where.startswith("chat_template.jinja") for each in found)


@pytest.mark.parametrize(
    ("text", "needle", "pointer", "offset"),
    [
        ('{"a":{"b":["x","yz"]}}', "z", "/a/b/1", 1),
        ('{"a": 1, "b": {"c": 2}}', '"c"', "/b", 0),
        ('{"a/b": "q\\"r"}', "r", "/a~1b", 2),
        ("[1,[2,33]]", "33", "/1/1", 0),
    ],
)
def test_places_in_json(text: str, needle: str, pointer: str, offset: int) -> None:
    assert place_in(text, text.index(needle)) == (pointer, offset)


@pytest.mark.parametrize("seed", range(30))
def test_the_common_length_is_what_comparing_each_character_gives(seed: int) -> None:
    rng = random.Random(seed)
    one = "".join(rng.choices("ab", k=rng.randint(0, 2_000)))
    cut = rng.randint(0, len(one))
    other = one[:cut] + "".join(rng.choices("abc", k=rng.randint(0, 900)))
    at = rng.randint(0, min(len(one), len(other)))
    plain = 0
    while at + plain < min(len(one), len(other)) and one[at + plain] == other[at + plain]:
        plain += 1
    assert common_length(one, at, other, at) == plain
