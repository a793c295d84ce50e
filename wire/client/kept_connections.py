"""Connections that are kept per place and purpose, and opened again after they died.

They are shared by all callers, so none of them owns one: closing it closes it for all. The attempt to open one is shared,
too, and a caller that gives up does not end it for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any

from wire.client.connection import Connection
from wire.errors import ConnectionLost
from wire.frames.types import format_address
from wire.together import retrieved

Open = Callable[[str, int], Awaitable[Connection]]


class KeptConnections:
    """`open_connection` has a deadline of its own; `closing` makes the error of callers after `close`."""

    def __init__(self, open_connection: Open, closing: Callable[[], ConnectionLost]) -> None:
        self._open = open_connection
        self._closing = closing
        self._connections: dict[tuple[Hashable, str], Connection] = {}
        self._opening: dict[tuple[Hashable, str], asyncio.Task[Connection]] = {}
        self._stale: list[Connection] = []  # replaced; closed when their last answer is there
        self.closed = False

    def connected(self, key: Hashable, host: str, port: int, purpose: str) -> Connection | None:
        """The kept connection; None if `to` would have to open one."""
        kept = self._connections.get((key, purpose))
        if self.closed or kept is None or kept.peer != format_address(host, port) or not _usable(kept):
            return None
        return kept

    def any_for(self, purpose: str) -> Connection | None:
        """A kept connection to any place."""
        return next((c for (_, kept), c in self._connections.items() if kept == purpose and _usable(c)), None)

    async def to(self, key: Hashable, host: str, port: int, purpose: str) -> Connection:
        """The kept connection, or a new one."""
        if self.closed:
            raise self._closing()
        kept = self.connected(key, host, port, purpose)
        if kept is not None:
            return kept
        place = (key, purpose)
        stale = self._connections.pop(place, None)
        if stale is not None:
            self._stale.append(stale)
        self._close_stale()
        opening = self._opening.get(place)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open_kept(place, host, port))
            self._opening[place] = opening
            # after all callers were cancelled an error is no bug to report
            opening.add_done_callback(retrieved)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # by close(), not by our caller's wish
                raise self._closing() from None
            raise

    def retire_others(self, key: Hashable, purpose: str) -> None:
        """Use the connections of this purpose to other places no more: each is closed when its last answer is there."""
        for place in [(k, p) for k, p in self._connections if p == purpose and k != key]:
            self._stale.append(self._connections.pop(place))
        self._close_stale()

    def end_others(self, key: Hashable, purpose: str) -> None:
        """Close the connections of this purpose to other places at once: their answers do not count any more."""
        for place in [(k, p) for k, p in self._connections if p == purpose and k != key]:
            self._connections.pop(place).close()

    async def close(self, others: Iterable[asyncio.Task[Any]] = ()) -> None:
        """Close every connection, and cancel attempts to connect and the tasks in `others`."""
        self.closed = True
        tasks = [*others, *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._connections = [*self._connections.values(), *self._stale], {}
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed_event.wait()

    def _close_stale(self) -> None:
        for connection in [one for one in self._stale if one.closed or not one.channel.in_flight]:
            connection.close()
            self._stale.remove(connection)

    async def _open_kept(self, place: tuple[Hashable, str], host: str, port: int) -> Connection:
        try:
            connection = await self._open(host, port)
            self._connections[place] = connection
            return connection
        finally:
            self._opening.pop(place, None)


def _usable(connection: Connection) -> bool:
    # A peer that limits sessions cuts us off when one expires; a new connection is made a little before.
    return not connection.closed and not connection.ageing
