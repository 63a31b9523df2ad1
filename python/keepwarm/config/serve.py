"""What `keepwarm serve` runs with, and where each setting came from."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from keepwarm import _core
from keepwarm.config.addresses import (
    ENV_PREFIX,
    OFF,
    Admin,
    default_address,
    is_socket,
    parse_address,
    parse_admin,
    parse_listen,
)
from keepwarm.config.files import read_toml
from keepwarm.config.flash import Device, parse_admission, parse_flash
from keepwarm.config.principals import Principal, parse_principals
from keepwarm.config.tenants import Tenant, parse_tenants, unknown
from keepwarm.config.units import parse_duration, parse_size, shorten, show_size
from keepwarm.errors import ConfigError
from keepwarm.machine import memory_available

WEIGHT_MAX = 1000.0


def _count_to(most: int) -> Callable[[object, str], int]:
    def parse(value: object, name: str) -> int:
        text = value if isinstance(value, str) else ""
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif text.isascii() and text.isdigit() and len(text) <= 20:
            number = int(text)
        else:
            number = 0
        if not 1 <= number <= most:
            shown = shorten(value)
            raise ConfigError(f"{name} is {shown}: give a whole number from 1 to {most}", name)
        return number

    return parse


def _parse_weight(value: object, name: str) -> float:
    try:
        weight = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        weight = -1.0
    if isinstance(value, bool) or not 0.0 <= weight <= WEIGHT_MAX:
        raise ConfigError(
            f"{name} is {shorten(value)}: give a number from 0 (takes nothing new) to "
            f"{WEIGHT_MAX:g}, 1 for an ordinary share",
            name,
        )
    return weight


def _parse_bool(value: object, name: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = value if isinstance(value, bool) else words.get(str(value).lower())
    if found is None:
        raise ConfigError(f"{name} is {value!r}: give true or false", name)
    return found


def _one_of(*known: str) -> Callable[[object, str], str]:
    def parse(value: object, name: str) -> str:
        if value not in known:
            raise ConfigError(f"{name} is {value!r}: give one of {', '.join(known)}", name)
        return str(value)

    return parse


def _parse_path(value: object, name: str) -> Path | None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} is {value!r}: give a path, or off", name)
    return None if value == OFF else Path(value).absolute()


def _parse_text(value: object, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        raise ConfigError(f"{name} is {value!r}: give a name of 1 to 64 characters", name)
    return value


def _parse_socket(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}: give unix:/path, or a path", name)
    address = parse_address(value)
    if not is_socket(address):
        raise ConfigError(
            f"{name} is {value!r}: give unix:/path, or a path; for TCP it is the setting listen",
            name,
        )
    return address


def default_node_name() -> str:
    """This machine's name."""
    return (socket.gethostname() or "keepwarm")[:64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What a node runs with."""

    capacity: int
    max_blocks: int | None
    policy: str
    ttl: float | None
    address: str
    listen: tuple[str, ...]
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    tls_crl: Path | None
    principals: Mapping[str, Principal]
    admin: Admin | None
    state_dir: Path | None
    clients_max: int
    idle: float
    drain: float
    weight: float
    populate: bool
    huge_pages: str
    log_format: str
    log_level: str
    node: str
    flash: tuple[Device, ...]
    flash_budget: int | None
    flash_admission: str
    format: bool
    tenants: Mapping[str, Tenant]


PARSERS: dict[str, Callable[[object, str], Any]] = {
    "capacity": parse_size,
    "max_blocks": _count_to(1 << 28),
    "policy": _one_of(*_core.policy_names()),
    "ttl": parse_duration,
    "address": _parse_socket,
    "listen": parse_listen,
    "tls_cert": _parse_path,
    "tls_key": _parse_path,
    "tls_ca": _parse_path,
    "tls_crl": _parse_path,
    "principals": parse_principals,
    "admin": parse_admin,
    "state_dir": _parse_path,
    "clients_max": _count_to(16_384),
    "idle": parse_duration,
    "drain": parse_duration,
    "weight": _parse_weight,
    "populate": _parse_bool,
    "huge_pages": _one_of("auto", "on", "off"),
    "log_format": _one_of("auto", "text", "json"),
    "log_level": _one_of(*_core.log_levels()),
    "node": _parse_text,
    "flash": parse_flash,
    "flash_budget": parse_size,
    "flash_admission": parse_admission,
    "format": _parse_bool,
    "tenants": parse_tenants,
}
# What is asked for once, by a flag: kept in a file it would happen at each start.
FLAG_ALONE = ("format",)
DEFAULTS: dict[str, Any] = {
    "max_blocks": None,
    "policy": "default",
    "ttl": None,
    "listen": (),
    "tls_cert": None,
    "tls_key": None,
    "tls_ca": None,
    "tls_crl": None,
    "principals": {},
    "admin": Admin("127.0.0.1", 9477),
    "clients_max": 256,
    "idle": 300.0,
    "drain": 10.0,
    "weight": 1.0,
    "populate": True,
    "huge_pages": "auto",
    "log_format": "auto",
    "log_level": "info",
    "flash": (),
    "flash_budget": None,
    "flash_admission": "reuse",
    "format": False,
    "tenants": {},
}


class Loaded(NamedTuple):
    """A configuration, and where each setting came from."""

    config: ServeConfig
    origins: dict[str, str]


def load(
    flags: Mapping[str, object], env: Mapping[str, str], file: str | PathLike[str] | None = None
) -> Loaded:
    """Puts flags over the environment over the file over the defaults."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    file = file or env.get(f"{ENV_PREFIX}CONFIG") or None
    sources = [
        *_from_file(file),
        *_from_env(env),
        *((name, value, f"--{name.replace('_', '-')}") for name, value in flags.items()),
    ]
    for name, value, origin in sources:
        try:
            values[name] = PARSERS[name](value, name)
        except ConfigError as error:
            raise ConfigError(f"{error} (from {origin})", error.setting) from None
        origins[name] = origin
    _fill(values, origins, env)
    return Loaded(ServeConfig(**values), origins)


def _from_file(file: str | PathLike[str] | None) -> list[tuple[str, object, str]]:
    if file is None:
        return []
    table = read_toml(file, "config")
    for name in table:
        if name in FLAG_ALONE:
            raise ConfigError(f"{name} is in {file}: give it as the flag --{name} alone", name)
        if name not in PARSERS:
            raise unknown(f"{name} in {file}", name, list(PARSERS))
    return [(name, value, f"file {file}") for name, value in table.items()]


def _from_env(env: Mapping[str, str]) -> list[tuple[str, object, str]]:
    found: list[tuple[str, object, str]] = []
    for variable in sorted(name for name in env if name.startswith(ENV_PREFIX)):
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name == "tenants":
            raise ConfigError(
                f"setting {variable} is unknown: tenants are in the file alone, as tables "
                "[tenants.NAME]; give it with --config or KEEPWARM_CONFIG",
                name,
            )
        if name in FLAG_ALONE:
            raise ConfigError(f"{variable} is set: give it as the flag --{name} alone", name)
        if name in PARSERS:
            if env[variable]:
                found.append((name, env[variable], variable))
        elif near := difflib.get_close_matches(name, [*PARSERS], 1, 0.8):
            # Others may use the prefix too (Kubernetes does): only what looks like a slip is one.
            hint = f"did you mean {ENV_PREFIX}{near[0].upper()}"
            raise ConfigError(f"setting {variable} is unknown: {hint}", name)
    return found


def _fill(values: dict[str, Any], origins: dict[str, str], env: Mapping[str, str]) -> None:
    """Defaults, those that depend on the machine included."""
    if "capacity" not in values:
        available = memory_available()
        values["capacity"] = max(available // 4 >> 20, 1) << 20
        origins["capacity"] = f"default: a quarter of the {show_size(available)} available"
    if "address" not in values:
        values["address"] = parse_address(default_address())
    if "state_dir" not in values:
        given = env.get("STATE_DIRECTORY", "").partition(":")[0]  # set by systemd
        values["state_dir"] = Path(given or f"{values['address']}.state")
        origins["state_dir"] = "STATE_DIRECTORY" if given else "default: beside the socket"
    if "node" not in values:
        values["node"] = default_node_name()
    for name, value in DEFAULTS.items():
        values.setdefault(name, value)
    for name in values:
        origins.setdefault(name, "default")
