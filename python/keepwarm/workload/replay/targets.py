"""Who is asked: named targets, each one or more replicas behind a router of our own.

baseline=http://a:8000                    one endpoint
keepwarm=http://b:8000,http://c:8000      two replicas under one name
local=unix:/run/vllm.sock                 over a Unix socket
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from keepwarm.errors import ArgumentError
from keepwarm.workload.replay.schedule import Arrival, spread

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
REPLICAS_MAX = 256
TARGETS_MAX = 8


class Router(StrEnum):
    """How a target's replicas share its requests."""

    ROUND_ROBIN = "round-robin"  # one after the other
    STICKY = "sticky"  # a session stays; requests without one go round
    PREFIX_HASH = "prefix-hash"  # equal openings go to one replica; without any, round


class Order(StrEnum):
    """How several targets get the same arrivals."""

    INTERLEAVED = "interleaved"  # each request to all of them at its time, side by side
    SEQUENTIAL = "sequential"  # the whole trace at one, then at the next


@dataclass(frozen=True, slots=True)
class Replica:
    """One endpoint: a base URL without a slash at its end, and a socket's path if it is local."""

    url: str
    socket: str | None = None

    @property
    def shown(self) -> str:
        """As it was given, without what may be secret in a URL."""
        return f"unix:{self.socket}" if self.socket else self.url


@dataclass(frozen=True, slots=True)
class Target:
    """A name and its replicas."""

    name: str
    replicas: tuple[Replica, ...]
    router: Router = Router.ROUND_ROBIN

    def choose(self, arrival: Arrival) -> int | None:
        """Which replica gets a request, by its own facts; None: the next one, going round.

        The simulator chooses the same.
        """
        by = {Router.STICKY: arrival.session, Router.PREFIX_HASH: arrival.opening}
        key = by.get(self.router, 0)
        return spread(key) * len(self.replicas) >> 64 if key else None


def parse_targets(given: Iterable[str], router: Router = Router.ROUND_ROBIN) -> list[Target]:
    """Targets from NAME=URL[,URL…]; the same name again adds replicas; a bare URL is `target`."""
    found: dict[str, list[Replica]] = {}
    for text in given:
        name, equals, urls = text.partition("=")
        if not equals or "/" in name or ":" in name:
            name, urls = "target", text
        if not _NAME.fullmatch(name):
            raise ArgumentError(f"{name!r} is no target's name: use letters, digits, '.', '-', '_'")
        found.setdefault(name, []).extend(_replica(url) for url in urls.split(",") if url)
    targets = [Target(name, tuple(replicas), router) for name, replicas in found.items()]
    if not targets or len(targets) > TARGETS_MAX:
        raise ArgumentError(f"{len(targets)} targets: give 1 to {TARGETS_MAX}")
    for target in targets:
        if not 1 <= len(target.replicas) <= REPLICAS_MAX:
            raise ArgumentError(f"target {target.name} has {len(target.replicas)} replicas: give 1")
    return targets


def _replica(text: str) -> Replica:
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise ArgumentError(f"{text} is no address: give unix:/path/of/socket")
        return Replica("http://localhost", path)
    wrong = ArgumentError(f"{_shown(text)} is no endpoint: give http://host:port")
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  (raises where it is no number)
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise wrong
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Replica(f"{parts.scheme}://{parts.netloc}{path}")


def _shown(text: str) -> str:
    """A URL that cannot be, without a password that may be in it."""
    return repr(re.sub(r"//[^/@]*@", "//…@", text)[:100])


def parse_headers(given: Iterable[str], api_key: str | None = None) -> dict[str, str]:
    """Headers from NAME=VALUE, and the API key's; a value is never shown, in errors either."""
    made: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not _TOKEN.fullmatch(name) or not _plain(value):
            raise ArgumentError(f"header {name!r} cannot be: give NAME=VALUE, in plain characters")
        made[name] = value
    if api_key is not None:
        if not api_key.strip() or not _plain(api_key):
            raise ArgumentError("the API key is empty, or no line of plain characters")
        made["Authorization"] = f"Bearer {api_key}"
    return made


def _plain(value: str) -> bool:
    return value.isascii() and (not value or value.isprintable())
