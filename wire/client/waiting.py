"""Waiting for something to change, no longer than so long. Not here: retries, back-offs."""

from __future__ import annotations

import asyncio


async def until_set(event: asyncio.Event, timeout: float) -> None:
    """Until the event is set from now on, or the time (seconds) is over; the caller looks what there is to see."""
    event.clear()
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return
