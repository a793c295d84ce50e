"""Serving the admin API inside the sidecar's own event loop: socket, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server

from admin.limits import answer
from admin.operation import PROBES
from wire.errors import LinkerError
from wire.server.rate_limited_log import Sparing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

START_TIMEOUT = 10.0
STOP_TIMEOUT = 5.0
HEADER_TIMEOUT = 10.0
MAX_CONNECTIONS = 96
#: Of other paths than the probes', under way at once: so there is always a connection that can be given up for a new one.
MAX_REQUESTS = 64
_PROBE_PATHS = frozenset(probe.path for probe in PROBES)


_GARBAGE = Sparing("Invalid HTTP request")


class AdminServerError(LinkerError):
    """The admin API cannot be served."""


class _Server(Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn must not take signals: the sidecar has partitions to hand over before this server may stop."""
        yield


class _Protocol(H11Protocol):
    """Closes connections whose next request does not come.

    uvicorn waits for headers for ever. At the limit of connections a new one is not refused: a connection that waits for
    its peer is closed in its place, of the address that has most of them. So a peer that only holds connections open keeps
    neither others nor the probes out.
    """

    arrived = 0.0
    _watch: asyncio.TimerHandle | None = None
    _last_cycle: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.arrived = self.loop.time()
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()
        self._watch = self.loop.call_later(HEADER_TIMEOUT, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        waiting = [
            one for one in self.connections if isinstance(one, _Protocol) and one is not self and one.waits
        ]
        if not waiting:
            self.transport.abort()
            return
        held = Counter(one.host for one in waiting)
        given_up = min(waiting, key=lambda one: (-held[one.host], one.arrived))
        given_up.connections.discard(given_up)
        given_up.transport.abort()

    @property
    def host(self) -> str:
        return "" if self.client is None else self.client[0]

    @property
    def waits(self) -> bool:
        """Whether it waits for its peer: for a request, or for the peer to take the answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def _close_if_silent(self) -> None:
        """Close the connection if no request came since the last look. A cycle is a request with complete headers: the same
        answered cycle as last time means that none came."""
        if (self.cycle is None or self.cycle.response_complete) and self.cycle is self._last_cycle:
            self.transport.close()
            return
        self._last_cycle = self.cycle
        self._watch = self.loop.call_later(HEADER_TIMEOUT, self._close_if_silent)


class _Turns:
    """Refuses requests beyond MAX_REQUESTS at once, the probes aside. An answer that waits for its peer to take it does not
    count: the peer may never take it, and its connection gives way to a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBE_PATHS:
            await self._app(scope, receive, send)
            return
        if self._under_way >= MAX_REQUESTS:
            await answer(send, 503, f"{MAX_REQUESTS} requests are under way; try again")
            return

        async def give(message: Message) -> None:
            self._under_way -= 1
            try:
                await send(message)
            finally:
                self._under_way += 1

        self._under_way += 1
        try:
            await self._app(scope, receive, give)
        finally:
            self._under_way -= 1


class AdminServer:
    """`await start()`, then `.port`; `await close()` lets requests under way finish within the grace time."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server = _Server(
            Config(
                _Turns(app),
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=5,
            )
        )

    @property
    def port(self) -> int:
        if self._socket is None:
            raise AdminServerError("the admin API is not started")
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        try:
            self._socket = _listen(self._host, self._port)
        except OSError as error:
            raise AdminServerError(
                f"admin.listen: cannot bind to {self._host}:{self._port}: {error.strerror or error}"
            ) from error
        logging.getLogger("uvicorn.error").addFilter(_GARBAGE)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin-api")
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not self._server.started:
                    if self._task.done():
                        raise AdminServerError("the admin API stopped while starting")
                    await asyncio.sleep(0.01)
        except BaseException:
            await self.close(grace=0.0)
            raise

    async def close(self, grace: float = 5.0) -> None:
        """Idempotent. Requests that outlast the grace time are cancelled."""
        task, self._task = self._task, None
        if task is not None:
            # uvicorn passes it to wait_for() at shutdown and cancels the requests that are left then.
            self._server.config.timeout_graceful_shutdown = max(1, round(grace))
            self._server.should_exit = True
            _, pending = await asyncio.wait([task], timeout=grace + STOP_TIMEOUT)
            if pending:
                self._server.force_exit = True
                task.cancel()
                await asyncio.wait([task], timeout=STOP_TIMEOUT)
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _listen(host: str, port: int) -> socket.socket:
    # Not create_server(): that leaves the protocol at 0, and asyncio sets TCP_NODELAY only where it reads
    # IPPROTO_TCP. Without it each answer waits for the peer's delayed acknowledgement.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening
