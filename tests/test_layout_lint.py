"""The corpus: each breaker planted in conversations, found in its field at its token."""

from __future__ import annotations

import os
import random
from functools import cache

import numpy as np
import planting
import pytest
from keepwarm.layout.chat_template import ChatTemplate
from keepwarm.layout.findings import Breaker, Finding
from keepwarm.layout.lint import Lint, LintReport, Settings, lint
from keepwarm.layout.rendering import RenderSettings, render
from keepwarm.layout.requests import LoggedRequest
from keepwarm.layout.tokens import ApproximateTokens, tokenise
from keepwarm.testing import conversations
from keepwarm.testing.conversations import Conversation

SEED = 20261201
WRONG_SHARE_MAX = 0.02
#: Habits that spoil the front of each request: what is not found here is missed.
IN_EACH_REQUEST = {
    *("pseudo_header", "date_at_front", "date_in_words", "dynamic_id", "dynamic_id_short"),
    *("tool_order", "key_order_embedded", "few_shot", "cache_salt"),
}
FOUND_SHARE_MIN = 0.95
#: Requests of a log whose tokens are compared one by one. The full size: KEEPWARM_TEST_SCALE=10.
COMPARED_MAX = 40 * int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))


@cache
def public() -> list[Conversation]:
    return [each for each in conversations.public() if len(each.answers()) >= 3]


CORPORA = ("generated", "public")


@cache
def corpus(name: str) -> list[Conversation]:
    if name == "generated":
        return conversations.generated(24, SEED, turns=5)
    if not public():
        pytest.skip("no public conversations: set KEEPWARM_TRACES")
    # Two of the trajectories are about one issue, whose white space differs: a true finding.
    agents = [each for each in public()[-4:] if "function_calling__" not in each.name]
    return [_begun(each) for each in public()[:22] + agents]


def _begun(whole: Conversation) -> Conversation:
    """Its first messages: enough for any habit to show."""
    return Conversation(whole.name, whole.messages[:15], whole.tools)


def settings_of(planted: planting.Planted) -> Settings:
    if planted.template is None:
        return Settings()
    return Settings(rendering=RenderSettings(ChatTemplate(planted.template, "dated")))


@cache
def planted_in(name: str, plant: planting.Plant) -> planting.Planted:
    return plant(corpus(name), random.Random(SEED))


@cache
def run(name: str, plant: planting.Plant) -> tuple[LintReport, list[Finding]]:
    planted = planted_in(name, plant)
    running = Lint(settings_of(planted))
    found = []
    for request in planted.requests:
        seen = running.add(request)
        assert seen is not None
        found += seen.findings
    return running.report(), found


def first_difference(planted: planting.Planted, finding: Finding) -> int:
    """Where the two prompts' tokens part, by comparing all of them."""
    by_place = {request.where: request for request in planted.requests}
    both = [
        tokenise(render(by_place[where], settings_of(planted).rendering), ApproximateTokens())[0]
        for where in (finding.place.where, finding.compared_with)
    ]
    size = min(map(len, both))
    parts = np.flatnonzero(both[0][:size] != both[1][:size])
    return int(parts[0]) if len(parts) else size


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("plant", planting.PLANTS, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found_in_its_field_at_its_token(
    plant: planting.Plant, name: str
) -> None:
    planted = planted_in(name, plant)
    report, found = run(name, plant)
    right = [each for each in found if each.breaker is planted.breaker]
    assert sum(each.requests for each in right) >= planted.fewest
    for cause in report.causes:
        assert cause.finding.requests <= len(planted.requests)
    assert report.lost_tokens > 0
    if plant.__name__ in IN_EACH_REQUEST:
        hit = {each.place.where for each in right}
        assert len(hit) >= FOUND_SHARE_MIN * (len(planted.requests) - 1)
        assert report.ideal_reuse > 0.85 > 0.3 > report.actual_reuse
    wrong = {each.place.where for each in found if each.breaker is not planted.breaker}
    wrong |= {each.place.where for each in right if not is_where_planted(planted, each)}
    assert len(wrong) <= WRONG_SHARE_MAX * len(planted.requests), wrong


def is_where_planted(planted: planting.Planted, finding: Finding) -> bool:
    low, high = planted.offsets.get(finding.place.where, (0, 1 << 30))
    is_field = planted.pointer.fullmatch(finding.place.pointer) is not None
    return is_field and low <= finding.place.offset <= high


@pytest.mark.parametrize("plant", planting.PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_diverging_token_is_where_the_tokens_part(plant: planting.Plant) -> None:
    planted = planted_in("generated", plant)
    _, found = run("generated", plant)
    seen: set[str] = set()
    for finding in found:
        if len(seen) == COMPARED_MAX:
            break
        if finding.breaker is planted.breaker and finding.place.where not in seen:
            seen.add(finding.place.where)  # the first of a request; others lie behind it
            expected = first_difference(planted, finding)
            if finding.breaker in (Breaker.CACHE_SALT, Breaker.MODEL_SWITCH):
                expected = 0
            if finding.breaker is not Breaker.COLD_FAN_OUT:
                assert finding.place.token == expected, finding.place
    assert seen


@pytest.mark.parametrize("name", CORPORA)
def test_unmodified_conversations_raise_no_false_alarm(name: str) -> None:
    convs = conversations.generated(60, SEED + 1) if name == "generated" else public()
    if not convs:
        pytest.skip("no public conversations: set KEEPWARM_TRACES")
    for requests in (
        conversations.interleaved(convs),
        [_without_names(each) for each in conversations.interleaved(convs)],
    ):
        report = lint(requests)
        assert report.requests == len(requests)
        assert report.requests_hit <= WRONG_SHARE_MAX * report.requests, report.findings


def _without_names(request: LoggedRequest) -> LoggedRequest:
    """As from a log that knows neither sessions nor times nor answers."""
    return LoggedRequest(request.where, request.family, request.body)


def test_every_breaker_is_planted_and_described() -> None:
    from keepwarm.layout import breakers

    planted = {planted_in("generated", plant).breaker for plant in planting.PLANTS}
    assert planted == set(Breaker) == set(breakers.ABOUT)
