"""Lanes without records are asked for by a fetcher of their own, the quiet sibling of the busy one.

A source's broker looks at every partition of a session for every fetch, and so many fetches are made as partitions
get records. So where there are many, the busy session is kept as small as what moves. A lane changes over when the one
that takes it sends its next request, never before, and is part of the other's poll until then; an answer that the other
one still has under way for it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from fetcher.cursor import CursorFetcher
from fetcher.fetch_session import PartitionKey
from fetcher.partition_copy import PartitionCopy, PartitionLane
from fetcher.source_ports import FetchLimits


class Sibling(CursorFetcher, Protocol):
    """One of the two fetchers (source_fetcher.SourceFetcher)."""

    @property
    def quiet(self) -> bool: ...

    @property
    def lanes(self) -> Mapping[PartitionKey, PartitionLane]: ...

    def holds_name_of(self, mirror: PartitionCopy) -> bool: ...

    def adopt(self, lane: PartitionLane) -> None: ...

    def offer(self, lane: PartitionLane) -> None: ...


FetcherT = TypeVar("FetcherT", bound=Sibling)


def sibling_slot(slot: int) -> int:
    """Quiet fetchers have the slots below 0."""
    return -1 - slot


class ChangeOver(Generic[FetcherT]):
    """What one fetcher takes from its sibling, and what it offers it."""

    def __init__(
        self, fetcher: FetcherT, sibling: Callable[[FetcherT], FetcherT | None], limits: FetchLimits
    ) -> None:
        self._fetcher = fetcher
        self._sibling = sibling
        self._limits = limits
        self._looked_at = 0.0
        #: Lanes of the sibling that are to change over with the next request.
        self.offered: set[PartitionLane] = set()

    def take(self, now: float) -> None:
        """Take what is offered and still belongs here; a request is about to be sent."""
        fetcher = self._fetcher
        for lane in self.offered:
            other = lane.fetcher
            if other is None or other.node != fetcher.node or other.slot != sibling_slot(fetcher.slot):
                continue
            if not fetcher.holds_name_of(lane.mirror) and (not fetcher.quiet or self._is_idle(lane, now)):
                other.remove(lane)
                fetcher.adopt(lane)
        self.offered.clear()

    def part_with_idle(self, now: float) -> None:
        """Now and then, offer the quiet sibling what does not move."""
        fetcher = self._fetcher
        if fetcher.quiet or len(fetcher.lanes) <= self._limits.busy_partitions:
            return
        if now - self._looked_at < self._limits.quiet_after / 5:
            return
        self._looked_at = now
        idle = [lane for lane in fetcher.lanes.values() if self._is_idle(lane, now)]
        if idle and (quiet := self._sibling(fetcher)) is not None:
            for lane in idle:
                quiet.offer(lane)

    def _is_idle(self, lane: PartitionLane, now: float) -> bool:
        # A lane that is full, or waits after an error, is not asked for at all: its turn may come any moment.
        patience = self._limits.quiet_again_after if lane.woke else self._limits.quiet_after
        return lane.wants_data and now - lane.active_at >= patience
