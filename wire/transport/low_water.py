"""SO_RCVLOWAT: the event loop is woken only when enough of a large frame has arrived.

An answer of megabytes arrives in dozens of pieces. Each would cost a wake-up, two system calls and a turn of the
event loop, although nothing can be done before the last piece is there. So the kernel is told to keep them. It wakes
us all the same when the peer hangs up, when the receive window is full, and at half of net.ipv4.tcp_rmem's largest at
the latest (tcp_stream_is_readable and tcp_set_rcvlowat in Linux), so the wait always ends.

TLS connections do not use it: the bytes that a frame lacks are not the bytes that the socket lacks.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

#: Bytes. Less than this arrives in one or two reads and is not worth a system call.
LEAST: Final = 128 * 1024


class LowWater:
    """The low-water mark of one transport. Without support by the socket nothing changes."""

    __slots__ = ("_asked", "_socket")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        plain = transport.get_extra_info("sslcontext") is None
        self._socket: socket.socket | None = transport.get_extra_info("socket") if plain else None
        self._asked = 1

    def wait_for(self, missing: int) -> None:
        """Ask for no wake-up before `missing` bytes have arrived (0: wake for any).

        Call it after each read with the rest: it must never ask for more than the peer still has to send.
        """
        wanted = missing if missing >= LEAST else 1
        if wanted == self._asked or self._socket is None:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        except OSError:  # not every system has it, or the connection has gone
            self._socket = None
        self._asked = wanted
