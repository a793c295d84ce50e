"""Waiting for an event with a time limit."""

from __future__ import annotations

import asyncio


async def until_set(event: asyncio.Event, timeout: float) -> None:
    """Wait until the event is set from now on, or `timeout` seconds are over. The caller checks which."""
    event.clear()
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return
