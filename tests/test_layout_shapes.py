"""Breakers in shapes that people and programs give them, and traffic that only resembles one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any

import pytest
from keepwarm.layout import money
from keepwarm.layout.findings import Breaker
from keepwarm.layout.lint import Lint, LintReport, Settings, lint
from keepwarm.layout.rendering import RenderSettings
from keepwarm.layout.requests import Family, LoggedRequest

_Messages = list[dict[str, Any]]
_WORDS = ["river", "stone", "engine", "garden", "letter", "copper", "meadow", "silver"]
_WORDS += ["harbor", "candle", "signal", "anchor"]
_HEX = "0123456789abcdef"
_SYSTEM = "/messages/0/content"
_MONTHS = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September"]
_MONTHS += ["Oktober"]
_MOIS = ["janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre"]
_MOIS += ["octobre"]


def prose(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(count)).capitalize() + "."


def hexadecimal(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(_HEX) for _ in range(count))


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


class Log:
    """Requests a hundred seconds apart, unless their times are given."""

    def __init__(self) -> None:
        self.requests: list[LoggedRequest] = []

    def add(
        self,
        messages: _Messages,
        session: str | None = None,
        time_s: float | None = None,
        **body: Any,
    ) -> None:
        number = len(self.requests)
        body = {"model": "served", "messages": list(messages), **body}
        at = 100.0 * number if time_s is None else time_s
        family = Family.OPENAI_CHAT
        self.requests.append(LoggedRequest(f"log:{number + 1}", family, body, at, session))


def apart(rng: random.Random, system: Callable[[int], str], count: int = 10) -> LintReport:
    """Users of one application, each with a question."""
    log = Log()
    for number in range(count):
        messages = [said("system", system(number)), said("user", prose(rng, 30))]
        log.add(messages, f"s{number}")
    return lint(log.requests)


def places(report: LintReport) -> set[tuple[Breaker, str]]:
    return {(each.breaker, each.place.pointer) for each in report.findings}


DATES: dict[str, Callable[[int], str]] = {
    "german": lambda n: f"Heute ist der {n + 3}. {_MONTHS[n]} 2026.",
    "french": lambda n: f"Nous sommes le {n + 3} {_MOIS[n]} 2026.",
    "spanish": lambda n: f"Hoy es {n + 3} de marzo de 2026.",
    "russian": lambda n: f"Сегодня {n + 3} марта 2026 г.",  # noqa: RUF001
    "chinese": lambda n: f"今天是2026年{n + 1}月{n + 3}日。",
    "korean": lambda n: f"오늘은 2026년 3월 {n + 3}일입니다.",
    "compact": lambda n: f"Date: 2026031{n}",
    "compact with time": lambda n: f"Stamp: 20260311T14051{n}Z",
}


@pytest.mark.parametrize("name", DATES)
def test_dates_of_other_languages_and_forms(name: str) -> None:
    rng = random.Random(1)
    rest = prose(rng, 150)
    report = apart(rng, lambda number: f"{DATES[name](number)}\n{rest}")
    assert places(report) == {(Breaker.DATE_AT_FRONT, _SYSTEM)}
    assert report.causes[0].finding.requests == 9


PLACEHOLDERS: dict[str, Callable[[random.Random], str]] = {
    "lower": lambda rng: f"[person_1{hexadecimal(rng, 6)}]",
    "underscores": lambda rng: f"__PII_EMAIL_1{hexadecimal(rng, 6)}__",
    "dollars": lambda rng: f"$EMAIL_1{hexadecimal(rng, 6)}$",
    "uuid": lambda rng: f"<PERSON_1{hexadecimal(rng, 7)}-4a4a-4b4b-8c8c-{hexadecimal(rng, 12)}>",
}


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_placeholders_that_are_new_each_time(name: str) -> None:
    rng, log = random.Random(1), Log()
    asked = [prose(rng, 30) for _ in range(8)]
    for number in range(1, 8):
        hidden = PLACEHOLDERS[name](rng)
        messages = [said("system", "Help people.")]
        for text in asked[:number]:
            messages += [said("user", f"I am {hidden}: {text}"), said("assistant", text[::-1])]
        log.add(messages[:-1], "s")
    assert (Breaker.HISTORY_REWRITTEN, "/messages/1/content") in places(lint(log.requests))


def test_several_values_of_a_user_in_a_system_prompt() -> None:
    rng = random.Random(1)
    before, behind = prose(rng, 50), prose(rng, 150)

    def profile(number: int) -> str:
        lines = [f"- Name: {_WORDS[number]}", f"- Language: {('en', 'de', 'fr')[number % 3]}"]
        return "\n".join([before, "", *lines, f"- Age: {30 + number}", "", "## Rules", behind])

    def remembered(_: int) -> str:
        kept = [f"- {prose(rng, 6)}" for _ in range(rng.randint(3, 6))]
        return "\n".join(["# Memory", *kept, "", "# Rules", behind])

    for system in (profile, remembered):
        assert places(apart(rng, system)) == {(Breaker.USER_IN_SYSTEM, _SYSTEM)}


@pytest.mark.parametrize("form", ["json", "scored"])
def test_passages_in_another_order_as_json_and_with_scores(form: str) -> None:
    rng, log = random.Random(1), Log()
    texts = [f"{prose(rng, 9)} {prose(rng, 30)}" for _ in range(6)]
    for number in range(8):
        rng.shuffle(texts)
        if form == "json":
            context = json.dumps([{"text": text} for text in texts])
        else:
            context = "\n\n" + "\n\n".join(
                f"(score 0.{rng.randint(100, 999)}) {text}" for text in texts
            )
        asked = f"Context: {context}\n\nQuestion: {prose(rng, 9)}"
        log.add([said("system", "Help."), said("user", asked)], f"s{number}")
    assert places(lint(log.requests)) == {(Breaker.CHUNK_ORDER, "/messages/1/content")}


def test_shuffled_example_turns_without_named_sessions() -> None:
    rng, log = random.Random(1), Log()
    pairs = [[said("user", prose(rng, 15)), said("assistant", prose(rng, 9))] for _ in range(6)]
    for _ in range(8):
        rng.shuffle(pairs)
        turns = [message for pair in pairs for message in pair]
        log.add([said("system", "Help."), *turns, said("user", prose(rng, 15))])
    assert {breaker for breaker, _ in places(lint(log.requests))} == {Breaker.FEW_SHOT}


@pytest.mark.parametrize(
    ("pointer", "body"),
    [
        ("/lora_request", lambda n: {"lora_request": {"lora_name": f"a{n % 2}"}}),
        ("/extra_body/lora_path", lambda n: {"extra_body": {"lora_path": f"a{n % 2}"}}),
        ("/extra_body/cache_salt", lambda n: {"extra_body": {"cache_salt": f"s{n}"}}),
    ],
)
def test_salts_and_adapters_are_blamed_where_they_stand(
    pointer: str, body: Callable[[int], dict[str, Any]]
) -> None:
    rng, log = random.Random(1), Log()
    messages = [said("system", prose(rng, 100))]
    for number in range(5):
        messages = [*messages, said("user", prose(rng, 20))]
        log.add(messages, "s", **body(number))
        messages = [*messages, said("assistant", prose(rng, 20))]
    assert places(lint(log.requests)) == {(Breaker.CACHE_SALT, pointer)}


@pytest.mark.parametrize("session", [None, "one"])
def test_samples_of_one_request_are_a_fan_out_and_next_turns_are_not(session: str | None) -> None:
    rng, log = random.Random(1), Log()
    messages = [said("system", prose(rng, 1500)), said("user", prose(rng, 30))]
    for number in range(20):
        log.add(messages, session, time_s=1000.0 + 0.005 * number)
    assert places(lint(log.requests)) == {(Breaker.COLD_FAN_OUT, _SYSTEM)}
    turns = Log()
    for number in range(3):
        turns.add(messages, "one", time_s=1000.0 + 0.005 * number)
        messages = [*messages, said("assistant", "Yes."), said("user", "More.")]
    assert not lint(turns.requests).findings


_TOOLS_BEHIND = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.first and tools %}\n# Tools\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>{% endif %}</>{% endfor %}"
)


def with_template(log: Log, source: str) -> LintReport:
    chat_template = pytest.importorskip("keepwarm.layout.chat_template")
    pytest.importorskip("jinja2")
    template = chat_template.ChatTemplate(source, "made up")
    return lint(log.requests, Settings(rendering=RenderSettings(template=template)))


def test_tools_that_go_where_a_template_writes_them_behind_the_system_prompt() -> None:
    rng, log = random.Random(1), Log()
    tools = [
        {"type": "function", "function": {"name": f"t{n}", "description": prose(rng, 20)}}
        for n in range(3)
    ]
    messages = [said("system", prose(rng, 60))]
    for number in range(5):
        messages = [*messages, said("user", prose(rng, 40))]
        more: dict[str, Any] = {"tools": tools} if number < 4 else {}
        log.add(messages, "s", **more)
        messages = [*messages, said("assistant", prose(rng, 40))]
    found = places(with_template(log, _TOOLS_BEHIND))
    assert found == {(Breaker.TOOL_SET, "/tools")}


@pytest.mark.parametrize("lead", ["\t", "\n\n", ""])
def test_white_space_at_a_fields_ends_under_a_template(lead: str) -> None:
    rng, log = random.Random(1), Log()
    rest = prose(rng, 150)
    for number in range(6):
        text = f"{lead if number % 2 else ''}{rest}{'' if lead or number % 2 else '  '}"
        log.add([said("system", text), said("user", prose(rng, 30))], f"s{number}")
    found = places(with_template(log, _TOOLS_BEHIND))
    if lead:
        assert found == {(Breaker.WHITESPACE, _SYSTEM)}
    else:  # behind all that is shared: nothing is lost
        assert not found


def test_a_template_that_only_asks_for_strings_gets_parts_as_one_text() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}"
    )
    rng, log = random.Random(1), Log()
    parts = [{"type": "text", "text": prose(rng, 30)} for _ in range(4)]
    for _ in range(6):
        rng.shuffle(parts)
        log.add([said("user", [*parts, {"type": "text", "text": prose(rng, 9)}])])
    report = with_template(log, source)
    assert report.tokens > 6 * 4 * 30
    assert {breaker for breaker, _ in places(report)} == {Breaker.CHUNK_ORDER}


def compared_models(rng: random.Random) -> Log:
    """An evaluation asks several models the same."""
    log = Log()
    for _ in range(10):
        messages = [said("system", "Help."), said("user", prose(rng, 60))]
        for model in "abc":
            log.add(messages, model=model)
    return log


def tenants_salts(rng: random.Random) -> Log:
    log, system = Log(), prose(rng, 200)
    for number in range(60):
        messages = [said("system", system), said("user", prose(rng, 30))]
        log.add(messages, f"s{number}", cache_salt=f"tenant{rng.randrange(9)}")
    return log


def reminders(rng: random.Random) -> Log:
    """Behind each question stands the same reminder, which is not kept."""
    log, reminder = Log(), said("user", prose(rng, 60))
    messages = [said("system", prose(rng, 50))]
    for _ in range(8):
        messages = [*messages, said("user", prose(rng, 30))]
        log.add([*messages, reminder], "s")
        messages = [*messages, said("assistant", prose(rng, 30))]
    return log


@pytest.mark.parametrize("made", [compared_models, tenants_salts, reminders])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_only_resembles_a_breaker_is_none(made: Callable[..., Log], seed: int) -> None:
    running = Lint()
    for request in made(random.Random(seed)).requests:
        running.add(request)
    assert not running.report().findings


HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "doubles": "{% set n = namespace(s='ab' * 9) %}{% for a in range(60) %}"
    "{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "captures": "{% set s = 'ab' * 999 %}"
    + "{% set t %}{{ s }}{{ s }}{% endset %}{% set s = t %}" * 40
    + "{{ s }}",
    "repeats": "{{ 'a' * 10000000000 }}",
    "replaces": "{{ ('a' * 9000000) | replace('a', 'b' * 9000000) }}",
    "joins": "{{ ('x' * 9000000).join(['a'] * 1000000) }}",
    "powers": "{{ 10 ** 10 ** 10 }}",
    "pads": "{{ 'a'.ljust(9000000000) }}",
    "formats": "{{ '{:2000000000}'.format(1) }}",
    "per cent": "{{ '%2000000000d' % 1 }}",
    "indents": "{{ messages | tojson(indent=2000000000) }}",
    "looks around": "{{ messages.__class__.__base__.__subclasses__() }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_template_runs_on_or_fills_memory(name: str) -> None:
    log = Log()
    for _ in range(3):
        log.add([said("user", "hello")])
    report = with_template(log, HOSTILE[name])
    assert (report.requests, report.requests_refused) == (0, 3)


def test_recursion_that_doubles_ends_for_a_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    jinja = pytest.importorskip("keepwarm.layout.jinja")
    monkeypatch.setattr(jinja, "STEPS_MAX", 20_000)
    doubling = (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    )
    log = Log()
    for _ in range(50):
        log.add([said("user", "hello")])
    assert with_template(log, doubling).requests_refused == 50


def test_a_tool_calls_keys_are_not_in_its_place() -> None:
    """What a model wrote as keys is text of the conversation, too."""
    requests = []
    for number in range(4):
        given = {"zqcanary": {"at": f"2026-03-0{number + 1}", "rest": "x " * 200}}
        call = {"type": "tool_use", "id": "c", "name": "look", "input": given}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "found " * 100}
        messages = [said("user", "Look."), said("assistant", [call]), said("user", [result])]
        body = {"model": "served", "system": prose(random.Random(2), 60), "messages": messages}
        requests.append(LoggedRequest(f"log:{number}", Family.ANTHROPIC, body, None, "s"))
    report = lint(requests)
    assert places(report) == {(Breaker.DATE_AT_FRONT, "/messages/1/content/0/input")}
    assert "zqcanary" not in str(report)


def test_a_listed_price_is_one_at_any_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("genai_prices")
    seen = set()
    for hour in (1, 9, 18):

        class Clock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None, hour: int = hour) -> Clock:
                return cls(2026, 11, 30, hour, 31, tzinfo=tz)

        monkeypatch.setattr(money, "datetime", Clock)
        money._listed.cache_clear()
        seen.add(money.Prices().of("deepseek-chat"))
    money._listed.cache_clear()
    assert len(seen) == 1
    assert seen != {None}
