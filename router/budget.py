"""One byte budget for all that the router keeps in memory of clients' produces."""

from __future__ import annotations

from typing import Protocol


class Pausable(Protocol):
    """A connection whose reading can be paused (calls are counted by it)."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class BytesBudget:
    """Back-pressure: who adds while the budget is exceeded is paused until it is well below again.

    It is exceeded by at most one request per connection, because a paused connection reads nothing more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._paused: set[Pausable] = set()

    @property
    def paused(self) -> int:
        return len(self._paused)

    def add(self, owner: Pausable, size: int) -> None:
        self.used += size
        if self.used > self.limit and owner not in self._paused:
            self._paused.add(owner)
            owner.pause_reading()

    def release(self, size: int) -> None:
        self.used -= size
        if self._paused and self.used <= self.limit * 3 // 4:
            paused, self._paused = self._paused, set()
            for owner in paused:
                owner.resume_reading()

    def forget(self, owner: Pausable) -> None:
        """The connection is gone; nothing to resume."""
        self._paused.discard(owner)
