"""A connector's settings: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from keepwarm import ConfigError
from keepwarm.adapter.reasons import Recomputed, recomputed
from keepwarm.adapter.settings import _WANTED, Settings, SettingsError, parse_settings
from keepwarm.outcomes import Reason


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEPWARM_ADDRESS", "KEEPWARM_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_said_is_all_defaults() -> None:
    assert parse_settings({}, "here") == Settings()
    assert {field.name for field in fields(Settings)} == set(_WANTED)


def test_each_setting_is_taken_as_given() -> None:
    given: dict[str, object] = {
        "address": ["unix:/a", "tcp://b:1"],
        "transport": "unix",
        "lookup_deadline_s": 1,
        "loads_max": 8.0,
        "planner": "off",
        "weights_fixed": True,
        "secret": None,
        "ttl": 90,
        "priority": 0,
    }
    read = parse_settings(given, "here")
    assert read.address == "unix:/a,tcp://b:1"
    assert (read.lookup_deadline_s, read.loads_max, read.planner) == (1.0, 8, "off")
    assert (read.weights_fixed, read.secret, read.ttl, read.priority) == (True, None, "90.0s", 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adress": "x"}, "here: unknown setting adress: did you mean address?"),
        ({"store_deadline": 1}, "did you mean store_deadline_s?"),
        ({"spec_nam": "x"}, "did you mean spec_name?"),
        ({"zzz": 1}, "unknown setting zzz: known are address, "),
        ({"lookup_deadline_s": "1"}, r"lookup_deadline_s is '1' \(str\): give seconds from"),
        ({"lookup_deadline_s": float("nan")}, "give seconds from 0.001 to 60"),
        ({"load_deadline_s": True}, r"load_deadline_s is True \(bool\)"),
        ({"load_threads": 1.5}, "give a whole number from 1 to 16"),
        ({"loads_max": float("inf")}, "give a whole number from 1 to 65536"),
        ({"host_share": 0}, "give a share from 0.01 to 1"),
        ({"planner": "on"}, "planner is 'on' .*give measured, always or off"),
        ({"planner": ["on"]}, "give measured, always or off"),
        ({"tenant": None}, "tenant is None .*give text"),
        ({"address": []}, "address is .*give an address such as"),
        ({"address": ["unix:/a", 7]}, "give an address such as"),
        ({"ttl": "soon"}, "give seconds, or text such as 90m"),
        ({"weights": ""}, "give a name of the weights"),
        ({"secret": "/run/\ud800"}, "give the path of the tenant's secret file"),
        ({"secret": "/run/\0"}, "give the path of the tenant's secret file"),
        ({"weights_fixed": 1}, "give true or false"),
        ({"priority": 4}, "give a whole number from 0 to 3"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        parse_settings(given, "here", others=("spec_name",))
    assert caught.value.setting in given
    assert caught.value.where == "here"
    assert isinstance(caught.value, ConfigError)


def test_others_in_the_same_mapping_are_passed_over() -> None:
    given: dict[str, object] = {"spec_name": object(), "tenant": "t"}
    assert parse_settings(given, "here", others=("spec_name",)).tenant == "t"


def test_the_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_ADDRESS", "unix:/env")
    monkeypatch.setenv("KEEPWARM_CREDENTIALS", "/folder")
    assert parse_settings({}, "here").address == "unix:/env"
    said = parse_settings({"address": "unix:/said", "credentials": None}, "here")
    assert (said.address, said.credentials) == ("unix:/said", "/folder")


def test_every_reason_of_the_store_is_one_of_ours() -> None:
    assert recomputed(None) is Recomputed.ABSENT
    for reason in Reason:
        assert recomputed(reason) in Recomputed
    for reason in (Reason.LEASED, Reason.BUSY, Reason.WATERMARK):
        assert recomputed(reason) is Recomputed.THROTTLED
    for reason in (Reason.INVALID, Reason.TOO_LARGE):
        assert recomputed(reason) is Recomputed.IDENTITY
