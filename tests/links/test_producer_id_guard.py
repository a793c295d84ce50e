"""The guard keeps going, and forwarding off, whatever the source says of itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from controller.stored_controller import StoredController
from linker.links.producer_ids import ProducerIdGuard
from tests.controller.memory_store import MemoryStore


class EmptySource:
    """A source whose only broker has just started: it does not know itself yet."""

    name = "source east"

    def __init__(self) -> None:
        self.nodes: dict[int, Any] = {}
        self.asked = asyncio.Event()

    async def refresh(self, topics: Any, *, timeout: float) -> None:
        self.asked.set()


async def test_a_source_that_names_no_broker_is_asked_again() -> None:
    source: Any = EmptySource()
    target: Any = SimpleNamespace(metadata=SimpleNamespace(subscribe=lambda callback: lambda: None))
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    guard = ProducerIdGuard("east", source, target, controller, frozenset)
    task = asyncio.create_task(guard.run())
    try:
        await source.asked.wait()
        await asyncio.sleep(0.05)
        assert not task.done()
        assert not guard.allowed
        assert guard.reason is not None
        assert "no live broker" in guard.reason
    finally:
        task.cancel()
        await asyncio.wait([task])
