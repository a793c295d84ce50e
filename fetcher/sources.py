"""The fetchers of one link: each begins when a cursor is placed on it, and ends when it has no cursors left.

Not here: which cursor goes where (link_fetcher.py).
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable

from fetcher.idle_partitions import sibling_slot
from fetcher.partition_copy import PartitionCopy
from fetcher.source_fetcher import SourceFetcher
from wire.errors import LocalProtocolError
from wire.frames.types import Node
from wire.task_group import TaskGroup


class Fetchers:
    """One for each source node and slot that a cursor was placed on. `make`: a new one, not at work yet. `put`: what
    one that
    is ended leaves behind has to find a place again. `per_node`: slots that partitions are spread over."""

    def __init__(
        self,
        make: Callable[[Node, int], SourceFetcher],
        put: Callable[[PartitionCopy], None],
        *,
        per_node: int = 1,
    ) -> None:
        #: By source node and slot; the quiet ones have slots below 0.
        self.at_work: dict[tuple[int, int], SourceFetcher] = {}
        #: While it is there others are begun in it.
        self.group: TaskGroup | None = None
        self._make = make
        self._put = put
        self._per_node = per_node
        self._tasks: dict[SourceFetcher, asyncio.Task[None]] = {}
        self._idle: set[SourceFetcher] = set()

    @property
    def may_begin(self) -> bool:
        """Whether others may be begun."""
        return self.group is not None

    def at(self, node: Node, slot: int) -> SourceFetcher:
        """The one of that place, begun if there is none."""
        fetcher = self.at_work.get((node.id, slot))
        if fetcher is not None and fetcher.node != node:
            self._stop(fetcher)  # its address changed
            fetcher = None
        if fetcher is not None:
            return fetcher
        if self.group is None:
            raise LocalProtocolError(f"a fetcher of node {node.id} is begun after the end")
        fetcher = self._make(node, slot)
        self.at_work[node.id, slot] = fetcher
        self._tasks[fetcher] = self.group.create_task(fetcher.run())
        return fetcher

    def free_for(self, mirror: PartitionCopy, node: Node) -> SourceFetcher:
        """One of the node that holds no cursor of this mirror: a fetch request names a partition once."""
        first = zlib.crc32(mirror.spec.topic.encode()) + mirror.spec.partition
        slots = ((first + i) % self._per_node for i in range(self._per_node))
        # Slots beyond per_node exist only for the second and further cursors of one partition.
        places = (self.at(node, slot) for slot in itertools.chain(slots, itertools.count(self._per_node)))
        return next(fetcher for fetcher in places if not fetcher.holds(mirror))

    def sibling(self, fetcher: SourceFetcher) -> SourceFetcher | None:
        """See FetcherOwner."""
        if self.group is None or self.at_work.get((fetcher.node.id, fetcher.slot)) is not fetcher:
            return None
        return self.at(fetcher.node, sibling_slot(fetcher.slot))

    def look_after(self, now: float) -> None:
        """Now and then: deadlines, memory, and those without cursors end at the second look. `now`: the event loop's."""
        empty = set()
        for fetcher in list(self.at_work.values()):
            fetcher.check_deadline(now)
            fetcher.check_memory()
            other = self.at_work.get((fetcher.node.id, sibling_slot(fetcher.slot)))
            if not fetcher.cursors and not (other is not None and other.cursors):
                if fetcher in self._idle:
                    self._stop(fetcher)
                else:
                    empty.add(fetcher)
        self._idle = empty

    def stop_all(self) -> None:
        for fetcher in list(self.at_work.values()):
            self._stop(fetcher)
        self._idle.clear()

    def _stop(self, fetcher: SourceFetcher) -> None:
        """End a fetcher; its cursors go back to the queue."""
        if self.at_work.get((fetcher.node.id, fetcher.slot)) is fetcher:
            del self.at_work[fetcher.node.id, fetcher.slot]
        for cursor in list(fetcher.cursors.values()):
            fetcher.remove(cursor)
            self._put(cursor.mirror)
        task = self._tasks.pop(fetcher, None)
        if task is not None:
            task.cancel()
