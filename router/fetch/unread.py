"""One budget for answers that consumers have not read yet.

An answer stays in memory until its client reads it. A client that does not read costs that, for as long as it stays
connected; with enough of them that would be all memory there is. So no answer is made while the budget is exceeded, and
then a client that has read nothing of its answer for a while is disconnected, to make room for clients that do read.
Clients come back and ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from wire.errors import WireError
from wire.server.rate_limited_log import Sparing

log = logging.getLogger(__name__)

#: Seconds in which somebody who reads has read something.
PATIENCE: Final = 5.0
_AGAIN: Final = 0.25


class Reader(Protocol):
    """A connection, as far as it is one of somebody who is to read."""

    peer: str

    @property
    def unsent(self) -> int: ...

    def abort(self, reason: BaseException | None = None) -> None: ...


@dataclass(slots=True, eq=False)
class _Answer:
    size: int
    unsent: int  # when that was last looked at
    since: float  # the last time it became less


class Unread:
    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self.used = 0
        #: Connections that were cut for it (metric linker_unread_cut).
        self.cut = 0
        self._sparing = Sparing()
        self._loop = loop
        self._answers: dict[Reader, _Answer] = {}  # who has waited longest comes first
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reader: Reader, size: int) -> None:
        """Charge `size` bytes to a reader until it has taken its answer."""
        self.taken(reader)
        self._answers[reader] = _Answer(size, reader.unsent, self._loop.time())
        self.used += size

    def taken(self, reader: Reader) -> None:
        """Release the bytes of a reader that has read its answer, or is gone."""
        answer = self._answers.pop(reader, None)
        if answer is not None:
            self.used -= answer.size
            if self._waiting:
                self._serve()

    @property
    def full(self) -> bool:
        return self.used > self.limit

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back once when there is room."""
        self._waiting.append(callback)
        if self._timer is None:
            self._look()

    def forget(self, callback: Callable[[], None]) -> None:
        """It need not be called any more."""
        if callback in self._waiting:
            self._waiting.remove(callback)

    def close(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve(self) -> None:
        while self._waiting and not self.full:
            self._waiting.popleft()()

    def _look(self) -> None:
        """Cut off readers that have read nothing for PATIENCE seconds, while others wait for room."""
        self._timer = None
        now = self._loop.time()
        silent = []
        for reader, answer in self._answers.items():
            unsent = reader.unsent
            if unsent < answer.unsent:
                answer.unsent, answer.since = unsent, now
            elif now - answer.since >= PATIENCE:
                silent.append(reader)
        for reader in silent:
            if not self.full:
                break
            self.cut += 1
            why = (
                f"nothing was read of an answer of {self._answers[reader].size} bytes for {PATIENCE:g} s, and other "
                "consumers need the memory"
            )
            more = self._sparing.spare()
            if more is not None:
                log.warning("the connection of %s was closed: %s%s", reader.peer, why, more)
            reader.abort(WireError(why, peer=reader.peer))
            self.taken(reader)
        self._serve()
        if self._waiting:
            self._timer = self._loop.call_later(_AGAIN, self._look)
