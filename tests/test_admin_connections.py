"""Admin HTTP over real sockets: nobody keeps others out, and only this machine is answered."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from keepwarm.config import Admin, load
from keepwarm.server import connections
from keepwarm.server.admin import AdminServer
from keepwarm.server.node import Node

Connect = Callable[[], socket.socket]


@pytest.fixture
def server(folder: Path) -> Iterator[AdminServer]:
    node = Node(load({"capacity": "8MiB", "address": str(folder / "s"), "admin": "off"}, {}))
    started = AdminServer(node, Admin("127.0.0.1", 0))
    yield started
    started.stop()


@pytest.fixture
def connect(server: AdminServer) -> Iterator[Connect]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(
            socket.create_connection((server.address.host, server.address.port), timeout=30)
        )


def health(server: AdminServer, host: str = "localhost") -> int:
    url = f"{server.address}/v1/health"
    return httpx.get(url, headers={"Host": host}, timeout=30, trust_env=False).status_code


def ended(connection: socket.socket) -> bool:
    """Waits until the other side closes, and drops what it said before."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_silent_connections_keep_nobody_out(server: AdminServer, connect: Connect) -> None:
    silent = [connect() for _ in range(connections.CONNECTIONS_MAX + 6)]
    assert health(server) == 200
    assert ended(silent[0]), "the oldest gives way"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/health HTTP/1.1\r\nHost: local",
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\nG",
        b"POST /v1/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n\r\nx",
    ],
)
def test_half_a_request_has_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "EXCHANGE_S_MAX", 0.1)
    connection = connect()
    connection.sendall(sent)
    assert ended(connection)


def test_a_connection_may_ask_again(server: AdminServer) -> None:
    with httpx.Client(base_url=str(server.address), trust_env=False) as client:
        assert [client.get("/v1/health").status_code for _ in range(5)] == [200] * 5


def test_only_loopback_names_are_answered(server: AdminServer, connect: Connect) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:80", "[::1]:80", "[::1]"):
        assert connections.is_local(host)
        assert health(server, host) == 200
    for host in ("evil.example", "evil.example:1234", "localhost.example", "10.0.0.1", "[::2]"):
        assert not connections.is_local(host)
        assert health(server, host) == 421
    connection = connect()
    connection.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 421 ")
