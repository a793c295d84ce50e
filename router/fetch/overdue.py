"""The last deadline of a fetch: its connection ends, rather than that the fetch stays unanswered.

Every wait inside a fetch ends by itself, before this one. If one does not, that is a bug; and everything behind it on the
connection would wait for as long as the client does, which is a minute with librdkafka (socket.timeout.ms). So the bug is
told of, and the client comes back on another connection.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from wire.errors import WireError
from wire.server.listener import Exchange

#: Seconds beyond the longest wait of the step that the fetch is at.
PATIENCE: Final = 15.0
#: A process that stood still finds all its timers due at once: the answer gets a chance before the verdict.
_CHANCE: Final = 1.0


class Answering(Protocol):
    """The one that works on the fetch."""

    def waits_for_client(self) -> bool:
        """Whether the answer waits behind others that the client asked for, for as long as it likes."""

    def state(self) -> str:
        """Of the fetch, in a few words."""


class AnswerDeadline:
    """Of the fetches of one connection, which are worked on one at a time."""

    __slots__ = ("_answering", "_chance_given", "_due", "_exchange", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, answering: Answering) -> None:
        self._loop = loop
        self._answering = answering
        self._exchange: Exchange | None = None
        self._due = 0.0
        self._chance_given = False
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, exchange: Exchange, seconds: float) -> None:
        """It is answered, or a step further, within this time. One timer serves many fetches."""
        self._exchange = exchange
        self._due = self._loop.time() + seconds + PATIENCE
        self._chance_given = False
        if self._timer is not None:
            if self._timer.when() <= self._due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def answered(self) -> None:
        self._exchange = None

    def close(self) -> None:
        self._exchange = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        exchange = self._exchange
        if exchange is None:
            return
        now = self._loop.time()
        if self._answering.waits_for_client():
            self._due, self._chance_given = now + PATIENCE, False
        elif now >= self._due:
            if self._chance_given:
                self._give_up(exchange)
                return
            self._due, self._chance_given = now + _CHANCE, True
        self._timer = self._loop.call_at(self._due, self._look)

    def _give_up(self, exchange: Exchange) -> None:
        error = WireError(
            f"a fetch was not answered in time, so its connection is closed; this is a bug: {self._answering.state()}",
            api="fetch",
            version=exchange.header.api_version,
            peer=exchange.connection.peer,
        )
        self._loop.call_exception_handler({"message": str(error)})
        exchange.connection.abort(error)  # whatever the exchange says of itself
