"""until_set: woken by what comes from now on, and by the clock."""

from __future__ import annotations

import asyncio

from tests.controller.virtual_loop import run_virtual
from wire.client.waiting import until_set


def test_it_ends_with_the_event_or_with_the_time() -> None:
    async def main() -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        event.set()  # of before: not what is waited for
        began = loop.time()
        await until_set(event, 3.0)
        assert loop.time() - began == 3.0
        loop.call_later(1.0, event.set)
        await until_set(event, 3.0)
        assert loop.time() - began == 4.0

    run_virtual(main())
