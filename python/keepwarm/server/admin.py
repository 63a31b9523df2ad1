"""Admin HTTP, on loopback: health, readiness, status, metrics. It reads; it changes nothing."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keepwarm.config import Admin
from keepwarm.errors import NodeError
from keepwarm.server import metrics
from keepwarm.server.connections import CONNECTIONS_MAX, Connection, local_only
from keepwarm.server.log import say

STOP_S_MAX = 5.0


class Node(metrics.Source, Protocol):
    """What the pages are about."""

    @property
    def state(self) -> str: ...
    def status(self) -> dict[str, Any]: ...


def app(node: Node) -> Starlette:
    """The pages.

    GET /v1/health   200 while the process answers
    GET /v1/ready    200 while the node takes calls, 503 while it starts or drains
    GET /v1/status   what it runs with and all its figures, as JSON
    GET /metrics     Prometheus' text format
    """

    async def health(_: Request) -> Response:
        return JSONResponse({"state": node.state})

    async def ready(_: Request) -> Response:
        return JSONResponse({"state": node.state}, status_code=200 if node.ready else 503)

    async def status(_: Request) -> Response:
        return JSONResponse(node.status())

    async def page(_: Request) -> Response:
        return Response(metrics.page(node), media_type=CONTENT_TYPE_LATEST)

    pages: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/health": health,
        "/v1/ready": ready,
        "/v1/status": status,
        "/metrics": page,
    }
    return Starlette(routes=[Route(path, call) for path, call in pages.items()])


def bind(address: Admin) -> socket.socket:
    """The listening socket; taken before anything large is allocated, so that it fails early."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(CONNECTIONS_MAX)
    except OSError as error:
        listening.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
        raise NodeError(
            f"admin address {address} {why}: give another --admin host:port, or --admin off"
        ) from None
    return listening


class Told(logging.Handler):
    """What the HTTP server complains about, in the node's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line of it."""
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage().strip()
        say("admin_error", {"reason": f"{text}: {error!r}" if error is not None else text})


class AdminServer:
    """Serves the pages from a thread of its own."""

    def __init__(self, node: Node, address: Admin) -> None:
        self._socket = bind(address)
        host, port = self._socket.getsockname()[:2]
        self.address = Admin(host, port)
        config = uvicorn.Config(
            local_only(app(node)),
            log_level="warning",
            log_config=None,
            access_log=False,
            lifespan="off",
            http=Connection,
            timeout_graceful_shutdown=1,
        )
        complaints = logging.getLogger("uvicorn.error")
        complaints.handlers, complaints.propagate = [Told(logging.WARNING)], False
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="keepwarm-admin", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._server.should_exit = True
        self._thread.join(STOP_S_MAX)
        self._socket.close()
