"""The memory budget of requests that have not arrived in full, over all connections.

Handlers count a request only when it is whole, and any peer can send the larger half of a request on each of its
connections. When the budget is used up, connections that need more room are not read from until there is some. One of
them is always read from, otherwise no request would ever be completed. While some wait, requests that take too long
lose their connection, the oldest first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from wire.errors import WireError
from wire.server.rate_limited_log import Sparing

log = logging.getLogger(__name__)

#: Seconds in which a request has to arrive while others wait for the room that it takes.
PATIENCE: Final = 30.0
LIMIT: Final = 48 * 1024 * 1024


class Sender(Protocol):
    """A connection on which a request is arriving."""

    peer: str

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self, reason: BaseException | None = None) -> None: ...


class _Part:
    __slots__ = ("begun", "needs", "size")

    def __init__(self, begun: float) -> None:
        self.size = 0  # of the request's buffer
        self.needs = 0  # bytes that it waits for
        self.begun = begun


class PartialFrames:
    def __init__(self) -> None:
        self.limit = LIMIT
        self.used = 0
        #: Connections that were cut because their request did not come (metric linker_partial_cut).
        self.cut = 0
        self._sparing = Sparing()
        self._parts: dict[Sender, _Part] = {}
        self._waiting: dict[Sender, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def note(self, sender: Sender, size: int, needs: int) -> None:
        """The sender's request takes `size` bytes now, and its next byte will take `needs` more."""
        part = self._parts.get(sender)
        if part is None:
            part = self._parts[sender] = _Part(asyncio.get_running_loop().time())
        self.used += size - part.size
        part.size = size
        if not needs or sender in self._waiting:
            return
        if self._grow(part, needs):
            return
        part.needs = needs
        self._waiting[sender] = None
        sender.pause_reading()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE / 4, self._look)

    def forget(self, sender: Sender) -> None:
        """The sender's request is whole, or will never be."""
        part = self._parts.pop(sender, None)
        if part is None:
            return
        self.used -= part.size
        self._waiting.pop(sender, None)
        self._serve()

    def _grow(self, part: _Part, needs: int) -> bool:
        alone = len(self._waiting) >= len(self._parts) - 1
        if self.used + needs > self.limit and not alone:
            return False
        self.used += needs
        part.size += needs
        return True

    def _serve(self) -> None:
        """Resume the sender that needs least first: most requests are small, and only large ones fill the budget."""
        while self._waiting:
            sender = min(self._waiting, key=lambda one: self._parts[one].needs)
            part = self._parts[sender]
            del self._waiting[sender]
            if not self._grow(part, part.needs):
                self._waiting[sender] = None
                return
            part.needs = 0
            sender.resume_reading()

    def _look(self) -> None:
        """While senders wait, close the connections whose requests have taken too long."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        late = [sender for sender, part in self._parts.items() if now - part.begun >= PATIENCE]
        for sender in late:
            if not self._waiting:
                break
            if sender not in self._parts:
                continue
            self.cut += 1
            why = f"a request did not come within {PATIENCE:g} s while others waited for the memory that it takes"
            more = self._sparing.spare()
            if more is not None:
                log.warning("the connection of %s was closed: %s%s", sender.peer, why, more)
            sender.abort(WireError(why, peer=sender.peer))
            self.forget(sender)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE / 4, self._look)
