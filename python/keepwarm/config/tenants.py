"""Who may store on a node, and how much."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike

from keepwarm.config.units import parse_duration, parse_size, shorten
from keepwarm.errors import ArgumentError, ConfigError

# The priority that leaves memory last.
PRIORITY_MAX = 3

TenantRow = tuple[str, str | None, int | None, float | None, int | None, int | None]
"""A tenant as the core takes it: name, secret, quota, time to live, quota of flash, priority."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of a node: its secret file, what it may hold, what its namespaces may ask."""

    secret: str | PathLike[str] | None = None
    quota: int | str | None = None
    ttl: float | str | None = None
    flash_quota: int | str | None = None
    priority_max: int | None = None


def tenant_rows(
    tenants: Mapping[str, Tenant],
) -> list[TenantRow]:
    """Tenants as the core takes them; all but `default` need a secret."""
    rows = []
    for name, tenant in tenants.items():
        where = f"tenants.{name}"
        if "." in name:
            raise ConfigError(f"{where} has a dot in its name: give one without", where)
        if (tenant.secret is None) != (name == "default"):
            what = (
                "has a secret, but tenant default has a public one: leave secret out"
                if tenant.secret is not None
                else "has no secret: give the path of a file with 64 hex digits"
            )
            raise ConfigError(f"{where} {what}", f"{where}.secret")
        if not isinstance(tenant.secret, str | PathLike | None):
            raise ConfigError(
                f"{where}.secret is {shorten(tenant.secret)}: give the path of a file with 64 hex "
                "digits",
                f"{where}.secret",
            )
        secret = None if tenant.secret is None else os.fspath(tenant.secret)
        quota = None if tenant.quota is None else parse_size(tenant.quota, f"{where}.quota")
        ttl = None if tenant.ttl is None else parse_duration(tenant.ttl, f"{where}.ttl")
        flash = tenant.flash_quota
        on_flash = None if flash is None else parse_size(flash, f"{where}.flash_quota")
        priority_max = _priority(tenant.priority_max, where)
        rows.append((name, secret, quota, ttl, on_flash, priority_max))
    return rows


def terms(ttl: float | str | None, priority: int | None) -> tuple[float | None, int | None]:
    """Checks what an attach asks for: time to live in seconds, and priority."""
    if priority is not None and not (type(priority) is int and 0 <= priority <= PRIORITY_MAX):
        raise ArgumentError(f"priority is {priority!r}: give a whole number from 0 to 3")
    try:
        return None if ttl is None else parse_duration(ttl, "ttl"), priority
    except ConfigError as error:
        raise ArgumentError(str(error)) from None


def _priority(value: object, where: str) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= PRIORITY_MAX):
        return value
    raise ConfigError(
        f"{where}.priority_max is {shorten(value)}: give a whole number from 0 to 3",
        f"{where}.priority_max",
    )


def parse_tenants(value: object, name: str) -> dict[str, Tenant]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}: give tables [tenants.NAME] in the file", name)
    known = [field.name for field in fields(Tenant)]
    tenants = {}
    for tenant, table in value.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{name}.{tenant} is {table!r}: give a table [tenants.{tenant}]", name
            )
        for key in table:
            if key not in known:
                raise unknown(f"{name}.{tenant}.{key}", key, known)
        tenants[tenant] = Tenant(**table)
    tenant_rows(tenants)
    return tenants


def unknown(shown: str, name: str, known: list[str]) -> ConfigError:
    """The error for a name that is not known."""
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]}" if near else f"known are {', '.join(sorted(known))}"
    return ConfigError(f"setting {shown} is unknown: {hint}", name)
