"""Cursors without records are asked for by a fetcher of their own, the quiet sibling of the busy one.

A source's broker looks at every partition of a session for every fetch, and so many fetches are made as partitions
get records. So where there are many, the busy session is kept as small as what moves. A cursor changes over when the one
that takes it sends its next request, never before, and is part of the other's poll until then; an answer that the other
one still has under way for it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from fetcher.cursor import CursorFetcher
from fetcher.fetch_session import PartitionKey
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.source_ports import FetchLimits


class Sibling(CursorFetcher, Protocol):
    """One of the two fetchers (source_fetcher.SourceFetcher)."""

    @property
    def quiet(self) -> bool: ...

    @property
    def cursors(self) -> Mapping[PartitionKey, PartitionCursor]: ...

    def holds_name_of(self, mirror: PartitionCopy) -> bool: ...

    def adopt(self, cursor: PartitionCursor) -> None: ...

    def offer(self, cursor: PartitionCursor) -> None: ...


FetcherT = TypeVar("FetcherT", bound=Sibling)


def sibling_slot(slot: int) -> int:
    """Quiet fetchers have the slots below 0."""
    return -1 - slot


class ChangeOver(Generic[FetcherT]):
    """The partitions that one fetcher takes from its sibling, and those that it offers it."""

    def __init__(
        self, fetcher: FetcherT, sibling: Callable[[FetcherT], FetcherT | None], limits: FetchLimits
    ) -> None:
        self._fetcher = fetcher
        self._sibling = sibling
        self._limits = limits
        self._looked_at = 0.0
        #: Cursors of the sibling that are to change over with the next request.
        self.offered: set[PartitionCursor] = set()

    def take(self, now: float) -> None:
        """Take what is offered and still belongs here; a request is about to be sent."""
        fetcher = self._fetcher
        for cursor in self.offered:
            other = cursor.fetcher
            if other is None or other.node != fetcher.node or other.slot != sibling_slot(fetcher.slot):
                continue
            if not fetcher.holds_name_of(cursor.mirror) and (not fetcher.quiet or self._is_idle(cursor, now)):
                other.remove(cursor)
                fetcher.adopt(cursor)
        self.offered.clear()

    def part_with_idle(self, now: float) -> None:
        """Offer cursors without records to the quiet sibling, at most five times per `quiet_after`."""
        fetcher = self._fetcher
        if fetcher.quiet or len(fetcher.cursors) <= self._limits.busy_partitions:
            return
        if now - self._looked_at < self._limits.quiet_after / 5:
            return
        self._looked_at = now
        idle = [cursor for cursor in fetcher.cursors.values() if self._is_idle(cursor, now)]
        if idle and (quiet := self._sibling(fetcher)) is not None:
            for cursor in idle:
                quiet.offer(cursor)

    def _is_idle(self, cursor: PartitionCursor, now: float) -> bool:
        # A cursor that is full, or waits after an error, is not asked for at all: its turn may come any moment.
        patience = self._limits.quiet_again_after if cursor.woke else self._limits.quiet_after
        return cursor.wants_data and now - cursor.active_at >= patience
