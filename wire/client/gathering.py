"""What is written while one read is worked on leaves together: one system call per connection, not one per request.

A read brings several requests of a client, or several answers of a source. Each of them is passed on at once, as it
is taken apart; between `with gathered_writes():` and its end the buffers wait in their `Writer`, in order. Nothing
waits for time or for company: the end comes when the bytes that were read are used up. What is large leaves in pieces,
one in each turn of the event loop, where clients would have to wait for it (pieces.py).

Lives here: `Writer`, the order of buffers. Not here: requests and answers (channel.py, server.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from wire.frames.pieces import PIECE, in_pieces
from wire.frames.types import Buffer

#: A writer with that much goes at once, so that the peer has work while we go on. Bytes.
GATHER_MAX: Final = 256 * 1024


class _Gathering(threading.local):
    """Of one thread, which runs one event loop; may be entered again while it is entered."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Writer] = []

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            _flush(waiting)  # one connection's trouble is not the others'


_gathering = _Gathering()


def gathered_writes() -> _Gathering:
    """`with gathered_writes():` around synchronous work; what it writes leaves at the end, error or not."""
    return _gathering


class Writer:
    """Writes to one transport."""

    __slots__ = ("_behind", "_buffers", "_rest", "_size", "_transport", "drained")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._buffers: list[Buffer] = []
        self._size = 0
        self._rest: deque[Buffer] = deque()  # of what leaves in pieces, and what came after it
        self._behind = 0  # bytes of what came after it
        #: Called when the last piece of what left in pieces has left.
        self.drained: Callable[[], None] | None = None

    @property
    def pending(self) -> int:
        """Bytes that the transport has not been given yet."""
        return self._size + sum(map(len, self._rest)) if self._rest else self._size

    def send_gathered(self) -> None:
        """What is gathered goes now: more is to be made only when it has left."""
        self._send_gathered()

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Now, or at the end of what gathers just now. The buffers may not change until they have left."""
        if not _gathering.depth:
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
        """What waits here leaves now, all of it."""
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
                self.flush()  # the transport is to see that much: it says when no more should come
        elif size >= 2 * PIECE and in_pieces(asyncio.get_running_loop().time()):
            self._rest += buffers
            self._send_piece()
        elif len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def _send_piece(self) -> None:
        """One piece of the rest, the next one in the next turn; all of it when no client is there any more."""
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
