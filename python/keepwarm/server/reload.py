"""SIGHUP: settings are read again, and what may change under a serving node changes at once.

All of it or nothing: what cannot be read, or is refused half-way, leaves the node as it was. What
needs a restart keeps its running value, and is named. No block is lost in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from keepwarm.config import Loaded, ServeConfig, Tenant, tenant_rows
from keepwarm.errors import KeepwarmError

LIVE = frozenset({"ttl", "idle", "drain", "weight", "principals", "log_format", "log_level"})
LIVE_OF_TENANTS = frozenset({"quota", "ttl"})
PUBLIC_TENANT = "default"


class Change(NamedTuple):
    """One setting, before and after."""

    name: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.name} {shown(self.old)} -> {shown(self.new)}"


class Plan(NamedTuple):
    """What a reload does."""

    loaded: Loaded
    live: list[Change]
    kept: list[Change]


class Step(NamedTuple):
    """One thing to change, and how to take it back."""

    do: Callable[[], None]
    undo: Callable[[], None]


class Reloaded(NamedTuple):
    """What a reload did."""

    live: list[Change]
    kept: list[Change]
    error: str | None = None

    def line(self) -> str:
        """For people."""
        if self.error is not None:
            return f"settings not reloaded, nothing changed: {self.error}"
        changed = "; ".join(map(str, self.live)) or "nothing changed"
        if not self.kept:
            return f"settings reloaded: {changed}"
        names = ", ".join(change.name for change in self.kept)
        return f"settings reloaded: {changed}; kept until a restart: {names}"


def plan(running: Loaded, wanted: Loaded) -> Plan:
    """What would change. Defaults that follow the machine's state stay as they were at start."""
    live: list[Change] = []
    kept: list[Change] = []
    origins = dict(running.origins)
    values: dict[str, Any] = {}
    for field in fields(ServeConfig):
        name = field.name
        if name == "tenants":
            continue
        old, new = getattr(running.config, name), getattr(wanted.config, name)
        origin = wanted.origins[name]
        is_default = origin.startswith("default") and origins[name].startswith("default")
        if old == new or is_default:
            continue
        if name in LIVE:
            live.append(Change(name, old, new))
            values[name], origins[name] = new, origin
        else:
            kept.append(Change(name, old, new))
    tenants = _tenants(running.config.tenants, wanted.config.tenants, live, kept)
    if any(change.name.startswith("tenants.") for change in live):
        values["tenants"], origins["tenants"] = tenants, wanted.origins["tenants"]
    return Plan(Loaded(replace(running.config, **values), origins), live, kept)


def _tenants(
    running: Mapping[str, Tenant],
    wanted: Mapping[str, Tenant],
    live: list[Change],
    kept: list[Change],
) -> dict[str, Tenant]:
    merged = {}
    for name in dict.fromkeys([*running, *wanted, PUBLIC_TENANT]):
        public = Tenant() if name == PUBLIC_TENANT else None
        old, new = running.get(name, public), wanted.get(name, public)
        if old is None or new is None:
            change = ("-", "a new tenant") if old is None else ("a tenant", "-")
            kept.append(Change(f"tenants.{name}", *change))
            if old is not None:
                merged[name] = old
            continue
        values = {}
        for field in fields(Tenant):
            before, after = getattr(old, field.name), getattr(new, field.name)
            if before == after:
                continue
            is_live = field.name in LIVE_OF_TENANTS
            change_of = Change(f"tenants.{name}.{field.name}", before, after)
            (live if is_live else kept).append(change_of)
            if is_live:
                values[field.name] = after
        merged[name] = replace(old, **values)
    return merged


def tunings(config: ServeConfig) -> list[tuple[str, int | None, float | None]]:
    """What each tenant is to have, as the core takes it."""
    tenants = {PUBLIC_TENANT: Tenant(), **config.tenants}
    return [
        (row[0], row[2], row[3] if row[3] is not None else config.ttl)
        for row in tenant_rows(tenants)
    ]


def carry_out(steps: list[Step]) -> None:
    """Does all steps, or takes those back that were done and raises."""
    done: list[Step] = []
    try:
        for step in steps:
            step.do()
            done.append(step)
    except BaseException:
        for step in reversed(done):
            step.undo()
        raise


def reload(
    running: Loaded, read: Callable[[], Loaded], steps: Callable[[Plan], list[Step]]
) -> tuple[Loaded, Reloaded]:
    """Reads settings again and changes what may change; never raises over what was written."""
    try:
        planned = plan(running, read())
        carry_out(steps(planned))
    except (KeepwarmError, OSError) as error:
        return running, Reloaded([], [], str(error))
    return planned.loaded, Reloaded(planned.live, planned.kept)


def shown(value: object) -> str:
    """A setting's value in an audit line."""
    if isinstance(value, Mapping):  # of principals: whom it names, not how they show it
        return ",".join(sorted(value)) or "-"
    return "-" if value is None else str(value)
