"""How much must have arrived before the event loop is woken for it: SO_RCVLOWAT on a socket that receives.

An answer of megabytes arrives in dozens of pieces, each of them worth a wake-up, two system calls and a turn of the
event loop, and nothing can be done with any of them before the last one is there. So the kernel is told to keep them.
It wakes us all the same when the peer hangs up, when the receive window is full, and at half of net.ipv4.tcp_rmem's
largest at the latest (tcp_stream_is_readable and tcp_set_rcvlowat in Linux), so nobody waits for what cannot come.

Not here: what a frame is (framing.py). Not for TLS: what is missing there is not counted in the socket's bytes.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

#: Less than this is not worth asking the kernel: it is there in one or two reads. Bytes.
LEAST: Final = 128 * 1024


class LowWater:
    """Of one transport. Where the socket cannot do it, everything arrives as before."""

    __slots__ = ("_asked", "_socket")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        plain = transport.get_extra_info("sslcontext") is None
        self._socket: socket.socket | None = transport.get_extra_info("socket") if plain else None
        self._asked = 1

    def wait_for(self, missing: int) -> None:
        """No wake-up until `missing` bytes are there (0: any will do). To be called after each read, with the rest:
        what is asked for may never be more than the peer still has to send."""
        wanted = missing if missing >= LEAST else 1
        if wanted == self._asked or self._socket is None:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        except OSError:  # not every system has it, or the connection has gone
            self._socket = None
        self._asked = wanted
