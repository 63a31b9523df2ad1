"""Settings: addresses, sizes, durations, and what `keepwarm serve` runs with.

A setting has one name everywhere: `--idle` as a flag, `KEEPWARM_IDLE` in the environment, `idle` in
the TOML file. A flag wins over the environment, the environment over the file, the file over the
default. A name that is not known is refused with the nearest that is.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from keepwarm import _core
from keepwarm.errors import ConfigError
from keepwarm.machine import memory_available

ENV_PREFIX = "KEEPWARM_"
OFF = "off"
BYTES_MAX = 1 << 60
SECONDS_MAX = 10 * 365 * 86400.0

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?\s*", re.IGNORECASE)
_UNITS = {"b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("ib", 1024), ("b", 1000))
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: object, name: str) -> int:
    """Bytes from 4096, 512MiB, 1.5GiB, 2GB."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        count = float(value) if value <= BYTES_MAX else math.inf
        exact = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        count = float(match[1]) * _UNITS[(match[2] or "B").lower()]
        exact = int(min(count, BYTES_MAX))
    else:
        raise ConfigError(f"{name} is {_short(value)}: give bytes, such as 16GiB or 512MiB", name)
    if count > BYTES_MAX:
        raise ConfigError(f"{name} is {_short(value)}: give at most {BYTES_MAX >> 50} PiB", name)
    return exact


def parse_duration(value: object, name: str) -> float:
    """Seconds from 2, 0.5, 500ms, 30s, 10m, 1h, 1d."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = math.inf if value > SECONDS_MAX else value if value >= 0 else -1  # NaN too
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    else:
        seconds = -1
    if 0 <= seconds <= SECONDS_MAX:
        return float(seconds)
    limit = f" of at most {SECONDS_MAX / 86400:g} days" if seconds > SECONDS_MAX else ""
    raise ConfigError(
        f"{name} is {_short(value)}: give a time{limit}, such as 500ms, 30s or 10m", name
    )


def _short(value: object) -> str:
    """What was given, for an error's text."""
    if isinstance(value, int) and value.bit_length() > 512:
        return "a number of very many digits"  # which Python refuses to print
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."


def show_size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def parse_address(value: str | PathLike[str] | None) -> str:
    """A socket's path from unix:/path or a path; without one, from the environment or default."""
    if value is None:
        value = os.environ.get(f"{ENV_PREFIX}ADDRESS") or default_address()
    text = os.fspath(value)
    if text.startswith("unix:"):
        text = text.removeprefix("unix:")
    elif re.match(r"[a-z]+:", text):
        scheme = text.partition(":")[0]
        raise ConfigError(
            f"address {text} is of kind {scheme}: this version knows unix:/path alone", "address"
        )
    if not text or "\0" in text:
        raise ConfigError("address is empty: give unix:/path, or a path", "address")
    return str(Path(text).absolute())


def default_address() -> str:
    """Where a node of this user listens if nobody says otherwise."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return str(Path(runtime) / "keepwarm.sock")
    if os.geteuid() == 0:
        return "/run/keepwarm/keepwarm.sock"
    folder = Path(f"/tmp/keepwarm-{os.geteuid()}")
    check_private(folder)
    return str(folder / "keepwarm.sock")


def check_private(folder: Path) -> None:
    """Refuses a folder in a place that all share, if somebody else could have laid it there."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder} belongs to somebody else: set KEEPWARM_ADDRESS to a socket in a folder of "
            "your own",
            "address",
        )
    if found.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to others: run chmod 700 {folder}", "address")


def make_folder(folder: Path, setting: str) -> None:
    """Makes a folder of a node, for its owner alone."""
    if str(folder) == f"/tmp/keepwarm-{os.geteuid()}":
        check_private(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{setting}: folder {folder} cannot be made: {error.strerror}; give another "
            f"--{setting.replace('_', '-')}",
            setting,
        ) from None


class Admin(NamedTuple):
    """Where admin HTTP listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def parse_admin(value: object, name: str) -> Admin | None:
    """host:port on loopback, a port alone, or off."""
    text = str(value).removeprefix("http://")
    if text == OFF:
        return None
    host, _, port = text.rpartition(":")
    host = (host or "127.0.0.1").strip("[]")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        address, number = ipaddress.ip_address(host), int(port)
    except ValueError:
        address, number = None, -1
    if address is None or not 0 <= number < 65536:
        raise ConfigError(
            f"{name} is {value!r}: give host:port, such as 127.0.0.1:9477, or off", name
        )
    if not address.is_loopback:
        raise ConfigError(
            f"{name} is {value!r}, which others can reach: give a loopback address, since admin "
            "HTTP asks nobody who they are; put a proxy with TLS and a token before it",
            name,
        )
    return Admin(host, number)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of a node: its secret's file, what it may hold, how long its blocks live."""

    secret: str | PathLike[str] | None = None
    quota: int | str | None = None
    ttl: float | str | None = None


def tenant_rows(
    tenants: Mapping[str, Tenant],
) -> list[tuple[str, str | None, int | None, float | None]]:
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
                f"{where}.secret is {_short(tenant.secret)}: give the path of a file with 64 hex "
                "digits",
                f"{where}.secret",
            )
        secret = None if tenant.secret is None else os.fspath(tenant.secret)
        quota = None if tenant.quota is None else parse_size(tenant.quota, f"{where}.quota")
        ttl = None if tenant.ttl is None else parse_duration(tenant.ttl, f"{where}.ttl")
        rows.append((name, secret, quota, ttl))
    return rows


def _parse_tenants(value: object, name: str) -> dict[str, Tenant]:
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
            shown = _short(value)
            raise ConfigError(f"{name} is {shown}: give a whole number from 1 to {most}", name)
        return number

    return parse


def _parse_bool(value: object, name: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = value if isinstance(value, bool) else words.get(str(value).lower())
    if found is None:
        raise ConfigError(f"{name} is {value!r}: give true or false", name)
    return found


def _parse_policy(value: object, name: str) -> str:
    known = _core.policy_names()
    if value not in known:
        raise ConfigError(f"{name} is {value!r}: give one of {', '.join(known)}", name)
    return str(value)


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
    return parse_address(value)


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
    admin: Admin | None
    state_dir: Path | None
    clients_max: int
    idle: float
    drain: float
    populate: bool
    node: str
    tenants: Mapping[str, Tenant]


PARSERS: dict[str, Callable[[object, str], Any]] = {
    "capacity": parse_size,
    "max_blocks": _count_to(1 << 28),
    "policy": _parse_policy,
    "ttl": parse_duration,
    "address": _parse_socket,
    "admin": parse_admin,
    "state_dir": _parse_path,
    "clients_max": _count_to(16_384),
    "idle": parse_duration,
    "drain": parse_duration,
    "populate": _parse_bool,
    "node": _parse_text,
    "tenants": _parse_tenants,
}
DEFAULTS: dict[str, Any] = {
    "max_blocks": None,
    "policy": "lru",
    "ttl": None,
    "admin": Admin("127.0.0.1", 9477),
    "clients_max": 256,
    "idle": 300.0,
    "drain": 10.0,
    "populate": True,
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
    try:
        with Path(file).open("rb") as opened:
            table = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"file {file} cannot be read: {error.strerror}", "config") from None
    except ValueError as error:  # its own, of UTF-8, and of an endless number
        raise ConfigError(f"file {file} is no TOML: {error}", "config") from None
    for name in table:
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
