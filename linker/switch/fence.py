"""The take-over as the fence of a source: nobody can write to it, because link brokers lead it and hold all writes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from linker.switch.take_over import TakeOver
from wire.frames.types import TopicPartition


class TakeOverFence:
    """linker.promote.ports.SwitchFence, for a promote that is a switch."""

    def __init__(self, take_over: TakeOver, not_yet: Callable[[], str | None] = lambda: None) -> None:
        self._take_over = take_over
        self.not_yet = not_yet

    async def closed(self, topics: Collection[str], *, timeout: float) -> Collection[str]:
        """Always empty: only a switch closes a source by a take-over."""
        return ()

    async def prepare(self, topics: Collection[str], *, timeout: float) -> None:
        await self._take_over.prepare(topics, timeout=timeout)

    async def close(self, topics: Collection[str], *, timeout: float) -> None:
        await self._take_over.take(topics, timeout=timeout)

    async def handed_over(self, tps: Collection[TopicPartition]) -> None:
        """Writes that are held here are forwarded to the other cluster."""
        await self._take_over.reverse(tps)

    async def open(self, topics: Collection[str], *, timeout: float) -> None:
        """Topics that were handed over at the other cluster stay closed: their mirrors here are ACTIVE."""
        await self._take_over.give_back(topics, timeout=timeout)
