"""When a source fetcher sends its next request: with the next turn of the event loop, or after a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class NextSend:
    """At most one call of `send` is ahead. Whether a request goes out then, and how soon it may, is decided by `send`."""

    __slots__ = ("_loop", "_put_off", "_scheduled", "_send", "_stopped")

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._scheduled = False
        self._put_off: asyncio.TimerHandle | None = None
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    def soon(self) -> None:
        """With the next turn of the loop, unless a call is ahead already, delayed or not."""
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._fire)

    def put_off(self, delay: float) -> None:
        if self._put_off is not None:
            self._put_off.cancel()
        self._scheduled = True
        self._put_off = self._loop.call_later(delay, self._fire)

    def at_once(self) -> None:
        """The reason for the delay is gone: the link's rate, or a replica, holds nobody back any more."""
        if self._put_off is not None:
            self._forget_timer()
            self._scheduled = False
            self.soon()

    def stop(self) -> None:
        self._stopped = True

    def _fire(self) -> None:
        self._scheduled = False
        self._forget_timer()
        self._send()

    def _forget_timer(self) -> None:
        if self._put_off is not None:
            self._put_off.cancel()
            self._put_off = None
