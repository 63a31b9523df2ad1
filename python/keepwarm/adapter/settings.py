"""What an operator may say to a connector, checked before an engine starts.

The engine hands on a mapping that people write by hand, so every error names the key, where it
stands, and what to write instead. Environment: KEEPWARM_ADDRESS, KEEPWARM_CREDENTIALS.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from keepwarm.config import parse_duration
from keepwarm.config.addresses import ENV_PREFIX
from keepwarm.errors import ConfigError

PlannerMode = Literal["measured", "always", "off"]
PLANNER_MODES: tuple[PlannerMode, ...] = ("measured", "always", "off")
TRANSPORTS = ("auto", "shm", "unix")


class SettingsError(ConfigError):
    """A setting that is unknown or cannot be; `where` says whose it is."""

    def __init__(self, where: str, setting: str, what: str) -> None:
        super().__init__(f"{where}: {what}", setting)
        self.where = where


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A connector's settings; the defaults are right on most machines.

    address            the node or nodes, as in `keepwarm.connect`; the default socket without it
    credentials        a folder of `keepwarm certs`; needed for tls:// and tokens
    tenant, secret     who owns the bytes, and the path of the tenant's secret
    transport          auto, shm, unix: how bytes travel to a node on this machine
    lookup_deadline_s  longest that a request waits for an answer: too short and a busy node is
                       never used; too long and each stall holds one request for as long
    load_deadline_s    longest that a restore may take, its bytes' time apart: as above
    store_deadline_s   stores hold the engine's blocks: too long and a stalled node fills its pool
    hits_per_step      most blocks that a scheduler step takes in: more hold up all other requests
    host_share         part of the engine's host pool that restores may fill
    load_threads, store_threads   each is one connection and one core at most
    loads_max, stores_max   jobs under way or waiting; more are refused
    store_generated    whether blocks that the model's answer fills are stored too: the next turn of
                       a conversation repeats them; false where answers are never sent back
    connections_max    connections to a node
    planner            measured; always (restore whatever is there); off (restore nothing)
    weights            a name that the operator vouches for, instead of hashing the weights' files;
                       `sample` reads a part of each file, and misses changes in the rest
    weights_fixed      the weights never change in a running engine: a cache reset stays a reset
    epoch, ttl, priority   as in `Memory.attach`
    """

    address: str | None = None
    credentials: str | None = None
    tenant: str = "default"
    secret: str | None = None
    transport: Literal["auto", "shm", "unix"] = "auto"
    lookup_deadline_s: float = 0.25
    load_deadline_s: float = 0.5
    store_deadline_s: float = 2.0
    hits_per_step: int = 256
    host_share: float = 0.75
    load_threads: int = 2
    store_threads: int = 1
    loads_max: int = 1024
    stores_max: int = 256
    store_generated: bool = True
    connections_max: int = 8
    planner: PlannerMode = "measured"
    weights: str | None = None
    weights_fixed: bool = False
    epoch: int | None = None
    ttl: str | None = None
    priority: int | None = None


class _Wanted(NamedTuple):
    """A type of value: how it is read, and how that is said. Reading raises ValueError."""

    read: Callable[[object], Any]
    said: str


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError
    value.encode()  # JSON can hold half a character, which no path and no name can
    return value


def _address(value: object) -> str:
    parts = value if isinstance(value, list | tuple) else [value]
    if not parts:
        raise ValueError
    return ",".join(_text(part) for part in parts)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return float(value)


def _between(least: float, most: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        number = _number(value)
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        number = _number(value)
        if number != int(number) or not least <= number <= most:
            raise ValueError
        return int(number)

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _ttl(value: object) -> str:
    text = value if isinstance(value, str) else f"{_number(value)}s"
    parse_duration(text, "ttl")
    return text


def _one_of(names: Collection[str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return read


_TEXT = _Wanted(_text, "text")
_SECONDS = _Wanted(_between(0.001, 60.0), "seconds from 0.001 to 60")
_THREADS = _Wanted(_whole(1, 16), "a whole number from 1 to 16")
_JOBS = _Wanted(_whole(1, 65_536), "a whole number from 1 to 65536")
_WANTED: dict[str, _Wanted] = {
    "address": _Wanted(_address, "an address such as unix:/run/keepwarm.sock, or a list of them"),
    "credentials": _Wanted(_text, "the path of a folder as keepwarm certs makes it"),
    "tenant": _TEXT,
    "secret": _Wanted(_text, "the path of the tenant's secret file"),
    "transport": _Wanted(_one_of(TRANSPORTS), "auto, shm or unix"),
    "lookup_deadline_s": _SECONDS,
    "load_deadline_s": _SECONDS,
    "store_deadline_s": _SECONDS,
    "hits_per_step": _JOBS,
    "host_share": _Wanted(_between(0.01, 1.0), "a share from 0.01 to 1"),
    "load_threads": _THREADS,
    "store_threads": _THREADS,
    "loads_max": _JOBS,
    "stores_max": _JOBS,
    "store_generated": _Wanted(_flag, "true or false"),
    "connections_max": _Wanted(_whole(1, 64), "a whole number from 1 to 64"),
    "planner": _Wanted(_one_of(PLANNER_MODES), "measured, always or off"),
    "weights": _Wanted(_text, "a name of the weights, such as their version"),
    "weights_fixed": _Wanted(_flag, "true or false"),
    "epoch": _Wanted(_whole(0, (1 << 32) - 1), "a whole number from 0 to 4294967295"),
    "ttl": _Wanted(_ttl, "seconds, or text such as 90m"),
    "priority": _Wanted(_whole(0, 3), "a whole number from 0 to 3"),
}
# Settings that take null for "none", as their default is.
_OPTIONAL = {each.name for each in fields(Settings) if each.default is None}


def parse_settings(
    given: Mapping[str, object], where: str, others: Collection[str] = ()
) -> Settings:
    """Settings from what the engine hands on; `where` names that for people.

    `others` are keys in the same mapping that are not ours: they are passed over, and offered as
    the nearest name of a misspelt one. Raises `SettingsError`.
    """
    read: dict[str, Any] = {}
    for key, value in given.items():
        if key in others:
            continue
        if key not in _WANTED:
            raise SettingsError(where, str(key), _unknown(str(key), others))
        if value is None and key in _OPTIONAL:
            continue
        read[key] = _read(where, key, value)
    for key in ("address", "credentials"):
        if (said := os.environ.get(f"{ENV_PREFIX}{key.upper()}")) and key not in read:
            read[key] = said
    return Settings(**read)


def _read(where: str, key: str, value: object) -> object:
    wanted = _WANTED[key]
    try:
        return wanted.read(value)
    except (ValueError, OverflowError):
        raise SettingsError(
            where, key, f"{key} is {value!r} ({type(value).__name__}): give {wanted.said}"
        ) from None


def _unknown(key: str, others: Collection[str]) -> str:
    near = difflib.get_close_matches(key, [*_WANTED, *others], n=1, cutoff=0.5)
    if near:
        return f"unknown setting {key}: did you mean {near[0]}?"
    return f"unknown setting {key}: known are {', '.join(sorted(_WANTED))}"
