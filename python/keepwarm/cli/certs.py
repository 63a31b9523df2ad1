"""`keepwarm certs`: a CA, certificates and tokens for the nodes and clients of a fleet."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from keepwarm import _core
from keepwarm.cli.output import tell
from keepwarm.errors import ConfigError

CA_DAYS = 3650
DAYS = 365
DAYS_MAX = 36_500

certs = cyclopts.App(
    name="certs",
    help="Make a CA, certificates and tokens for the nodes and clients of a fleet.",
    help_format="plaintext",
    sort_key=9,
)


def _write(path: Path, text: str) -> None:
    """A file for its owner alone, never over another."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already: move it away, or choose another folder", "certs"
        ) from None
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)


def _folder(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _days(days: int, name: str) -> int:
    if not 1 <= days <= DAYS_MAX:
        raise ConfigError(f"{name} is {days}: give 1 to {DAYS_MAX}", name)
    return days


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}; make it with keepwarm certs init", "certs"
        ) from None


def _issue(folder: Path, kind: str, names: list[str], days: int) -> Path:
    """A bundle of one node or client beside its CA; returns its folder."""
    ca = _read(folder / "ca" / "ca.pem")
    serial = secrets.randbits(63) | 1
    certificate, key = _core.make_certificate(
        ca, _read(folder / "ca" / "ca.key"), names, kind == "node", days, serial
    )
    place = _folder(folder / (kind if kind == "node" else f"client-{names[0]}"))
    _write(place / f"{kind}.key", key)
    _write(place / f"{kind}.pem", certificate)
    _write(place / "ca.pem", ca)
    _write(place / "serial", f"{serial}\n")
    return place


@certs.command
def init(
    folder: Path,
    *,
    node: Annotated[list[str] | None, Parameter(negative=())] = None,
    client: Annotated[list[str] | None, Parameter(negative=())] = None,
    days: int = DAYS,
    ca_days: int = CA_DAYS,
    ca: str = "keepwarm",
) -> None:
    """Make a CA, a node's bundle and a client's bundle for each name.

    Run again in the same folder it keeps the CA and makes what is missing.

    Parameters
    ----------
    folder
        Where everything is put, in folders ca, node and client-NAME; files for their owner alone.
    node
        A name or address by which clients reach the node; once for each. Default: localhost,
        127.0.0.1 and ::1.
    client
        A client's name, which its principal names as certificate; once for each. Default: client.
    days
        How long the certificates of node and clients are good.
    ca_days
        How long the CA's is.
    ca
        The CA's name.
    """
    home = _folder(folder / "ca")
    if not (home / "ca.pem").exists():
        made, key = _core.make_ca(ca, _days(ca_days, "ca_days"))
        _write(home / "ca.key", key)
        _write(home / "ca.pem", made)
    _days(days, "days")
    names = node or ["localhost", "127.0.0.1", "::1"]
    if node or not (folder / "node").exists():
        _issue(folder, "node", names, days)
    clients = client or ["client"]
    for name in clients:
        if client or not (folder / f"client-{name}").exists():
            _issue(folder, "client", [name], days)
    tell("\n".join(_where(folder, clients, names)))


def _where(folder: Path, clients: list[str], names: list[str]) -> list[str]:
    node, first = folder / "node", clients[0]
    return [
        f"keepwarm: made {folder}; keep {folder / 'ca'}/ca.key off every node",
        f"  on the node, {node}/ as it is:",
        f"    keepwarm serve --listen tls://0.0.0.0:9478 --tls-cert {node}/node.pem \\",
        f"      --tls-key {node}/node.key --tls-ca {node}/ca.pem --principals principals.toml",
        "  in principals.toml there:",
        f"    [principals.{first}]",
        f'    certificate = "{first}"',
        '    tenants = ["default"]',
        '    rights = ["read", "write"]',
        f"  on its client, {folder}/client-{first}/ as it is:",
        f'    keepwarm.connect("tls://{names[0]}:9478", credentials="{folder}/client-{first}")',
    ]


@certs.command
def revoke(folder: Path, *bundles: Path, days: int = CA_DAYS) -> None:
    """Write FOLDER/ca/crl.pem: the list of revoked certificates, these among them.

    Give it to the nodes as --tls-crl, and send them SIGHUP.

    Parameters
    ----------
    folder
        The folder of certs init.
    bundles
        Folders of the clients or nodes to revoke.
    days
        How long the list is good.
    """
    home = folder / "ca"
    known = home / "revoked.json"
    found: list[int] = json.loads(_read(known)) if known.exists() else []
    for bundle in bundles:
        try:
            found.append(int(_read(bundle / "serial")))
        except ValueError:
            raise ConfigError(f"{bundle}/serial is no number", "certs") from None
    serials = sorted(set(found))
    ca, key = _read(home / "ca.pem"), _read(home / "ca.key")
    made = _core.make_revocations(ca, key, serials, _days(days, "days"), len(serials) + 1)
    for path, text in ((known, json.dumps(serials)), (home / "crl.pem", made)):
        fresh = path.with_suffix(f"{path.suffix}.new")
        fresh.unlink(missing_ok=True)
        _write(fresh, text)
        fresh.replace(path)
    tell(f"keepwarm: {home}/crl.pem revokes {len(serials)}; give it to nodes as --tls-crl")


@certs.command
def token(out: Path | None = None) -> None:
    """Make a token, and print its hash for the node's principals.

    Parameters
    ----------
    out
        The file to write the token to, such as CLIENT/token. Without it the token is printed.
    """
    made = f"kw_{secrets.token_urlsafe(32)}"
    shown = f'  in the node\'s principals: token = "{_core.token_hash(made)}"'
    if out is None:
        tell(f"{made}\n{shown}")
        return
    _write(out, f"{made}\n")
    tell(f"keepwarm: token is in {out}; give it to the client alone\n{shown}")
