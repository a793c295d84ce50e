"""A listener: accepts connections, counts them, and closes them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from wire.client.security import ListenerSecurity
from wire.errors import LocalProtocolError, MalformedFrame, WireError
from wire.server.acceptor import Acceptor
from wire.server.connection import Exchange, ServerConnection
from wire.server.limits import ListenerInfo, ListenerLimits
from wire.server.partial_frames import PartialFrames
from wire.server.rate_limited_log import Sparing

log = logging.getLogger(__name__)

BACKLOG = 512
# Seconds between two lines in the log about connections that are refused.
_TELL_AGAIN: Final = 60.0
_MOST_BROKERS: Final = 1000

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
        alloc: Callable[[int], bytearray] | None,
        partial: PartialFrames,
    ) -> None:
        self.info = info
        self.handler = handler
        self.limits = limits
        self.alloc = alloc
        self.connections: set[ServerConnection] = set()
        self.closing = False
        #: Connections closed because they sent malformed bytes (metric listener_protocol_errors).
        self.protocol_errors = 0
        self._sparing = Sparing()
        #: Connections closed because there were too many, of one address or in all, or because the peer sent or read
        #: nothing.
        self.refused_connections = 0
        #: The memory of requests that have not arrived in full.
        self.partial = partial
        self._by_address: Counter[str] = Counter()
        self._brokers: set[str] = set()
        self._told_of_refusals = float("-inf")
        self._untold = 0
        self._server: Acceptor | None = None
        # Set once the listener is closing and no exchange is open any more.
        self._quiet = asyncio.Event()
        # Set once, besides, no connection is left.
        self._empty = asyncio.Event()

    @property
    def port(self) -> int:
        if self._server is None or self.closing:
            raise LocalProtocolError("the listener is closed")
        return self._server.port

    def arrived(self, connection: ServerConnection) -> WireError | None:
        """The connection is open. Returns the reason if it may not stay."""
        if self._server is not None:
            self._server.arrived(connection)
        why = None if self.closing else self.too_many(connection.address, len(self.connections))
        self.connections.add(connection)
        self._by_address[connection.address] += 1
        if self.closing:
            return WireError("the listener is closing", peer=connection.peer)
        if why is not None:
            self.refuse(connection.address, why)
            return WireError(why, peer=connection.peer)
        return None

    def too_many(self, address: str, already: int, arriving: int = 0) -> str | None:
        """The reason to refuse another connection from this address, None if it is taken.

        `already`: connections of the listener, handshakes included; `arriving`: handshakes from this address.
        """
        limits = self.limits
        if already >= limits.max_connections:
            return f"the listener has {already} connections, as many as it may have"
        if address in self._brokers:
            return None
        kept = min(limits.kept_for_brokers, limits.max_connections // 10)
        if self._brokers and already >= limits.max_connections - kept:
            return f"the listener has {already} connections, and the last {kept} are for the target's brokers"
        if self._by_address[address] + arriving >= limits.max_per_address:
            return f"{limits.max_per_address} connections are from this address, as many as may be"
        return None

    def know_broker(self, address: str) -> None:
        """A broker of the target connects from this address."""
        if len(self._brokers) < _MOST_BROKERS:
            self._brokers.add(address)

    def refuse(self, address: str, why: str) -> None:
        """Count a connection that was refused or ended, and log it now and then."""
        self.refused_connections += 1
        self._untold += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_of_refusals >= _TELL_AGAIN:
            log.warning(
                "listener %s: a connection from %s was closed: %s (%d closed like that since this was last told)",
                self.info.name,
                address,
                why,
                self._untold,
            )
            self._told_of_refusals, self._untold = now, 0

    def garbled(self, peer: str, error: MalformedFrame) -> None:
        """As `refuse`, for a connection that sent malformed bytes."""
        self.protocol_errors += 1
        more = self._sparing.spare()
        if more is not None:
            log.warning(
                "listener %s: the connection of %s was closed: %s%s",
                self.info.name,
                peer,
                error.message,
                more,
            )

    def forget(self, connection: ServerConnection) -> None:
        """The connection is closed."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]
        self.note_progress()

    def note_progress(self) -> None:
        """An exchange or a connection ended; close() waits for that."""
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
            pass  # requests that are still open see the connection close
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
    partial: PartialFrames | None = None,
) -> Listener:
    """Listen on host:port (0: an ephemeral port); every request goes to `handler`, which must not block.

    `bound`: a socket that is bound there already. It is closed with the listener, and when this call fails. `alloc`:
    gives receive buffers for large requests, at least as long as asked for (FramePool.take). A buffer is free again
    when no view of it is left. `partial`: the budget of requests that have not arrived in full; listeners may share
    it.
    """
    listener = Listener(info, handler, limits or ListenerLimits(), alloc, partial or PartialFrames())
    try:
        context = security.ssl_context()
    except BaseException:
        if bound is not None:
            bound.close()
        raise
    address: dict[str, Any] = {"host": host, "port": port} if bound is None else {"sock": bound}
    server = await asyncio.get_running_loop().create_server(
        lambda: ServerConnection(listener), **address, backlog=BACKLOG, start_serving=False
    )
    listener._server = Acceptor(listener, context, _taken_over(server))  # noqa: SLF001 - its only maker
    return listener


def _taken_over(server: asyncio.Server) -> list[socket.socket]:
    """The sockets of a server that is bound but does not serve yet: the event loop has resolved the host."""
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
    return sockets
