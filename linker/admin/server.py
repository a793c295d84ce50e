"""Serving the admin API inside the sidecar's own event loop: socket, start and stop. The app is api.py's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server

from wire.errors import LinkerError

if TYPE_CHECKING:
    from fastapi import FastAPI

START_TIMEOUT = 10.0
STOP_TIMEOUT = 5.0
HEADER_TIMEOUT = 10.0
MAX_CONNECTIONS = 64


class AdminServerError(LinkerError):
    """The admin API cannot be served."""


class _Server(Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the sidecar: it has partitions to hand over before this server may stop."""
        yield


class _Protocol(H11Protocol):
    """Closes connections whose next request does not come.

    uvicorn waits for headers for ever, and as many silent peers as MAX_CONNECTIONS would lock everybody out.
    """

    _watch: asyncio.TimerHandle | None = None
    _last_cycle: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch = self.loop.call_later(HEADER_TIMEOUT, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        """A cycle is a request with complete headers; the same answered one twice: none came since."""
        if (self.cycle is None or self.cycle.response_complete) and self.cycle is self._last_cycle:
            self.transport.close()
            return
        self._last_cycle = self.cycle
        self._watch = self.loop.call_later(HEADER_TIMEOUT, self._close_if_silent)


class AdminServer:
    """`await start()`, then `.port`; `await close()` lets requests under way finish within the grace time."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server = _Server(
            Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=MAX_CONNECTIONS,
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
