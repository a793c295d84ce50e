"""The listener side: accepts connections, counts them, and closes.

What one connection does is server_connection.py's; what a request means and how it is answered is the handler's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from wire.errors import LocalProtocolError, WireError
from wire.security import ListenerSecurity
from wire.server_connection import Exchange, ListenerInfo, ListenerLimits, ServerConnection
from wire.tls_acceptor import TlsAcceptor

BACKLOG = 512

__all__ = [
    "BACKLOG",
    "Exchange",
    "Listener",
    "ListenerInfo",
    "ListenerLimits",
    "ServerConnection",
    "start_listener",
]


class Listener:
    """An open listener; made by start_listener."""

    def __init__(
        self,
        info: ListenerInfo,
        handler: Callable[[Exchange], None],
        limits: ListenerLimits,
        alloc: Callable[[int], bytearray] | None = None,
    ) -> None:
        self.info = info
        self.handler = handler
        self.limits = limits
        self.alloc = alloc
        self.connections: set[ServerConnection] = set()
        self.closing = False
        #: Connections closed because what they sent was not the protocol (metric listener_protocol_errors).
        self.protocol_errors = 0
        #: Connections closed because there were max_connections already.
        self.refused_connections = 0
        self._server: asyncio.Server | TlsAcceptor | None = None
        # Set once the listener is closing and no exchange is open any more.
        self._quiet = asyncio.Event()
        # Set once, besides, no connection is left.
        self._empty = asyncio.Event()

    @property
    def port(self) -> int:
        if self._server is None or not self._server.sockets:
            raise LocalProtocolError("the listener is closed")
        return int(self._server.sockets[0].getsockname()[1])

    def arrived(self, connection: ServerConnection) -> WireError | None:
        """It is open; why it may not stay so."""
        if isinstance(self._server, TlsAcceptor):
            self._server.arrived(connection)
        self.connections.add(connection)
        if self.closing:
            return WireError("the listener is closing", peer=connection.peer)
        if len(self.connections) > self.limits.max_connections:
            self.refused_connections += 1
            return WireError("the listener has as many connections as it may have", peer=connection.peer)
        return None

    def forget(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        self.note_progress()

    def note_progress(self) -> None:
        """An exchange or a connection ended; what close() waits for."""
        if self.closing and not any(connection.open_exchanges for connection in self.connections):
            self._quiet.set()
            if not self.connections:
                self._empty.set()

    async def close(self, grace: float = 0.0) -> None:
        """Accept nothing more, give open exchanges `grace` seconds to be answered, then cut the rest."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        deadline = asyncio.get_running_loop().time() + grace
        self.note_progress()
        try:
            async with asyncio.timeout_at(deadline):
                await self._quiet.wait()
                for connection in list(self.connections):
                    connection.finish()
                await self._empty.wait()
        except TimeoutError:
            pass  # who is not answered by now sees the connection close
        for connection in list(self.connections):
            connection.abort()
        if self._server is not None:
            server, self._server = self._server, None
            await server.wait_closed()


async def start_listener(
    host: str,
    port: int,
    info: ListenerInfo,
    security: ListenerSecurity,
    handler: Callable[[Exchange], None],
    limits: ListenerLimits | None = None,
    *,
    bound: socket.socket | None = None,
    alloc: Callable[[int], bytearray] | None = None,
) -> Listener:
    """Listen on host:port (0: an ephemeral port); every request goes to `handler`, which must not block.

    `bound` is a socket that is bound there already; it is closed with the listener, and when this fails.
    `alloc` gives receive buffers for large requests, at least as long as asked for (FramePool.take); they are free
    when nobody holds a view of them any more.
    """
    listener = Listener(info, handler, limits or ListenerLimits(), alloc)
    try:
        context = security.ssl_context()
    except BaseException:
        if bound is not None:
            bound.close()
        raise
    address: dict[str, Any] = {"host": host, "port": port} if bound is None else {"sock": bound}
    server = await asyncio.get_running_loop().create_server(
        lambda: ServerConnection(listener), **address, backlog=BACKLOG, start_serving=context is None
    )
    accepting = server if context is None else _tls_acceptor(listener, context, server)
    listener._server = accepting  # noqa: SLF001 - its only maker
    return listener


def _tls_acceptor(listener: Listener, context: ssl.SSLContext, server: asyncio.Server) -> TlsAcceptor:
    """In the place of a server that is bound and does not serve yet: the loop knows best which addresses a host has."""
    sockets: list[socket.socket] = []
    try:
        for one in server.sockets:
            sockets.append(one.dup())
            sockets[-1].listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    finally:
        server.close()
    return TlsAcceptor(listener, context, sockets)
