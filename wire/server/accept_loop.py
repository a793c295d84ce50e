"""The one accept loop of all listeners: it accepts on bound sockets as long as its owner has room.

The event loop's own servers accept whatever comes, so nothing could count a connection before it is open.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

# Seconds without accepting after the system has refused a socket (no file descriptors left); as asyncio's own.
_ACCEPT_RETRY: Final = 1.0
# Accepted in one turn of the event loop, so that a crowd of new peers does not delay the others.
AT_ONCE: Final = 64


class AcceptLoop:
    """Accepts on listening sockets, from the start to close().

    `accepted` takes a socket and the peer's host. `room` is asked how many more may be accepted: if none, the loop rests
    until `resume`, and `full` is called. `trouble` hears of an error of the system, after which it tries again by itself.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        accepted: Callable[[socket.socket, str], None],
        trouble: Callable[[OSError], None],
        room: Callable[[], int] = lambda: AT_ONCE,
        full: Callable[[], None] = lambda: None,
    ) -> None:
        self.sockets: Sequence[socket.socket] = tuple(sockets)
        self._accepted = accepted
        self._trouble = trouble
        self._room = room
        self._full = full
        self._loop = asyncio.get_running_loop()
        self._accepting = False
        self._again: asyncio.TimerHandle | None = None
        for sock in self.sockets:
            sock.setblocking(False)
        self.resume()

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    @property
    def resting(self) -> bool:
        """Whether it waits for room, or for the system."""
        return self._again is not None

    def close(self) -> None:
        """Accept nothing more."""
        self._pause()
        sockets, self.sockets = self.sockets, ()
        for sock in sockets:
            sock.close()

    def rest_until(self, when: float, then: Callable[[], None]) -> None:
        """Accept nothing before `then` is called, in the event loop's time."""
        self._pause()
        self._again = self._loop.call_at(when, then)

    def resume(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._accepting:
            self._accepting = True
            for sock in self.sockets:
                self._loop.add_reader(sock, self._ready, sock)

    def _pause(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._accepting:
            self._accepting = False
            for sock in self.sockets:
                self._loop.remove_reader(sock)

    def _ready(self, listening: socket.socket) -> None:
        """A peer waits to be accepted."""
        room = self._room()
        if room <= 0:
            self._full()
            return
        for _ in range(min(AT_ONCE, room)):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.rest_until(self._loop.time() + _ACCEPT_RETRY, self.resume)
                self._trouble(error)
                return
            sock.setblocking(False)
            self._accepted(sock, address[0])
