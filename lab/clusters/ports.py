"""TCP ports of 127.0.0.1 that stay ours, also while the node that uses them is down."""

from __future__ import annotations

import socket
from typing import Self


class PortReservation:
    """A port that nobody else is given, although nothing listens on it yet.

    The socket is bound with SO_REUSEADDR and never listens: the kernel then gives the port to no `bind(0)`
    and to no outgoing connection, while a JVM, which sets SO_REUSEADDR too, can still bind and listen on it.
    Asking for a free port and closing it again would leave it to whoever comes first, and leave a killed
    broker's port to a client.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", 0))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back to the kernel."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()
