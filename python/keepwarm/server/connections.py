"""Admin HTTP's connections: none is held for long, and none can keep others out.

uvicorn alone holds a connection that has sent no complete request for as long as its client likes,
and with a limit refuses all others meanwhile, an orchestrator's question after health included.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 64
EXCHANGE_S_MAX = 5.0


class Connection(H11Protocol):
    """One connection: it has a few seconds for each request and answer together.

    The oldest gives way where there are too many: a new one is always served.
    """

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins the first exchange."""
        super().connection_made(transport)
        self._allow()
        others = [other for other in self.connections if isinstance(other, Connection)]
        if len(others) > CONNECTIONS_MAX:
            min(others, key=Connection.ends).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends it."""
        if self._ends is not None:
            self._ends.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begins the next exchange."""
        self._allow()
        super().on_response_complete()

    def ends(self) -> float:
        """When it is closed at the latest, on the loop's clock."""
        return self._ends.when() if self._ends is not None else 0.0

    def abort(self) -> None:
        """Closes it now, whatever its client has not taken."""
        self.connections.discard(self)
        self.transport.abort()

    def _allow(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
        self._ends = self.loop.call_later(EXCHANGE_S_MAX, self.abort)


def local_only(app: ASGIApp) -> ASGIApp:
    """Answers only who asks for this machine by a loopback name.

    A browser asks for the name of the page that it shows: so no page of another machine, whose name
    was made to lead here, reads the node's figures.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_local(_host(scope)):
            refusal = PlainTextResponse("ask for 127.0.0.1 or localhost\n", status_code=421)
            await refusal(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


def _host(scope: Scope) -> str:
    headers: list[tuple[Any, Any]] = scope["headers"]
    return next((value.decode("latin-1") for name, value in headers if name == b"host"), "")


def is_local(host: str) -> bool:
    """Whether a Host header, with or without a port, names a loopback address."""
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[")).is_loopback
    except ValueError:
        return False
