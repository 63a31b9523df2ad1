"""Nodes in network namespaces, and a way between them that delays and loses packets.

```text
 namespace of the client            this process' child           namespace of node n
   10.77.n.1  tun kwn ◄──packets──► router: delay, loss ◄──────► tun kw0  10.77.n.2:9478
                                                                     relay ──► the node's socket
```
Partitions are `ip link set down`, cuts of one direction are blackhole routes. Needs root.
Run as a program it is the router (`router FDS…`) or a relay (`relay HOST PORT SOCKET`).
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PORT = 9478
MTU = 9000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_CLONE_NEWNET = 0x40000000


def why_not() -> str | None:
    """Why there can be no namespaces here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"kwtry{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def ip(*arguments: str) -> None:
    """Runs `ip`, which must work."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """A client's namespace and one for each node, with a router between them."""

    def __init__(self, nodes: int) -> None:
        self._names = [f"kw{os.getpid()}n{number}" for number in range(nodes + 1)]
        fds: list[int] = []
        for name in self._names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number in range(1, nodes + 1):
            for name, device, end in ((self.client, f"kw{number}", 1), (self.of(number), "kw0", 2)):
                fds.append(_tun(name, device))
                ip("-n", name, "addr", "add", f"10.77.{number}.{end}/30", "dev", device)
                ip("-n", name, "link", "set", device, "mtu", str(MTU), "up")
        self._router = subprocess.Popen(
            [sys.executable, __file__, "router", *map(str, fds)],
            stdin=subprocess.PIPE,
            pass_fds=fds,
            text=True,
        )
        for fd in fds:
            os.close(fd)

    @property
    def client(self) -> str:
        """The client's namespace."""
        return self._names[0]

    def of(self, number: int) -> str:
        """The namespace of a node, from 1."""
        return self._names[number]

    def run(self, namespace: str, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a program in a namespace."""
        inside = ["ip", "netns", "exec", namespace, *command]
        return subprocess.Popen(inside, text=True, **options)

    def way(self, number: int, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """What the way to a node does to packets, in both directions."""
        assert self._router.stdin is not None
        self._router.stdin.write(json.dumps([number, delay_s, loss]) + "\n")
        self._router.stdin.flush()

    def partition(self, number: int) -> None:
        """Nothing reaches the node, and nothing comes from it."""
        ip("-n", self.of(number), "link", "set", "kw0", "down")

    def heal(self, number: int) -> None:
        """Ends a partition."""
        ip("-n", self.of(number), "link", "set", "kw0", "up")

    def cut_answers(self, number: int) -> None:
        """What the node sends goes nowhere; what is sent to it arrives."""
        ip("-n", self.of(number), "route", "add", "blackhole", f"10.77.{number}.1/32")

    def mend_answers(self, number: int) -> None:
        """Ends that."""
        ip("-n", self.of(number), "route", "del", "blackhole", f"10.77.{number}.1/32")

    def close(self) -> None:
        """Removes all of it."""
        if self._router.stdin is not None:
            self._router.stdin.close()
        self._router.wait(10)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _tun(namespace: str, device: str) -> int:
    """A tun device in a namespace; made by a thread that enters it, and ends there."""
    made: list[int] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{namespace}").open("rb") as entered:
            if libc.setns(entered.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_NO_PI))
        made.append(fd)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def route(fds: list[int]) -> None:
    """Moves packets between pairs of devices until standard input ends; it says how."""
    other = {fd: fds[at ^ 1] for at, fd in enumerate(fds)}
    link = {fd: at // 2 + 1 for at, fd in enumerate(fds)}
    ways: dict[int, tuple[float, float]] = {}
    chance, order = random.Random(1), 0
    waiting: list[tuple[float, int, int, bytes]] = []
    told = b""
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([0, *fds], [], [], pause)
        for fd in readable:
            if fd == 0:
                more = os.read(0, 65536)
                if not more:
                    return
                *lines, told = (told + more).split(b"\n")
                for number, delay_s, loss in map(json.loads, lines):
                    ways[number] = (delay_s, loss)
                continue
            for packet in _packets(fd):
                delay_s, loss = ways.get(link[fd], (0.0, 0.0))
                if not loss or chance.random() >= loss:
                    order += 1
                    heapq.heappush(waiting, (time.monotonic() + delay_s, order, other[fd], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, fd, packet = heapq.heappop(waiting)
            _write(fd, packet)


def _packets(fd: int) -> list[bytes]:
    found: list[bytes] = []
    with suppress(OSError):  # no more, or the device is down
        while len(found) < 64:
            found.append(os.read(fd, 65536))
    return found


def _write(fd: int, packet: bytes) -> None:
    with suppress(OSError):  # down, or its queue is full: lost, as on any network
        os.write(fd, packet)


def relay(host: str, port: int, path: str) -> None:
    """Hands every connection on to the node's socket."""
    with socket.create_server((host, port), backlog=64) as listening:
        while True:
            near, _ = listening.accept()
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(path)
            except OSError:  # no node: whoever came is let go
                near.close()
                far.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_hand_on, args=(source, sink), daemon=True).start()


def _hand_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 18):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):  # the other thread was first
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    if sys.argv[1] == "router":
        route([int(fd) for fd in sys.argv[2:]])
    else:
        relay(sys.argv[2], int(sys.argv[3]), sys.argv[4])
