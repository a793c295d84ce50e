"""One memory budget for all windows of the process and for source fetches in flight.

Memory is charged by *buffer*, not by chunk: every chunk of a source answer keeps the whole receive buffer
alive, so the charge ends only when the last chunk of that buffer is dropped. A fetch in flight reserves
what its answer may bring; the reservation is exchanged for the real charge when the answer is there. Two
things can overdraw the budget, and then nothing new is fetched until that is paid back: an oversized first
batch, which Kafka sends whole whatever the limit, and a buffer that was there and free, up to twice as large
as what is reserved (wire/frames/buffers.py); that was memory before.
"""

from __future__ import annotations

from collections.abc import Callable

from wire.errors import LocalProtocolError


class MemoryBudget:
    """Bytes in use against a limit. Not thread-safe: one event loop owns it."""

    __slots__ = ("_waiters", "limit", "peak", "used")

    def __init__(self, limit: int) -> None:
        if limit <= 0:
            raise ValueError(f"memory budget of {limit} bytes")
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._waiters: dict[Callable[[], None], None] = {}

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes if they are free. A reservation above the whole limit passes only on an empty
        budget.
        """
        if self.used + size > self.limit and self.used > 0:
            return False
        self.force(size)
        return True

    def force(self, size: int) -> None:
        """Charge memory that exists already."""
        self.used += size
        if self.used > self.peak:
            self.peak = self.used

    def release(self, size: int) -> None:
        if size > self.used:
            raise LocalProtocolError(f"{size} bytes returned to a memory budget that has {self.used} in use")
        self.used -= size
        if self._waiters and self.used < self.limit:
            waiters, self._waiters = self._waiters, {}
            for callback in waiters:
                callback()

    def when_released(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when memory has come free. It must only schedule: it runs inside a release."""
        self._waiters[callback] = None

    def forget_waiter(self, callback: Callable[[], None]) -> None:
        self._waiters.pop(callback, None)


class Reservation:
    """The bytes that one fetch in flight may bring. `make_room` is called when they are not free: True if it freed some."""

    __slots__ = ("_budget", "_make_room", "_size")

    def __init__(self, budget: MemoryBudget, make_room: Callable[[int], bool]) -> None:
        self._budget = budget
        self._make_room = make_room
        self._size = 0

    def take(self, size: int) -> bool:
        if not self._budget.try_reserve(size) and not (
            self._make_room(size) and self._budget.try_reserve(size)
        ):
            return False
        self._size = size
        return True

    def give_back(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._budget.release(size)


class Charge:
    """One buffer's share of the budget, held by its chunks and by answers on their way to a follower."""

    __slots__ = ("_budget", "_holders", "size")

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        budget.force(size)
        self._budget = budget
        self._holders = 1
        self.size = size

    def hold(self) -> None:
        self._holders += 1

    def drop(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._budget.release(self.size)
        elif self._holders < 0:
            raise LocalProtocolError("a buffer's charge was dropped more often than held")
