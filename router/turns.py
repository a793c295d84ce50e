"""Large requests are worked on in slices, of which one is done in a turn of the event loop, whoever sent them."""

from __future__ import annotations

import asyncio
from typing import Final

#: Entries (partitions) of one slice: a few milliseconds.
SLICE: Final = 1000


class RequestTurns:
    """Shared by all clients: with a hundred large requests under way a turn of the loop takes as long as with one."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Return in a later turn of the event loop, in which nobody else comes back from here."""
        async with self._lock:
            await asyncio.sleep(0)
