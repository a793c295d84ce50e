"""What is written while one read is worked on leaves together: one system call per connection, not one per request.

A read brings several requests of a client, or several answers of a source. Each of them is passed on at once, as it
is taken apart; between `with gathered_writes():` and its end the buffers wait in their `Writer`, in order. Nothing
waits for time or for company: the end comes when the bytes that were read are used up.

Lives here: `Writer`, the order of buffers. Not here: requests and answers (channel.py, server.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from wire.types import Buffer

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
            waiting.pop().flush()
    finally:
        if waiting:
            _flush(waiting)  # one connection's trouble is not the others'


_gathering = _Gathering()


def gathered_writes() -> _Gathering:
    """`with gathered_writes():` around synchronous work; what it writes leaves at the end, error or not."""
    return _gathering


class Writer:
    """Writes to one transport."""

    __slots__ = ("_buffers", "_size", "_transport")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._buffers: list[Buffer] = []
        self._size = 0

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Now, or at the end of what gathers just now. The buffers may not change until they have left."""
        if not _gathering.depth:
            self._send(buffers)
            return
        if not self._buffers:
            _gathering.waiting.append(self)
        self._buffers += buffers
        for buffer in buffers:
            self._size += len(buffer)
        if self._size >= GATHER_MAX:
            self.flush()

    def flush(self) -> None:
        """What waits here leaves now."""
        if self._buffers:
            buffers, self._buffers, self._size = self._buffers, [], 0
            self._send(buffers)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
