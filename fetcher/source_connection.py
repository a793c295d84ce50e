"""A connection to one source node that is opened anew whenever it has ended, until cancelled.

Not here: what is sent on it (source_fetcher.py), how a connection is opened and authenticated (``wire``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wire.backoff import Backoff
from wire.client.connection import Connection
from wire.errors import MalformedFrame, WireError
from wire.frames.types import Node

#: Of Fetch.
MIN_VERSION, MAX_VERSION = 12, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionUser:
    """The user of a connection, told of a new one with the version of Fetch to speak. `in_flight`: whether an answer
    is under way."""

    opened: Callable[[Connection, int], None]
    ended: Callable[[], None]
    failed: Callable[[WireError], None]
    in_flight: Callable[[], bool]


class SourceConnection:
    def __init__(
        self,
        node: Node,
        open_connection: Callable[[Node], Awaitable[Connection]],
        backoff: tuple[float, float],
        user: ConnectionUser,
    ) -> None:
        """`backoff`: the shortest and the longest pause between two connections, in seconds."""
        self._node = node
        self._open = open_connection
        self._backoff = Backoff(*backoff)
        self._user = user
        self.renewing = False
        """Nothing more is to be sent on this connection: another one takes its place when what is in flight has come."""

    async def run(self) -> None:
        """Keep a connection open until cancelled. Failures are reported and retried with a growing pause."""
        backoff = self._backoff
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                await self._run_connection()
            except WireError as error:
                self._user.failed(error)
            if clock() - started > 10 * backoff.longest:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _run_connection(self) -> None:
        connection = await self._open(self._node)
        try:
            version = connection.pick_version("fetch", max_version=MAX_VERSION)
            if version < MIN_VERSION:
                raise MalformedFrame(
                    "the source is too old: Fetch version 12 (Kafka 2.7) is the least",
                    api="fetch",
                    version=version,
                    peer=connection.peer,
                )
            self.renewing = False
            self._user.opened(connection, version)
            if await self._outlived(connection):
                return  # no failure: the next one is opened before the peer would cut this one off
            reason = connection.channel.closed_reason
            raise WireError(
                f"connection to the source ended: {reason or 'closed by the peer'}", peer=connection.peer
            )
        finally:
            connection.close()
            self._user.ended()

    async def _outlived(self, connection: Connection) -> bool:
        """Wait for the connection's end. True if a peer that limits sessions (connections.max.reauth.ms) was about to end
        this one, and nothing is under way.
        """
        until: float | None = None
        if connection.renew_at is not None:
            until = max(0.0, connection.renew_at - time.monotonic())
        try:
            async with asyncio.timeout(until):
                await connection.closed_event.wait()
        except TimeoutError:
            self.renewing = True
            if self._user.in_flight():
                await connection.closed_event.wait()  # by the answer, or by a deadline
        return self.renewing
