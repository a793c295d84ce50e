"""Accepting on TLS listeners: a connection counts from the moment it is accepted.

An event loop tells a protocol of its connection when the TLS handshake is done. Whoever connects and says nothing would
be counted nowhere until the handshake's time is over, and only file descriptors would limit how many do. So the sockets
are accepted here, and given to the loop one by one. Not here: what a connection does (connection.py).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from wire.server.connection import Owner, ServerConnection

# Seconds without accepting after the system has refused a socket (no file descriptors left); as asyncio's own.
_ACCEPT_RETRY: Final = 1.0
# By how much shorter than for others the patience is with those who say nothing.
_OF_THE_SILENT: Final = 8
# Accepted in one turn of the event loop: who connects in crowds does not hold up the others.
_AT_ONCE: Final = 64


class TlsOwner(Owner, Protocol):
    """The listener, as far as accepting is concerned."""

    connections: set[ServerConnection]

    def too_many(self, address: str, already: int, arriving: int = 0) -> str | None:
        """Why another connection from there is not taken, besides so many, and so many from there that are not open yet."""


class _Handshake:
    """A connection that was accepted and is not open yet."""

    __slots__ = ("address", "begun", "silent", "since", "sock", "task")

    def __init__(self, sock: socket.socket, address: str, since: float) -> None:
        self.address = address
        self.sock = sock
        self.since = since
        self.begun = False
        self.silent = True  # nothing has come of it
        self.task: asyncio.Task[None] | None = None


class TlsAcceptor:
    """Accepts on sockets that are bound and listen; from the start to close()."""

    def __init__(self, owner: TlsOwner, context: ssl.SSLContext, sockets: Sequence[socket.socket]) -> None:
        self._owner = owner
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.sockets: Sequence[socket.socket] = tuple(sockets)
        self._handshakes: dict[ServerConnection, _Handshake] = {}  # the oldest first
        self._ending: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._again: asyncio.TimerHandle | None = None
        for sock in self.sockets:
            sock.setblocking(False)
        self._resume()

    @property
    def handshakes(self) -> int:
        return len(self._handshakes)

    def arrived(self, connection: ServerConnection) -> None:
        """Its handshake is done: the listener counts it."""
        self._handshakes.pop(connection, None)

    def close(self) -> None:
        """Accept nothing more, and give up what is not open yet."""
        self._pause()
        sockets, self.sockets = self.sockets, ()
        for sock in sockets:
            sock.close()
        for connection in list(self._handshakes):
            self._give_up(connection)

    async def wait_closed(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)

    # Accepting

    def _ready(self, listening: socket.socket) -> None:
        """Somebody waits to be accepted."""
        limits = self._owner.limits
        if len(self._handshakes) >= limits.max_handshakes:
            self._pause()
            self._wait_for_room()
            return
        for _ in range(min(_AT_ONCE, limits.max_handshakes - len(self._handshakes))):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause()
                self._again = self._loop.call_later(_ACCEPT_RETRY, self._resume)
                self._loop.call_exception_handler(
                    {"message": f"connections cannot be accepted: {error}", "exception": error}
                )
                return
            why = self._owner.too_many(
                address[0],
                len(self._owner.connections) + len(self._handshakes),
                sum(one.address == address[0] for one in self._handshakes.values()),
            )
            if why is None:
                self._begin(sock, address[0])
            else:
                self._owner.refuse(address[0], why)
                sock.close()

    def _wait_for_room(self) -> None:
        self._again = self._loop.call_at(self._due(self._first_to_go()), self._make_room)

    def _make_room(self) -> None:
        """Somebody still waits, and the first to go has had its time, unless it has spoken meanwhile."""
        if self._handshakes:
            connection = self._first_to_go()
            if self._loop.time() < self._due(connection):
                self._wait_for_room()
                return
            handshake = self._handshakes[connection]
            self._owner.refuse(handshake.address, "its TLS handshake took too long while others waited")
            self._give_up(connection)
        self._resume()

    def _first_to_go(self) -> ServerConnection:
        """Of those who have said nothing the oldest, else of all."""
        for connection, handshake in self._handshakes.items():
            if handshake.silent:
                return connection
        return next(iter(self._handshakes))

    def _due(self, connection: ServerConnection) -> float:
        """A client speaks first, in the moment in which it is connected."""
        handshake, patience = self._handshakes[connection], self._owner.limits.handshake_patience
        return handshake.since + (patience / _OF_THE_SILENT if handshake.silent else patience)

    def _pause(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._accepting:
            self._accepting = False
            for sock in self.sockets:
                self._loop.remove_reader(sock)

    def _resume(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._accepting:
            self._accepting = True
            for sock in self.sockets:
                self._loop.add_reader(sock, self._ready, sock)

    # Handshakes

    def _begin(self, sock: socket.socket, address: str) -> None:
        connection = ServerConnection(self._owner)
        handshake = self._handshakes[connection] = _Handshake(sock, address, self._loop.time())
        task = handshake.task = self._loop.create_task(self._shake_hands(connection, handshake))
        self._ending.add(task)
        task.add_done_callback(partial(self._ended, connection, handshake))

    async def _shake_hands(self, connection: ServerConnection, handshake: _Handshake) -> None:
        await self._first_bytes(handshake)
        handshake.silent = False
        handshake.begun = True  # from here on the event loop closes the socket
        await self._loop.connect_accepted_socket(
            lambda: connection,
            handshake.sock,
            ssl=self._context,
            ssl_handshake_timeout=self._owner.limits.tls_handshake_timeout,
        )

    async def _first_bytes(self, handshake: _Handshake) -> None:
        """Until the peer has said something, or hung up."""
        spoken = asyncio.Event()
        self._loop.add_reader(handshake.sock, spoken.set)
        try:
            async with asyncio.timeout(self._owner.limits.tls_handshake_timeout):
                await spoken.wait()
        finally:
            self._loop.remove_reader(handshake.sock)

    def _give_up(self, connection: ServerConnection) -> None:
        handshake = self._handshakes.pop(connection)
        if handshake.task is not None:
            handshake.task.cancel()

    def _ended(self, connection: ServerConnection, handshake: _Handshake, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._handshakes.pop(connection, None)
        if not handshake.begun:
            handshake.sock.close()
        if not task.cancelled():
            error = task.exception()
            # OSError, TLS's included, is the peer's trouble, and the peer is told. asyncio's servers are as quiet.
            if error is not None and not isinstance(error, OSError):
                self._loop.call_exception_handler(
                    {"message": "a TLS handshake failed", "exception": error, "task": task}
                )
        if self._again is not None and len(self._handshakes) < self._owner.limits.max_handshakes:
            self._resume()
