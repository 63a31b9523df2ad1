"""Where a node listens: its socket, and admin HTTP."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from keepwarm import _core
from keepwarm.errors import ConfigError

ENV_PREFIX = "KEEPWARM_"
OFF = "off"


def parse_address(value: str | PathLike[str] | None) -> str:
    """Where a node is: the path of its socket, or tcp://host:port or tls://host:port in full.

    Without a value, from the environment or the default.
    """
    if value is None:
        value = os.environ.get(f"{ENV_PREFIX}ADDRESS") or default_address()
    text = os.fspath(value)
    if text.startswith("unix:"):
        text = text.removeprefix("unix:")
    elif re.match(r"[a-z]+:", text):
        return _core.canonical_address(text)
    if not text or "\0" in text:
        raise ConfigError(
            "address is empty: give unix:/path, tcp://host:port or tls://host:port", "address"
        )
    return str(Path(text).absolute())


def parse_addresses(value: str | PathLike[str] | Sequence[str | PathLike[str]] | None) -> list[str]:
    """Where the nodes of a memory are: a list, or one text with commas between.

    dns://name:port stays as it is. Without a value, from the environment or the default.
    """
    if value is None:
        value = os.environ.get(f"{ENV_PREFIX}ADDRESS") or default_address()
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    elif isinstance(value, PathLike):
        value = [value]
    kinds = "unix:/path, tcp://host:port, tls://host:port or dns://name:port"
    if not isinstance(value, Sequence) or not value or isinstance(value, bytes):
        raise ConfigError(f"address is {value!r}: give {kinds}, or a list of them", "address")
    found = []
    for each in value:
        if not isinstance(each, str | PathLike):
            raise ConfigError(f"address is {each!r}: give {kinds}", "address")
        text = os.fspath(each)
        if text.startswith("dns://"):
            name = _core.canonical_address(f"tcp://{text.removeprefix('dns://')}")
            found.append(f"dns://{name.removeprefix('tcp://')}")
        else:
            found.append(parse_address(text))
    return found


def is_socket(address: str) -> bool:
    """Whether a parsed address is a socket's path."""
    return address.startswith("/")


def parse_listen(value: object, name: str) -> tuple[str, ...]:
    """Addresses beside the socket: one text, several with commas between, or a list of them."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} is {value!r}: give tcp://host:port or tls://host:port", name)
    found = []
    for text in filter(None, map(str.strip, texts)):
        address = parse_address(text)
        if is_socket(address):
            raise ConfigError(
                f"{name} is {text!r}: give tcp://host:port or tls://host:port; the socket's path "
                "is the setting address",
                name,
            )
        found.append(address)
    return tuple(found)


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
