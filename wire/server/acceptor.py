"""Accepting for a listener of clients: a connection counts from the moment it is accepted.

An event loop reports a connection to its protocol only after the TLS handshake. A peer that connects and sends nothing would
not be counted until the handshake times out, and only file descriptors would limit how many such peers there are. So sockets
are accepted here, and passed to the loop one by one. Without TLS an arrival takes one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from wire.server.accept_loop import AcceptLoop
from wire.server.connection import Owner, ServerConnection

# A peer that has sent nothing gets this fraction of the usual time.
_OF_THE_SILENT: Final = 8


class AcceptingOwner(Owner, Protocol):
    """The part of the listener that accepting needs."""

    connections: set[ServerConnection]

    def too_many(self, address: str, already: int, arriving: int = 0) -> str | None:
        """The reason to refuse another connection from this address; see Listener.too_many."""


class _Arrival:
    """A connection that was accepted and is not open yet."""

    __slots__ = ("address", "begun", "silent", "since", "sock", "task")

    def __init__(self, sock: socket.socket, address: str, since: float) -> None:
        self.address = address
        self.sock = sock
        self.since = since
        self.begun = False
        self.silent = True  # the peer has sent nothing
        self.task: asyncio.Task[None] | None = None


class Acceptor:
    """Accepts on bound, listening sockets, from the start to close()."""

    def __init__(
        self, owner: AcceptingOwner, context: ssl.SSLContext | None, sockets: Sequence[socket.socket]
    ) -> None:
        self._owner = owner
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[ServerConnection, _Arrival] = {}  # the oldest first
        self._ending: set[asyncio.Task[None]] = set()
        self._accepting = AcceptLoop(
            sockets,
            accepted=self._accepted,
            trouble=self._trouble,
            room=lambda: owner.limits.max_handshakes - len(self._handshakes),
            full=self._wait_for_room,
        )

    @property
    def port(self) -> int:
        return self._accepting.port

    @property
    def handshakes(self) -> int:
        return len(self._handshakes)

    def arrived(self, connection: ServerConnection) -> None:
        """The handshake is done: from now on the listener counts the connection."""
        self._handshakes.pop(connection, None)

    def close(self) -> None:
        """Accept nothing more, and give up handshakes that are under way."""
        self._accepting.close()
        for connection in list(self._handshakes):
            self._give_up(connection)

    async def wait_closed(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)

    # Accepting

    def _accepted(self, sock: socket.socket, address: str) -> None:
        why = self._owner.too_many(
            address,
            len(self._owner.connections) + len(self._handshakes),
            sum(one.address == address for one in self._handshakes.values()),
        )
        if why is None:
            self._begin(sock, address)
        else:
            self._owner.refuse(address, why)
            sock.close()

    def _trouble(self, error: OSError) -> None:
        self._loop.call_exception_handler(
            {"message": f"connections cannot be accepted: {error}", "exception": error}
        )

    def _wait_for_room(self) -> None:
        self._accepting.rest_until(self._due(self._first_to_go()), self._make_room)

    def _make_room(self) -> None:
        """Peers still wait: give up the handshake that is due, unless its peer has sent something meanwhile."""
        if self._handshakes:
            connection = self._first_to_go()
            if self._loop.time() < self._due(connection):
                self._wait_for_room()
                return
            handshake = self._handshakes[connection]
            self._owner.refuse(handshake.address, "its TLS handshake took too long while others waited")
            self._give_up(connection)
        self._accepting.resume()

    def _first_to_go(self) -> ServerConnection:
        """The oldest handshake whose peer has sent nothing, otherwise the oldest of all."""
        for connection, handshake in self._handshakes.items():
            if handshake.silent:
                return connection
        return next(iter(self._handshakes))

    def _due(self, connection: ServerConnection) -> float:
        """The time at which a handshake may be given up. A TLS client sends first, right after it has connected."""
        handshake, patience = self._handshakes[connection], self._owner.limits.handshake_patience
        return handshake.since + (patience / _OF_THE_SILENT if handshake.silent else patience)

    # Handshakes

    def _begin(self, sock: socket.socket, address: str) -> None:
        connection = ServerConnection(self._owner)
        handshake = self._handshakes[connection] = _Arrival(sock, address, self._loop.time())
        task = handshake.task = self._loop.create_task(self._shake_hands(connection, handshake))
        self._ending.add(task)
        task.add_done_callback(partial(self._ended, connection, handshake))

    async def _shake_hands(self, connection: ServerConnection, handshake: _Arrival) -> None:
        if self._context is not None:
            await self._first_bytes(handshake)
        handshake.silent = False
        handshake.begun = True  # from here on the event loop closes the socket
        await self._loop.connect_accepted_socket(
            lambda: connection,
            handshake.sock,
            ssl=self._context,
            ssl_handshake_timeout=None if self._context is None else self._owner.limits.tls_handshake_timeout,
        )

    async def _first_bytes(self, handshake: _Arrival) -> None:
        """Wait until the peer has sent something or hung up."""
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

    def _ended(self, connection: ServerConnection, handshake: _Arrival, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._handshakes.pop(connection, None)
        if not handshake.begun:
            handshake.sock.close()
        if not task.cancelled():
            error = task.exception()
            # An OSError, TLS errors included, concerns the peer, which sees it too. asyncio's servers do not log it either.
            if error is not None and not isinstance(error, OSError):
                self._loop.call_exception_handler(
                    {"message": "a TLS handshake failed", "exception": error, "task": task}
                )
        if self._accepting.resting and len(self._handshakes) < self._owner.limits.max_handshakes:
            self._accepting.resume()
