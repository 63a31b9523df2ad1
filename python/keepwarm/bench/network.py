"""Figures of TCP on loopback, in plain text and over TLS."""

from __future__ import annotations

import secrets
import socket
import tempfile
from pathlib import Path

import keepwarm
from keepwarm import Credentials, _core
from keepwarm.bench.context import Context, Found, Group
from keepwarm.bench.limits import BareServer, Blocks, Secrets
from keepwarm.bench.local import arena_bytes, filled
from keepwarm.bench.nodes import Node
from keepwarm.bench.pairs import costs, interleave, speeds


def free_port() -> int:
    """A port of loopback that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _tcp(context: Context) -> Found:
    shape = context.shape()
    source, to = Blocks(shape, fill=True), Blocks(shape)
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Node(arena_bytes(shape), ("--listen", address)) as node,
        # One connection, as the bare loop has: what several streams gain is another question.
        keepwarm.connect(address, connections_max=1) as memory,
        filled(memory, node, source, to) as client,
        BareServer(shape, None, streams=1, buffers=None) as bare,
    ):
        gets = interleave(context.pairs, lambda n: bare.get(to, n), lambda n: client.get(to, n))
        puts = interleave(
            context.pairs, lambda n: bare.put(source, n), lambda n: client.put(source, n)
        )
    return {
        "tcp_get_over_socket": speeds(gets),
        "tcp_put_over_socket": speeds(puts),
        "tcp_get_cpu_over_socket": costs(gets),
        "tcp_put_cpu_over_socket": costs(puts),
    }


def _tls(context: Context) -> Found:
    shape = context.shape()
    source, to = Blocks(shape, fill=True), Blocks(shape)
    address = f"tls://localhost:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        trust, flags, credentials = _trust(Path(folder))
        with (
            Node(arena_bytes(shape), ("--listen", address, *flags)) as node,
            keepwarm.connect(address, connections_max=1, credentials=credentials) as memory,
            filled(memory, node, source, to) as client,
            BareServer(shape, None, streams=1, secrets=trust, buffers=None) as bare,
        ):
            gets = interleave(context.pairs, lambda n: bare.get(to, n), lambda n: client.get(to, n))
            puts = interleave(
                context.pairs, lambda n: bare.put(source, n), lambda n: client.put(source, n)
            )
    return {"tls_get_over_rustls": speeds(gets), "tls_put_over_rustls": speeds(puts)}


def _trust(folder: Path) -> tuple[Secrets, tuple[str, ...], Credentials]:
    """A CA for one run: what the bare server, the node and its client are given."""
    ca, ca_key = _core.make_ca("bench", 1)
    certificate, key = _core.make_certificate(ca, ca_key, ["localhost"], True, 1, 1)
    token = f"kw_{secrets.token_urlsafe(32)}"
    principals = (
        f'[principals.bench]\ntoken = "{_core.token_hash(token)}"\ntenants = "*"\n'
        'rights = ["read", "write", "drop", "admin"]\n'
    )
    texts = {"ca.pem": ca, "node.pem": certificate, "node.key": key, "principals.toml": principals}
    for name, text in texts.items():
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    paths = {name: folder / name for name in texts}
    flags = ("--tls-cert", str(paths["node.pem"]), "--tls-key", str(paths["node.key"]))
    bare = Secrets(paths["ca.pem"], paths["node.pem"], paths["node.key"])
    shown = Credentials(ca=paths["ca.pem"], token=token)
    return bare, (*flags, "--principals", str(paths["principals.toml"])), shown


GROUPS = (
    Group(
        (
            "tcp_get_over_socket",
            "tcp_put_over_socket",
            "tcp_get_cpu_over_socket",
            "tcp_put_cpu_over_socket",
        ),
        _tcp,
    ),
    Group(("tls_get_over_rustls", "tls_put_over_rustls"), _tls),
)
