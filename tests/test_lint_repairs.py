"""Breakers planted in conversations, repaired: what `fix` says that it mends, it mends."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from functools import cache

import planting
import pytest
from keepwarm.layout.findings import Breaker
from keepwarm.layout.fix import Rules, fix
from keepwarm.layout.lint import LintReport, lint
from keepwarm.layout.requests import LoggedRequest
from keepwarm.testing import conversations

MENDED = (
    planting.pseudo_header,
    planting.tool_order,
    planting.whitespace,
    planting.cache_markers,
)


@cache
def given() -> list[conversations.Conversation]:
    return conversations.public()[:8] or conversations.generated(8, 7)


@cache
def reuse_without_habits() -> float:
    return lint(conversations.interleaved(given())).actual_reuse


def repaired(requests: Iterable[LoggedRequest], rules: Rules) -> list[LoggedRequest]:
    return [
        dataclasses.replace(each, body=fix(each.body, each.family, rules).body) for each in requests
    ]


def losses(report: LintReport, breaker: Breaker) -> int:
    return sum(each.lost_tokens for each in report.findings if each.breaker is breaker)


@pytest.mark.parametrize("plant", MENDED, ids=lambda plant: plant.__name__)
def test_the_common_prefix_comes_back(plant: planting.Plant) -> None:
    planted = plant(given(), random.Random(11))
    before = lint(planted.requests)
    after = lint(repaired(planted.requests, Rules()))
    assert losses(before, planted.breaker) > 0
    assert losses(after, planted.breaker) == 0
    assert after.actual_reuse > before.actual_reuse
    # As good as without the habit; lint's own estimate counts answers, too, as an engine does.
    clean = reuse_without_habits()
    assert after.actual_reuse > clean - 0.001
    assert after.actual_reuse == pytest.approx(before.ideal_reuse, abs=0.03)


def test_names_of_properties_are_mended_when_asked_for_and_said_not_to_be_otherwise() -> None:
    planted = planting.key_order(given(), random.Random(11))
    before = lint(planted.requests)
    usual = lint(repaired(planted.requests, Rules()))
    asked = lint(repaired(planted.requests, Rules(property_names=True)))
    assert losses(before, Breaker.KEY_ORDER) > losses(usual, Breaker.KEY_ORDER) > 0
    assert losses(asked, Breaker.KEY_ORDER) == 0
    assert not any(each.is_fixable for each in usual.findings)


@pytest.mark.parametrize("plant", planting.PLANTS, ids=lambda plant: plant.__name__)
def test_what_is_called_fixable_is_gone_after_the_fix(plant: planting.Plant) -> None:
    planted = plant(given(), random.Random(5))
    if planted.template is not None:
        pytest.skip("needs a template of its own, whose date no request can mend")
    after = lint(repaired(planted.requests, Rules()))
    assert not [each for each in after.findings if each.is_fixable]
