"""The client listeners' sockets, bound before everything else that a process has to load.

A client that finds nobody at the port backs off, each time twice as long, so that what it notices of a restart is up to
twice what the restart takes. At a bound port it is connected by the kernel, its first request waits there, and is
answered as soon as anybody serves. Should that take longer than ``PATIENCE``, the sockets are closed (whoever waits is
reset, and looks elsewhere) and bound again later.

Nothing is loaded here that takes time.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

_BACKLOG = 512  # as wire.server.listener, which takes long to load, sets it once it serves
PATIENCE = 5.0  # seconds


class EarlySockets:
    """Bound sockets by (host, port). An address that cannot be bound now is left to whoever serves it, who can say why."""

    def __init__(self, addresses: Iterable[tuple[str, int]] = ()) -> None:
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        for host, port in addresses:
            bound = _bind(host, port) if port else None
            if bound is not None:
                self._sockets[host, port] = bound

    def holds(self, host: str, port: int) -> bool:
        return (host, port) in self._sockets

    def take(self, host: str, port: int) -> socket.socket | None:
        """The taker closes it."""
        return self._sockets.pop((host, port), None)

    def close(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()


def _bind(host: str, port: int) -> socket.socket | None:
    """None if that is not possible."""
    with contextlib.suppress(OSError):
        [(family, kind, protocol, _, address)] = set(
            # Names are not looked up: that may take long, and "localhost" is two addresses.
            socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
            )
        )
        bound = socket.socket(family, kind, protocol)
        try:
            # As asyncio does it: a restart is not to wait for connections of the process before.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except OSError:
            bound.close()
            raise
        return bound
    return None
