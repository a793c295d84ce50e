"""Writes that are gathered while one read is handled: one system call per connection, not one per request.

A read brings several requests of a client, or several answers of a source, and each of them is passed on at once. Between
`with gathered_writes():` and its end the buffers wait in their `Writer`, in order. Nothing waits for a timer or for more
data: the end comes when the bytes of the read are used up. Large buffers are sent in pieces, one in each turn of the event
loop, while clients would have to wait for them (pieces.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from wire.frames.pieces import PIECE, in_pieces
from wire.frames.types import Buffer

#: Bytes. A writer that holds this much sends at once, so that the peer has work meanwhile.
GATHER_MAX: Final = 256 * 1024


class _Gathering(threading.local):
    """The writers of one thread, which runs one event loop. May be entered recursively."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Writer] = []

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_error: object) -> None:
        self.depth -= 1
        if self.depth == 0 and self.waiting:
            waiting, self.waiting = self.waiting, []
            _flush(waiting)


def _flush(waiting: list[Writer]) -> None:
    try:
        while waiting:
            waiting.pop()._send_gathered()  # noqa: SLF001 - one mechanism
    finally:
        if waiting:
            _flush(waiting)  # an error of one connection must not stop the others


_gathering = _Gathering()


def gathered_writes() -> _Gathering:
    """`with gathered_writes():` around synchronous work; its writes are sent at the end, error or not."""
    return _gathering


class Writer:
    """Writes to one transport."""

    __slots__ = ("_behind", "_buffers", "_rest", "_size", "_transport", "drained")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._buffers: list[Buffer] = []
        self._size = 0
        self._rest: deque[Buffer] = deque()  # the rest of a write in pieces, and later writes
        self._behind = 0  # bytes of those later writes
        #: Called when the last piece has been sent.
        self.drained: Callable[[], None] | None = None

    @property
    def pending(self) -> int:
        """Bytes that were not yet passed to the transport."""
        return self._size + sum(map(len, self._rest)) if self._rest else self._size

    def send_gathered(self) -> None:
        """Send what is gathered now: the caller makes more only after that has left."""
        self._send_gathered()

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send now, or at the end of the gathering that is open. The buffers must not change until they have left."""
        if not _gathering.depth:
            if self._buffers:  # its turn at the end of a gathering is yet to come, and these come behind them
                self._send_gathered()
            self._send(buffers, sum(map(len, buffers)))
            return
        if not self._buffers:
            _gathering.waiting.append(self)
        self._buffers += buffers
        for buffer in buffers:
            self._size += len(buffer)
        if self._size >= GATHER_MAX:
            self._send_gathered()

    def flush(self) -> None:
        """Send everything now."""
        self._send_gathered()
        if self._rest:
            rest, self._rest, self._behind = self._rest, deque(), 0
            self._transport.writelines(list(rest))
            if self.drained is not None:
                self.drained()

    def _send_gathered(self) -> None:
        if self._buffers:
            buffers, size, self._buffers, self._size = self._buffers, self._size, [], 0
            self._send(buffers, size)

    def _send(self, buffers: Sequence[Buffer], size: int) -> None:
        if self._rest:
            self._rest += buffers
            self._behind += size
            if self._behind >= 2 * PIECE:
                self.flush()  # so that the transport sees how much waits and can pause the caller
        elif size >= 2 * PIECE and in_pieces(asyncio.get_running_loop().time()):
            self._rest += buffers
            self._send_piece()
        elif len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def _send_piece(self) -> None:
        """Send one piece, the next one in the next turn; everything when no client waits any more."""
        rest = self._rest
        if self._transport.is_closing():
            rest.clear()
        if not rest:
            self._behind = 0
            return
        loop = asyncio.get_running_loop()
        if not in_pieces(loop.time()):
            self.flush()
            return
        piece: list[Buffer] = []
        room = PIECE
        while rest and room:
            buffer = rest.popleft()
            if len(buffer) > room:
                view = memoryview(buffer)
                rest.appendleft(view[room:])
                buffer = view[:room]
            piece.append(buffer)
            room -= len(buffer)
        self._transport.writelines(piece)
        if rest:
            loop.call_soon(self._send_piece)
        else:
            self._behind = 0
            if self.drained is not None:
                self.drained()
