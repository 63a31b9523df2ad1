"""Who may store on a node, and how much."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike

from keepwarm.config.units import parse_duration, parse_size, shorten
from keepwarm.errors import ConfigError

TenantRow = tuple[str, str | None, int | None, float | None, int | None]
"""A tenant as the core takes it: name, secret, quota, time to live, quota of flash."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of a node: its secret's file, what it may hold, how long its blocks live."""

    secret: str | PathLike[str] | None = None
    quota: int | str | None = None
    ttl: float | str | None = None
    flash_quota: int | str | None = None


def tenant_rows(
    tenants: Mapping[str, Tenant],
) -> list[TenantRow]:
    """Tenants as the core takes them; all but `default` need a secret."""
    rows = []
    for name, tenant in tenants.items():
        where = f"tenants.{name}"
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
        rows.append((name, secret, quota, ttl, on_flash))
    return rows


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
