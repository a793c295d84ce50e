"""The two times after which a connection is closed: no login or request at first, nothing going on later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from wire.errors import WireError
from wire.server.limits import ListenerLimits


class Watched(Protocol):
    """The parts of a connection that decide whether it may stay."""

    peer: str
    address: str
    closed: bool
    write_paused: bool

    @property
    def at_rest(self) -> bool: ...

    def abort(self, reason: BaseException | None = None) -> None: ...


class Patience:
    """Two timers, from `start` to `stop`.

    The connection writes the public fields itself: a call per request would cost more than all that is done here. The
    connection is passed with each timer and not kept, so that no reference cycle holds the buffers of a closed one.
    """

    __slots__ = (
        "_idle_timer",
        "_limits",
        "_refuse",
        "_stranger_timer",
        "_unsent",
        "asked",
        "known",
        "last_read",
        "last_request",
    )

    def __init__(self, limits: ListenerLimits, refuse: Callable[[str, str], None], *, known: bool) -> None:
        self._limits = limits
        self._refuse = refuse
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stranger_timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes that waited for the peer to read at the last check
        #: The peer has logged in, or need not.
        self.known = known
        #: A request has come, ever.
        self.asked = False
        self.last_request = 0.0
        #: The time at which the peer was last seen to have read some of its answers.
        self.last_read = 0.0

    def start(self, connection: Watched, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self.last_request = loop.time()
        self._idle_timer = loop.call_later(self._limits.idle_timeout, self._check_idle, connection, transport)
        self._stranger_timer = loop.call_later(
            self._limits.stranger_timeout, self._check_stranger, connection
        )

    def stop(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._stranger_timer is not None:
            self._stranger_timer.cancel()
            self._stranger_timer = None

    def _check_stranger(self, connection: Watched) -> None:
        self._stranger_timer = None
        if connection.closed or (self.known and self.asked):
            return
        patience = self._limits.stranger_timeout
        what = "no request" if self.known else "no login"
        self._refuse(connection.address, f"{what} within {patience:g} s")
        connection.abort(WireError(f"{what} within {patience:g} s", peer=connection.peer))

    def _check_idle(self, connection: Watched, transport: asyncio.Transport) -> None:
        self._idle_timer = None
        if connection.closed:
            return
        loop = asyncio.get_running_loop()
        now, patience = loop.time(), self._limits.idle_timeout
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.last_read = unsent, now
        due = max(self.last_request, self.last_read) + patience
        if now >= due:
            if connection.write_paused:
                # Requests that are open or waiting could not be answered either: their answers queue behind these bytes.
                why = f"nothing was read of {unsent} bytes for {patience:g} s"
                self._refuse(connection.address, why)
                connection.abort(WireError(why, peer=connection.peer))
                return
            if connection.at_rest:
                connection.abort(WireError(f"idle for {patience:g} s", peer=connection.peer))
                return
        self._idle_timer = loop.call_at(max(due, now + patience / 4), self._check_idle, connection, transport)
