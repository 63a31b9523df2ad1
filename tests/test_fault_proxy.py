"""The fault proxy against an echo server: each fault does what it says and nothing else."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keepwarm.testing import eventually, fault_shell
from keepwarm.testing.faults import FaultProxy, Side, Towards

PATIENCE_S = 10.0


class Echo:
    """Sends back what it gets; one thread a connection; remembers how connections ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        self.ended = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                side, _ = self.listener.accept()
                threading.Thread(target=self._echo, args=(side,), daemon=True).start()

    def _echo(self, side: socket.socket) -> None:
        with contextlib.suppress(OSError), side:
            while data := side.recv(1 << 16):
                side.sendall(data)
        self.ended.release()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    server = Echo(str(tmp_path / "echo.sock"))
    yield server
    server.close()


@pytest.fixture(params=["unix", "tcp"])
def proxy(request: pytest.FixtureRequest, echo: Echo, tmp_path: Path) -> Iterator[FaultProxy]:
    listen = f"unix:{tmp_path}/proxy.sock" if request.param == "unix" else "tcp:127.0.0.1:0"
    with FaultProxy(f"unix:{echo.path}", listen) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    kind, _, rest = proxy.address.partition(":")
    if kind == "unix":
        side = socket.socket(socket.AF_UNIX)
        side.settimeout(PATIENCE_S)
        try:
            side.connect(rest)
        except OSError:
            side.close()
            raise
        return side
    host, _, port = rest.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def receive(side: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        data = side.recv(count - len(got))
        if not data:
            break
        got += data
    return bytes(got)


def exchange(side: socket.socket, data: bytes) -> bytes:
    sender = threading.Thread(target=lambda: side.sendall(data))
    sender.start()
    got = receive(side, len(data))
    sender.join(PATIENCE_S)
    return got


def ended(side: socket.socket) -> bool:
    try:
        return side.recv(1) == b""
    except ConnectionError:
        return True


PAYLOAD = bytes(range(256)) * 8192


def test_without_faults_every_byte_passes(proxy: FaultProxy) -> None:
    with connect(proxy) as side:
        assert exchange(side, PAYLOAD) == PAYLOAD
    stats = proxy.stats()
    assert stats.accepted == 1
    assert stats.to_node.bytes_passed == stats.to_client.bytes_passed == len(PAYLOAD)
    assert stats.to_node.bytes_corrupted == 0


def test_delay_and_bandwidth(proxy: FaultProxy) -> None:
    with connect(proxy) as side:
        proxy.set(Towards.CLIENT, delay_s=0.05)
        start = time.monotonic()
        assert exchange(side, b"hello") == b"hello"
        assert time.monotonic() - start >= 0.05
        proxy.set(Towards.NODE, bytes_per_s=1_000_000, chunk_bytes=4096)
        start = time.monotonic()
        assert exchange(side, PAYLOAD[:100_000]) == PAYLOAD[:100_000]
        assert time.monotonic() - start >= 0.09


def test_cut_after_n_bytes_closes_both_sides(proxy: FaultProxy, echo: Echo) -> None:
    proxy.set(Towards.CLIENT, cut_after=70_001)
    with connect(proxy) as side:
        side.sendall(PAYLOAD[:100_000])
        assert receive(side, 100_000) == PAYLOAD[:70_001]
        assert ended(side)
    assert echo.ended.acquire(timeout=PATIENCE_S)
    assert proxy.stats().to_client.cuts == 1


def test_corruption_hits_exactly_the_bytes_named(proxy: FaultProxy) -> None:
    proxy.set(Towards.NODE, corrupt_at=70_000)
    with connect(proxy) as side:
        got = exchange(side, PAYLOAD[:100_000])
    assert [at for at in range(100_000) if got[at] != PAYLOAD[at]] == [70_000]
    proxy.set(Towards.NODE, corrupt_every=1000, chunk_bytes=777)
    with connect(proxy) as side:
        got = exchange(side, PAYLOAD[:10_000])
    assert [at for at in range(10_000) if got[at] != PAYLOAD[at]] == list(range(999, 10_000, 1000))


def test_a_stall_holds_everything_and_ends(proxy: FaultProxy) -> None:
    with connect(proxy) as side:
        proxy.set(Towards.CLIENT, stall=True)
        side.sendall(b"anyone")
        side.settimeout(0.05)
        with pytest.raises(TimeoutError):
            side.recv(1)
        side.settimeout(PATIENCE_S)
        proxy.clear()
        assert receive(side, 6) == b"anyone"


def test_half_open_towards_the_client_never_answers(proxy: FaultProxy, echo: Echo) -> None:
    with connect(proxy) as side:
        assert exchange(side, b"hi") == b"hi"
        proxy.half_open(Side.CLIENT)
        assert echo.ended.acquire(timeout=PATIENCE_S)
        side.sendall(PAYLOAD)
        side.settimeout(0.05)
        with pytest.raises(TimeoutError):
            side.recv(1)
        with connect(proxy) as late:
            late.sendall(b"?")
            eventually(lambda: proxy.stats().sides_open == 2, "two sides kept")
        side.settimeout(PATIENCE_S)
        proxy.half_open(None)
        assert ended(side)


def test_half_open_towards_the_node_keeps_its_side(proxy: FaultProxy, echo: Echo) -> None:
    proxy.half_open(Side.NODE)
    side = connect(proxy)
    assert exchange(side, b"hi") == b"hi"
    side.close()
    assert not echo.ended.acquire(timeout=0.05)
    eventually(lambda: proxy.stats().sides_open == 1, "the node's side kept")
    proxy.clear()
    assert echo.ended.acquire(timeout=PATIENCE_S)


def test_reordered_chunks_change_places_and_none_is_lost(proxy: FaultProxy) -> None:
    proxy.set(Towards.NODE, reorder=True, chunk_bytes=1000)
    with connect(proxy) as side:
        got = exchange(side, PAYLOAD[:10_000])
    assert got != PAYLOAD[:10_000]
    assert sorted(got) == sorted(PAYLOAD[:10_000])
    assert proxy.stats().to_node.chunks_reordered >= 2


def test_a_lone_chunk_is_not_held_for_ever(proxy: FaultProxy) -> None:
    proxy.set(Towards.NODE, reorder=True)
    with connect(proxy) as side:
        assert exchange(side, b"alone") == b"alone"


def test_refusing_and_listening_again(proxy: FaultProxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.refuse(False)
    with connect(proxy) as side:
        assert exchange(side, b"back") == b"back"


def test_drop_ends_every_connection(proxy: FaultProxy, echo: Echo) -> None:
    sides = [connect(proxy) for _ in range(3)]
    assert all(exchange(side, b"x") == b"x" for side in sides)
    assert proxy.drop() == 3
    assert all(ended(side) for side in sides)
    for side in sides:
        side.close()
    for _ in sides:
        assert echo.ended.acquire(timeout=PATIENCE_S)


def test_connections_are_bounded(echo: Echo) -> None:
    with FaultProxy(f"unix:{echo.path}", connections_max=2) as proxy:
        kept = [connect(proxy) for _ in range(2)]
        assert all(exchange(side, b"x") == b"x" for side in kept)
        with connect(proxy) as extra:
            assert ended(extra)
        assert proxy.stats().refused == 1
        for side in kept:
            side.close()


def test_one_thread_and_no_descriptor_is_left(echo: Echo, tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        with FaultProxy(f"unix:{echo.path}", f"unix:{tmp_path}/p.sock") as proxy:
            sides = [connect(proxy) for _ in range(4)]
            assert all(exchange(side, b"x") == b"x" for side in sides)
            assert sum(t.name == "fault-proxy" for t in threading.enumerate()) == 1
            for side in sides:
                side.close()
        for _ in range(4):
            assert echo.ended.acquire(timeout=PATIENCE_S)
    assert not any(thread.name == "fault-proxy" for thread in threading.enumerate())
    eventually(lambda: descriptors() <= before, "every descriptor closed")
    proxy.close()
    with pytest.raises(RuntimeError, match="is closed"):
        proxy.stats()


def test_an_unreachable_node_closes_the_client(tmp_path: Path) -> None:
    with FaultProxy(f"unix:{tmp_path}/nobody.sock") as proxy, connect(proxy) as side:
        assert ended(side)


def test_addresses_and_faults_are_checked() -> None:
    with pytest.raises(ValueError, match="loopback"):
        FaultProxy("tcp:10.0.0.1:80")
    with FaultProxy("unix:/nowhere") as proxy:
        with pytest.raises(ValueError, match="backwards"):
            proxy.set(Towards.NODE, delay_s=-1)
        with pytest.raises(TypeError):
            proxy.set(Towards.NODE, no_such_fault=1)


def test_the_shell_interface(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "set client delay_s=0.01 stall=on\nrefuse on\nrefuse off\nhalf-open node\n"
    lines += "half-open off\ndrop\nclear\nstats\nset client nonsense=1\nwhat\nquit\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert fault_shell.main(["--to", f"unix:{echo.path}"]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert answers[0].startswith("listening at tcp:127.0.0.1:")
    assert answers[1:6] == ["ok"] * 5
    assert answers[6] == "dropped 0"
    assert answers[8].startswith("ProxyStats(")
    assert answers[9].startswith("error: ")
