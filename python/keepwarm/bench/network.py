"""Figures of TCP on loopback, in plain text and over TLS."""

from __future__ import annotations

import socket

import keepwarm
from keepwarm.bench.context import Context, Found, Group, UnavailableError
from keepwarm.bench.limits import BareServer, Blocks
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
        keepwarm.connect(address) as memory,
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


def _tls(_: Context) -> Found:
    raise UnavailableError("this build has no TLS")


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
