"""The queue for the validator: one run at a time, the more urgent first; a less urgent one makes room.

A run that makes room keeps its results, so this costs little. While a promote holds producers, no run has the validator.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum


class Urgency(IntEnum):
    """Smaller goes first."""

    PROMOTE = 0  # producers will be held as soon as it is through
    EVIDENCE = 1
    ONCE = 2  # somebody asked for it
    CONTINUOUS = 3


class Turn:
    """To be given back when `yield_asked` is set."""

    def __init__(self, urgency: Urgency) -> None:
        self.urgency = urgency
        self.yield_asked = asyncio.Event()


class ValidatorQueue:
    """The queue before one validator."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._now: Turn | None = None
        self._quiet: set[str] = set()

    def hush(self, who: str) -> None:
        """Keep the validator free until `speak_up(who)`; the run that has it is asked to yield."""
        self._quiet.add(who)
        if self._now is not None:
            self._now.yield_asked.set()

    def speak_up(self, who: str) -> None:
        self._quiet.discard(who)
        self._next()

    @asynccontextmanager
    async def turn(self, urgency: Urgency) -> AsyncIterator[Turn]:
        """Waits until it is its turn."""
        key = (urgency, next(self._numbers))
        mine = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._now is not None and urgency < self._now.urgency:
            self._now.yield_asked.set()
        self._next()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._end()  # it was ours already
            raise
        finally:
            self._waiting.pop(key, None)
        self._now = turn = Turn(urgency)
        if self._quiet or any(other[0] < urgency for other in self._waiting):
            turn.yield_asked.set()
        try:
            yield turn
        finally:
            self._end()

    def _end(self) -> None:
        self._now = None
        self._next()

    def _next(self) -> None:
        for key in [key for key, mine in self._waiting.items() if mine.done()]:
            del self._waiting[key]  # cancelled, and has not run since
        if self._now is not None or self._quiet or not self._waiting:
            return
        key = min(self._waiting)
        mine = self._waiting.pop(key)
        # Taken from here on, although whoever waits has not run yet.
        self._now = Turn(Urgency(key[0]))
        mine.set_result(None)
