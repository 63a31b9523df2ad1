"""The public names, and the tables between the core's codes and Python's outcomes."""

from __future__ import annotations

import inspect

import keepwarm
import pytest
from keepwarm import Outcome, Reason, Status, _core, errors, outcomes


def test_the_public_surface_fits_a_screen() -> None:
    assert len(keepwarm.__all__) <= 30
    assert keepwarm.__all__ == sorted(keepwarm.__all__)
    for name in keepwarm.__all__:
        assert getattr(keepwarm, name) is not None
    modules = {name for name, value in vars(keepwarm).items() if inspect.ismodule(value)}
    public = {name for name in vars(keepwarm) if not name.startswith("_")} - modules
    assert public <= set(keepwarm.__all__)


def test_everything_public_says_what_it_is() -> None:
    for name in keepwarm.__all__:
        value = getattr(keepwarm, name)
        if callable(value):
            assert value.__doc__, name
            for method, inner in vars(value).items() if inspect.isclass(value) else ():
                if inspect.isfunction(inner) and not method.startswith("_"):
                    assert inner.__doc__, f"{name}.{method}"


def test_errors_are_as_drawn() -> None:
    drawn = errors.__doc__ or ""
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, keepwarm.KeepwarmError)
        assert name in drawn
        assert getattr(keepwarm, name) is kind
        assert ("also a ValueError" in drawn.partition(name)[2].partition("\n")[0]) == issubclass(
            kind, ValueError
        ) or name == "KeepwarmError"


def test_every_code_is_an_outcome() -> None:
    listed = _core.outcome_codes()
    assert len({code for code, _, _ in listed}) == len(listed)
    for code, status, reason in listed:
        (outcome,) = outcomes.outcomes(bytes([code]))
        assert outcome == Outcome(Status(status), Reason(reason) if reason else None)
    assert {status for _, status, _ in listed} == set(Status)
    assert {reason for _, _, reason in listed if reason} == set(Reason)


def test_figures_nest() -> None:
    flat: dict[str, int | float | str] = {
        "store.blocks": 1,
        "store.shed.busy": 2,
        "tenant.default.bytes": 3,
        "tenant.a.b.bytes": 4,
        "tenant.a.shed.shed.busy": 5,
        "tenant.shed.bytes": 6,
        "namespace.7.model": "m",
        "server.requests.get": 8,
    }
    assert outcomes.nest(flat) == {
        "blocks": 1,
        "shed": {"busy": 2},
        "tenants": {
            "default": {"bytes": 3},
            "a.b": {"bytes": 4},
            "a.shed": {"shed": {"busy": 5}},
            "shed": {"bytes": 6},
        },
        "namespaces": {"7": {"model": "m"}},
        "server": {"requests": {"get": 8}},
    }


@pytest.mark.parametrize("who", ["a.shed", "a.lookup_misses", "a.read_misses", "shed", "a.bytes"])
def test_a_tenant_may_be_called_as_a_figure_is(who: str) -> None:
    figures = {"bytes": 1, "pending": 2, "evicted": 3, "lookup_misses": {"evicted": 4}, "shed": {}}
    flat: dict[str, int | float | str] = {"tenant.other.bytes": 5}
    for name, value in figures.items():
        for reason, count in value.items() if isinstance(value, dict) else ():
            flat[f"tenant.{who}.{name}.{reason}"] = count
        if isinstance(value, int):
            flat[f"tenant.{who}.{name}"] = value
    del figures["shed"]
    assert outcomes.nest(flat)["tenants"] == {"other": {"bytes": 5}, who: figures}


def test_a_fault_of_ours_is_an_exception_and_the_process_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(keepwarm.KeepwarmError, match="internal fault in the native core: a drill"):
        _core.drill_fault()
    assert "a drill" in capfd.readouterr().err
    assert keepwarm.open("1MiB", populate=False).health()["state"] == "up"
