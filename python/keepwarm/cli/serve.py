"""`keepwarm serve`."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from keepwarm.cli.output import tell
from keepwarm.config import load, parse_address, show_size
from keepwarm.errors import ConfigError


def _setting(text: str) -> Any:
    return Parameter(help=text, negative=())


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """One flag per setting of `ServeConfig`, as text: the settings' own parsers read it."""

    capacity: Annotated[
        str | None,
        _setting(
            "Bytes for blocks, such as 16GiB. Default: a quarter of the available memory. Too "
            "little: blocks leave before they are used again; too much: the engines' own memory "
            "gets short."
        ),
    ] = None
    policy: Annotated[
        str | None, _setting("Which block leaves first: default (adaptive), lru, fifo, s3fifo.")
    ] = None
    address: Annotated[
        str | None,
        _setting("Where to listen: unix:/path, or a path. Default: the user's runtime folder."),
    ] = None
    listen: Annotated[
        str | None,
        _setting(
            "Where else to listen, with commas between: tcp://127.0.0.1:9478 (loopback alone), "
            "tls://0.0.0.0:9478. Default: nowhere."
        ),
    ] = None
    tls_cert: Annotated[
        str | None, _setting("The node's certificate, PEM, for tls://; see keepwarm certs init.")
    ] = None
    tls_key: Annotated[str | None, _setting("Its private key.")] = None
    tls_ca: Annotated[
        str | None,
        _setting("The CA that vouches for clients. Without it they come with tokens alone."),
    ] = None
    tls_crl: Annotated[str | None, _setting("The CA's list of revoked certificates.")] = None
    principals: Annotated[
        str | None,
        _setting("A TOML file with tables [principals.NAME]: who may come in, and do what."),
    ] = None
    admin: Annotated[
        str | None,
        _setting(
            "Where health, status and metrics are: host:port on loopback, or off. Default: "
            "127.0.0.1:9477."
        ),
    ] = None
    ttl: Annotated[
        str | None,
        _setting("How long blocks live, such as 1h. Default: until others need the room."),
    ] = None
    max_blocks: Annotated[
        str | None,
        _setting(
            "Entries of the index. Default: capacity / 64 KiB. Too few: memory stays unused; too "
            "many: tables waste about 140 bytes each."
        ),
    ] = None
    state_dir: Annotated[
        str | None,
        _setting("Where epochs survive a restart, or off. Default: beside the socket."),
    ] = None
    clients_max: Annotated[str | None, _setting("Connections at once. Default: 256.")] = None
    idle: Annotated[
        str | None,
        _setting("A connection on which nothing was asked for this long is closed. Default: 5m."),
    ] = None
    drain: Annotated[
        str | None,
        _setting(
            "How long the end may take after the first signal: calls under way finish, then the "
            "hottest blocks of memory are written to flash. Default: 10s."
        ),
    ] = None
    flash: Annotated[
        list[str] | None,
        _setting(
            "A second tier: PATH of a file or block device, or PATH=SIZE for a file that is made. "
            "Repeat it for several devices, up to 16. Default: none."
        ),
    ] = None
    flash_budget: Annotated[
        str | None,
        _setting(
            "Bytes that may be written to flash in a day, such as 2TB. Too little: blocks are not "
            "there after a restart; too much: the device wears out early. Default: no limit."
        ),
    ] = None
    flash_admission: Annotated[
        str | None,
        _setting(
            "Which blocks go to flash: reuse (default: those that were used after they were "
            "stored, or that come back), or all."
        ),
    ] = None
    format: Annotated[
        bool | None, _setting("Erase the flash devices first, whatever they hold. A flag alone.")
    ] = None
    weight: Annotated[
        str | None,
        _setting(
            "This node's share among several, against 1 of an ordinary one; 0 takes nothing new "
            "and is read until it is gone. Default: 1."
        ),
    ] = None
    populate: Annotated[
        str | None,
        _setting(
            "Touch all memory at start: true (default) or false. Without it a machine that is "
            "short of memory kills the node later instead of refusing now."
        ),
    ] = None
    huge_pages: Annotated[
        str | None,
        _setting(
            "Huge pages for the arena: auto (default; where the kernel gives them), on (refuse to "
            "start without), off."
        ),
    ] = None
    log_format: Annotated[
        str | None,
        _setting("Log lines on stderr: text, json, or auto (default): text on a terminal."),
    ] = None
    log_level: Annotated[
        str | None, _setting("Least level that is logged: debug, info (default), warn, error.")
    ] = None
    node: Annotated[str | None, _setting("The node's name in metrics. Default: the machine's.")] = (
        None
    )


def serve(
    flags: Flags | None = None,
    *,
    config: Annotated[
        Path | None, _setting("A TOML file of settings. Also KEEPWARM_CONFIG.")
    ] = None,
    json_: Annotated[
        bool, Parameter(name="--json", help="Say what it does in JSON lines.", negative=())
    ] = False,
) -> None:
    """Run a node on this machine, until SIGTERM or Ctrl-C.

    Each setting is also KEEPWARM_NAME in the environment and name in the
    TOML file. A flag wins over the environment, the environment over the
    file. Tenants are in the file alone: [tenants.NAME] with secret, quota
    and ttl. SIGHUP reads the settings again. A second signal ends the node
    at once.
    """
    given = {name: value for name, value in asdict(flags or Flags()).items() if value is not None}
    loaded = load(given, os.environ, config)

    from keepwarm.server.node import Node
    from keepwarm.server.running import run

    running = Node(loaded, read=lambda: load(given, os.environ, config))

    def started() -> None:
        _say_what(running, json_)

    def say(event: str, line: str) -> None:
        _write({"event": event, "text": line} if json_ else f"keepwarm: {line}")

    run(running, started, say)


def _say_what(node: Any, as_json: bool) -> None:
    settings = node.settings()
    if as_json:
        machine = dict(node.ground()) | {each.name: each._asdict() for each in node.findings}
        _write({"event": "serving", "pid": os.getpid(), "settings": settings, "machine": machine})
        return
    lines = [f"keepwarm: node {node.name} serves, process {os.getpid()}"]
    wide = max(map(len, settings))
    for name, setting in settings.items():
        value = setting["value"]
        shown = _shown(value, name)
        lines.append(f"  {name:<{wide}} {shown:<44} {setting['origin']}")
    durable = node.config.state_dir is not None
    lines.append(f"  {'epochs':<{wide}} {'durable' if durable else 'lost with this process'}")
    lines += [f"  {name:<{wide}} {figure}" for name, figure in node.ground()]
    lines += [f"  {each.name:<{wide}} {each.figure}" for each in node.findings]
    lines += [f"keepwarm: warning: {each.todo}" for each in node.findings if each.level != "ok"]
    lines.append(f"keepwarm: ready; next: keepwarm stat{_where(node.config.address)}")
    _write("\n".join(lines))


def _where(address: str) -> str:
    """What other commands must be told to find the node: they know no flag or file of this one."""
    with suppress(ConfigError):  # without the address there is no default one either
        if parse_address(None) == address:
            return ""
    return f" --address {shlex.quote(address)}"


def _shown(value: object, name: str) -> str:
    if value is None:
        return "-"
    if name == "capacity" and isinstance(value, int):
        return show_size(value)
    if isinstance(value, float):  # a time, or a weight
        return f"{value:g}" if name == "weight" else f"{value:g} s"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def _write(what: str | dict[str, Any]) -> None:
    tell(what if isinstance(what, str) else json.dumps(what, default=str))
