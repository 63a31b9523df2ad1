"""Whom a node lets in, and what they may do there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from keepwarm import _core
from keepwarm.config.files import read_toml
from keepwarm.config.tenants import unknown
from keepwarm.config.units import shorten
from keepwarm.errors import ConfigError

ALL = "*"

Row: TypeAlias = tuple[str, list[str] | None, list[str], list[str], list[str], list[int]]


@dataclass(frozen=True, slots=True)
class Principal:
    """One table [principals.NAME]: tenants, rights, and what shows that a peer is it."""

    tenants: tuple[str, ...] = ()
    rights: tuple[str, ...] = ()
    certificate: tuple[str, ...] = ()
    token: tuple[str, ...] = ()
    uid: tuple[int, ...] = ()


def parse_principals(value: object, name: str) -> dict[str, Principal]:
    """Tables [principals.NAME], or the path of a TOML file that has them."""
    if isinstance(value, str) and value:
        table: Any = read_toml(Path(value), name)
        if set(table) != {"principals"}:
            raise ConfigError(f"file {value} has to have tables [principals.NAME] alone", name)
        value = table["principals"]
    if not isinstance(value, dict):
        raise ConfigError(
            f"{name} is {shorten(value)}: give tables [principals.NAME], or the path of a file "
            "with them",
            name,
        )
    principals = {each: _parse(table, f"{name}.{each}") for each, table in value.items()}
    _core.check_principals(principal_rows(principals))
    return principals


def _parse(table: object, where: str) -> Principal:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {shorten(table)}: give a table [{where}]", where)
    known = [field.name for field in fields(Principal)]
    for key in table:
        if key not in known:
            raise unknown(f"{where}.{key}", key, known)
    values = {}
    for key, value in table.items():
        kind = int if key == "uid" else str
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, kind) and not isinstance(item, bool) for item in items):
            what = "a number, or a list of them" if kind is int else "a text, or a list of them"
            raise ConfigError(f"{where}.{key} is {shorten(value)}: give {what}", f"{where}.{key}")
        if kind is int and not all(0 <= item < 1 << 32 for item in items):
            raise ConfigError(f"{where}.uid is {shorten(value)}: give user ids", f"{where}.uid")
        values[key] = tuple(items)
    for key in ("tenants", "rights"):
        if not values.get(key):
            what = 'tenant names, or "*" for all' if key == "tenants" else "read, write, drop, …"
            raise ConfigError(f"{where} has no {key}: give {what}", f"{where}.{key}")
    return Principal(**values)


def principal_rows(principals: Mapping[str, Principal]) -> list[Row]:
    """Principals as the core takes them."""
    return [
        (
            name,
            None if ALL in one.tenants else list(one.tenants),
            list(one.rights),
            list(one.certificate),
            list(one.token),
            list(one.uid),
        )
        for name, one in principals.items()
    ]
