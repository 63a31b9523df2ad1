"""A fault proxy: sits between a client and a node and spoils what passes, as told, at run time.

    client ──► proxy (one thread, one selector) ──► node
               to_node, to_client: Faults each; refuse; half-open; drop

Works on Unix sockets (`unix:/path` or a plain path) and TCP loopback (`tcp:127.0.0.1:port`).

>>> with FaultProxy("unix:/run/no-node.sock") as proxy:  # clients connect to proxy.address
...     proxy.set(Towards.CLIENT, delay_s=0.2)
...     proxy.set(Towards.NODE, cut_after=100_000)
...     proxy.clear()

An end of stream in one direction ends the connection once all before it has been passed on.
From a shell: `python -m keepwarm.testing.fault_shell --listen ADDRESS --to ADDRESS`, then one
command a line on its standard input (`help` lists them).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from keepwarm.testing._pipe import (
    Connection,
    Faults,
    Pipe,
    PipeStats,
    Side,
    Towards,
    parse,
    socket_for,
)

__all__ = ["FaultProxy", "Faults", "PipeStats", "ProxyStats", "Side", "Towards"]

CONTROL_TIMEOUT_S = 10.0
BACKLOG = 64


@dataclasses.dataclass(frozen=True, slots=True)
class ProxyStats:
    """What passed so far. `sides_open` counts sockets: two for a whole connection."""

    accepted: int
    refused: int
    sides_open: int
    to_node: PipeStats
    to_client: PipeStats


class FaultProxy:
    """See the module. Every switch has taken effect when its method returns."""

    def __init__(
        self, upstream: str, listen: str = "tcp:127.0.0.1:0", connections_max: int = 64
    ) -> None:
        """Listens at `listen` at once and connects to `upstream` for each client.

        At most `connections_max` connections; more are accepted and closed. Raises OSError when
        the address is taken and ValueError when it is no address.
        """
        self._upstream = parse(upstream)
        self._place = parse(listen)
        self._connections_max = connections_max
        self._faults = {Towards.NODE: Faults(), Towards.CLIENT: Faults()}
        self._half_open: Side | None = None
        self._stats = {Towards.NODE: PipeStats(), Towards.CLIENT: PipeStats()}
        self._accepted = self._refused = 0
        self._connections: list[Connection] = []
        self._calls: deque[tuple[Callable[[], object], list[object], threading.Event]] = deque()
        self._selector = selectors.DefaultSelector()
        self._masks: dict[socket.socket, int] = {}
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._open_listener()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where clients connect, in the form that they take."""
        if isinstance(self._place, str):
            return f"unix:{self._place}"
        return f"tcp:{self._place[0]}:{self._place[1]}"

    def set(self, towards: Towards, **faults: Any) -> None:
        """Replaces one direction's faults: `set(Towards.CLIENT, delay_s=0.1)`; see `Faults`."""
        wanted = Faults(**faults)
        self._call(lambda: self._faults.__setitem__(towards, wanted))

    def refuse(self, refuse: bool = True) -> None:
        """Stops listening, so that connecting fails; False listens again."""
        self._call(self._close_listener if refuse else self._open_listener)

    def half_open(self, side: Side | None) -> None:
        """Keeps `side` open, silent and swallowing, while the other end is gone.

        Connections that exist lose their other end now. New ones: with Side.CLIENT they are
        accepted and lead nowhere; with Side.NODE the node's end stays when the client leaves.
        None ends it and closes what was kept.
        """
        self._call(lambda: self._set_half_open(side))

    def drop(self) -> int:
        """Closes every connection (TCP: by reset); returns how many there were."""
        dropped = self._call(self._drop)
        assert isinstance(dropped, int)
        return dropped

    def clear(self) -> None:
        """Passes everything unspoiled again; listens again; connections stay."""
        self._call(self._clear)

    def stats(self) -> ProxyStats:
        """A snapshot of the counts."""
        stats = self._call(self._snapshot)
        assert isinstance(stats, ProxyStats)
        return stats

    def close(self) -> None:
        """Ends the thread and closes every socket. May be called twice."""
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join(CONTROL_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Below this line everything runs on the proxy's own thread, except _call and _wake.

    def _call(self, what: Callable[[], object]) -> object:
        if self._closing or not self._thread.is_alive():
            raise RuntimeError(f"the fault proxy at {self.address} is closed")
        answer: list[object] = []
        done = threading.Event()
        self._calls.append((what, answer, done))
        self._wake()
        if not done.wait(CONTROL_TIMEOUT_S):
            raise RuntimeError(f"the fault proxy at {self.address} did not answer")
        if isinstance(answer[0], OSError):
            raise answer[0]
        return answer[0]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_in.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._closing:
                # One moment for both: what falls due between two would be waited for by neither.
                now = time.monotonic()
                self._update_interest(now)
                ready = self._selector.select(self._wait_s(now))
                # Drained before the calls are taken, so that no later call's wake-up is lost.
                self._drain_wake()
                self._answer_calls()
                for key, mask in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is not None:
                        self._serve(key.data, key.fileobj, mask)
                self._write_due()
        finally:
            self._close_all()

    def _answer_calls(self) -> None:
        while self._calls:
            what, answer, done = self._calls.popleft()
            try:
                answer.append(what())
            except OSError as error:
                answer.append(error)
            done.set()

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _pipes(self, connection: Connection) -> Iterable[tuple[Pipe, Faults]]:
        yield connection.to_node, self._faults[Towards.NODE]
        yield connection.to_client, self._faults[Towards.CLIENT]

    def _wait_s(self, now: float) -> float | None:
        soonest = None
        for connection in self._connections:
            for pipe, faults in self._pipes(connection):
                due = pipe.release_at(faults)
                # What is due already waits for the sink to take bytes, not for time.
                if due is not None and due > now:
                    soonest = due if soonest is None else min(soonest, due)
        return None if soonest is None else soonest - now

    def _update_interest(self, now: float) -> None:
        wanted: dict[socket.socket, tuple[int, Connection]] = {}
        for connection in self._connections:
            for pipe, faults in self._pipes(connection):
                if pipe.source is not None and pipe.wants_read(faults):
                    mask = wanted.get(pipe.source, (0, connection))[0]
                    wanted[pipe.source] = (mask | selectors.EVENT_READ, connection)
                due = pipe.release_at(faults)
                if pipe.sink is not None and due is not None and due <= now:
                    mask = wanted.get(pipe.sink, (0, connection))[0]
                    wanted[pipe.sink] = (mask | selectors.EVENT_WRITE, connection)
        for known in [known for known in self._masks if known not in wanted]:
            self._forget(known)
        for side, (mask, connection) in wanted.items():
            if side not in self._masks:
                self._selector.register(side, mask, connection)
            elif self._masks[side] != mask:
                self._selector.modify(side, mask, connection)
            self._masks[side] = mask

    def _forget(self, side: socket.socket) -> None:
        if self._masks.pop(side, None) is not None:
            self._selector.unregister(side)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        self._accepted += 1
        node = None
        if self._half_open is not Side.CLIENT:
            node = self._connect()
        lost = node is None and self._half_open is not Side.CLIENT
        if lost or len(self._connections) >= self._connections_max:
            self._refused += 1
            client.close()
            if node is not None:
                node.close()
            return
        stats = self._stats
        made = Connection(client, node, stats[Towards.NODE], stats[Towards.CLIENT])
        self._connections.append(made)

    def _connect(self) -> socket.socket | None:
        node = socket_for(self._upstream)
        if node.connect_ex(self._upstream) in (0, errno.EINPROGRESS):
            return node
        node.close()
        return None

    def _serve(self, connection: Connection, side: Any, mask: int) -> None:
        if connection not in self._connections or side not in connection.sockets():
            return
        now = time.monotonic()
        for pipe, faults in self._pipes(connection):
            if pipe.source is side and mask & selectors.EVENT_READ and pipe.wants_read(faults):
                self._attempt(connection, pipe, now, reading=True)
            if pipe.sink is side and mask & selectors.EVENT_WRITE:
                self._attempt(connection, pipe, now, reading=False)
        self._settle(connection)

    def _attempt(self, connection: Connection, pipe: Pipe, now: float, reading: bool) -> None:
        towards = Towards.NODE if pipe is connection.to_node else Towards.CLIENT
        step = pipe.read if reading else pipe.write
        try:
            step(self._faults[towards], now)
        except OSError:
            connection.lost(pipe, reading)

    def _write_due(self) -> None:
        now = time.monotonic()
        for connection in self._connections[:]:
            for pipe, _ in self._pipes(connection):
                self._attempt(connection, pipe, now, reading=False)
            self._settle(connection)

    def _settle(self, connection: Connection) -> None:
        """Closes what was cut or has ended, once all before that is written."""
        for pipe, kept in ((connection.to_node, Side.NODE), (connection.to_client, Side.CLIENT)):
            if pipe.cut and pipe.drained():
                self._end(connection)
                return
            if pipe.ended and (pipe.swallow or pipe.drained() or pipe.sink is None):
                if self._half_open is kept and pipe.sink is not None:
                    self._forget_sides(connection)
                    connection.keep_only(kept)
                else:
                    self._end(connection)
                return

    def _forget_sides(self, connection: Connection) -> None:
        for side in connection.sockets():
            self._forget(side)

    def _end(self, connection: Connection) -> None:
        self._forget_sides(connection)
        for side in connection.sockets():
            side.close()
        self._connections.remove(connection)

    def _open_listener(self) -> None:
        if self._listener is not None:
            return
        listener = socket_for(self._place)
        try:
            if isinstance(self._place, str):
                with contextlib.suppress(FileNotFoundError):
                    Path(self._place).unlink()
            listener.bind(self._place)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        if not isinstance(self._place, str):
            host, port = listener.getsockname()[:2]
            self._place = (host, port)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def _close_listener(self) -> None:
        # The socket file stays: connecting to it is then refused, as after a crash.
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _set_half_open(self, side: Side | None) -> None:
        self._half_open = side
        for connection in self._connections[:]:
            if side is not None:
                self._forget_sides(connection)
                connection.keep_only(side)
            elif len(connection.sockets()) < 2:
                self._end(connection)

    def _drop(self) -> int:
        dropped = len(self._connections)
        for connection in self._connections[:]:
            for side in connection.sockets():
                if side.family != socket.AF_UNIX:
                    linger = struct.pack("ii", 1, 0)
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._end(connection)
        return dropped

    def _clear(self) -> None:
        self._faults = {Towards.NODE: Faults(), Towards.CLIENT: Faults()}
        self._set_half_open(None)
        self._open_listener()

    def _snapshot(self) -> ProxyStats:
        return ProxyStats(
            accepted=self._accepted,
            refused=self._refused,
            sides_open=sum(len(connection.sockets()) for connection in self._connections),
            to_node=dataclasses.replace(self._stats[Towards.NODE]),
            to_client=dataclasses.replace(self._stats[Towards.CLIENT]),
        )

    def _close_all(self) -> None:
        for connection in self._connections[:]:
            self._end(connection)
        self._close_listener()
        if isinstance(self._place, str):
            with contextlib.suppress(FileNotFoundError):
                Path(self._place).unlink()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
