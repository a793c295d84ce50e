"""Assigns each partition of a link to a source node, and reacts when a node does not serve it.

A partition that is new, or whose source node turned out wrong, goes through the resolve queue: filter those that are
closed or failed, read the source's metadata for all of the batch at once, check that it is still the same topic, ask for
offsets where they are needed, choose the node (a same-rack in-sync replica, else the leader), place its cursors on
fetchers (sources.py). A partition that cannot be resolved goes to the end of the queue with a growing pause and holds
nobody up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.idle_partitions import sibling_slot
from fetcher.join import settle
from fetcher.latency import ReplicationLatency
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.progress import UNKNOWN_OFFSET
from fetcher.resolve import Resolver, SourceVerdict
from fetcher.resolve_queue import Offsets, ResolveQueue, pause_after
from fetcher.source_errors import SourceErrors
from fetcher.source_fetcher import SourceFetcher
from fetcher.source_ports import FetchLimits
from fetcher.source_rate import SourceRate
from fetcher.sources import Fetchers
from fetcher.spec import FetcherEvents, MirrorSpec
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.errors import MalformedFrame, WireError
from wire.frames.types import Node, TopicPartition
from wire.task_group import TaskGroup

_TICK = 0.2
_LOOK_AGAIN = 15.0
#: Seconds until a replica that was of no use may be read from again, as metadata.max.age.ms in Kafka's consumer.
_LEADER_ONLY = 300.0


class LinkFetcher:
    """Fetches the partitions of one link."""

    def __init__(
        self,
        link: str,
        cluster: Cluster,
        budget: MemoryBudget,
        directory: MirrorDirectory,
        events: FetcherEvents,
        *,
        open_connection: Callable[[Node], Awaitable[Connection]],
        client_id: str,
        rack: str | None = None,
        limits: FetchLimits | None = None,
        fetchers_per_node: int = 1,
        window_bytes: int = 4 << 20,
        detach_after: float = 1.0,
        attach_grace: float = 2.0,
        deleted_after: float = 10.0,
        resolver: Resolver | None = None,
        rate: SourceRate | None = None,
    ) -> None:
        """`resolver`: says where partitions are read, instead of the cluster's metadata. `rate`: of them all."""
        self.link = link
        self.budget = budget
        self.directory = directory
        self.partitions: dict[TopicPartition, PartitionCopy] = {}
        #: Counters of partitions that were removed.
        self.gone_bytes_fetched = 0
        self.gone_bytes_served = 0
        self.latency = ReplicationLatency()
        self._events = events
        self._limits = limits or FetchLimits()
        self._resolver = resolver or Resolver(cluster, rack=rack, deleted_after=deleted_after)
        self._open_connection = open_connection
        self._client_id = client_id
        self._rack = rack or ""
        self._rate = rate
        self._window_bytes = window_bytes
        self._detach_after = detach_after
        self._attach_grace = attach_grace
        self._queue = ResolveQueue(
            self._resolver, is_ours=self._is_ours, judged=self._judged, located=self._located
        )
        self.errors = SourceErrors(self._resolver, displace=self._displace, suspend=self._suspend)
        self._watched: set[PartitionCopy] = set()
        self._fetchers = Fetchers(self._make, self._queue.put, per_node=fetchers_per_node)
        self._reclaimed_at = 0.0

    # --- for the composing process

    async def run(self) -> None:
        """Fetch until cancelled. Partitions may be added before and while it runs."""
        try:
            async with TaskGroup() as group:
                self._fetchers.group = group
                for mirror in self.partitions.values():
                    self._queue.put(mirror)
                group.create_task(self._queue.run())
                try:
                    await self._tick()
                finally:
                    # Before the group ends: followers open cursors until then, and later.
                    self._fetchers.group = None
        finally:
            self._fetchers.stop_all()

    def add(self, specs: Iterable[MirrorSpec]) -> list[PartitionCopy]:
        """Begin to mirror. LinkerError if one of them is mirrored already."""
        added = []
        for spec in specs:
            mirror = PartitionCopy(
                spec,
                self._events,
                self,
                window_bytes=self._window_bytes,
                answer_bytes=self._limits.partition_bytes,
                detach_after=self._detach_after,
                attach_grace=self._attach_grace,
                latency=self.latency,
            )
            self.directory.add(mirror)
            self.partitions[mirror.tp] = mirror
            added.append(mirror)
            if spec.held and spec.taken is not None:
                # Nobody is asked: the log ends where it was taken over. Its open transactions are not known.
                mirror.load(spec.taken.end, UNKNOWN_OFFSET, spec.start_offset, time.monotonic())
            self._queue.put(mirror)
        return added

    def release(self, tps: Iterable[TopicPartition]) -> None:
        """The source of partitions that were held goes on, and is read from now on."""
        for tp in tps:
            mirror = self.partitions.get(tp)
            if mirror is not None and mirror.spec.held:
                mirror.release()
                self._queue.put(mirror)

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Stop mirroring; fetches in flight are dropped. Unknown partitions are ignored."""
        for tp in list(tps):
            mirror = self.partitions.pop(tp, None)
            if mirror is None:
                continue
            self.directory.remove(mirror)
            self._queue.forget(tp)
            self._watched.discard(mirror)
            self._resolver.forget(tp)
            mirror.close()
            self.gone_bytes_fetched += mirror.bytes_fetched
            self.gone_bytes_served += mirror.bytes_served

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if tp in self.partitions:
                self.partitions[tp].pause()

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if tp in self.partitions:
                self.partitions[tp].resume()

    def fail_deleted_after(self, seconds: float) -> None:
        """How long the source may not know a topic before its partitions fail; infinity: they never do."""
        self._resolver.deleted_after = seconds

    # --- CursorHost

    def cursor_opened(self, cursor: PartitionCursor) -> None:
        mirror = cursor.mirror
        if mirror.spec.held:
            return
        node = (
            None if mirror in self._queue else self._resolver.choose(mirror, leader_only=cursor.leader_only)
        )
        if node is None or not self._fetchers.may_begin:
            self._queue.put(mirror)
        else:
            self._place(cursor, node)

    def cursor_changed(self, cursor: PartitionCursor) -> None:
        if cursor.fetcher is not None:
            cursor.fetcher.touch(cursor)

    def cursor_closed(self, cursor: PartitionCursor) -> None:
        if cursor.fetcher is not None:
            cursor.fetcher.remove(cursor)

    def watch(self, mirror: PartitionCopy) -> None:
        self._watched.add(mirror)

    # --- FetcherOwner

    def partition_error(self, cursor: PartitionCursor, fetcher: SourceFetcher, code: int) -> None:
        self.errors.answered(cursor, fetcher, code)

    def partition_malformed(
        self, cursor: PartitionCursor, fetcher: SourceFetcher, error: MalformedFrame
    ) -> None:
        self.errors.malformed(cursor, fetcher, error)

    def diverged(self, cursor: PartitionCursor, fetcher: SourceFetcher, epoch: int, end_offset: int) -> None:
        self.errors.diverged(cursor, fetcher, epoch, end_offset)

    def preferred_replica(self, cursor: PartitionCursor, fetcher: SourceFetcher, node_id: int) -> None:
        node = self._resolver.node(node_id)
        if node is not None and node_id != fetcher.node.id and not cursor.leader_only:
            fetcher.remove(cursor)
            self._place(cursor, node)

    def connection_failed(self, fetcher: SourceFetcher, error: WireError) -> None:
        now = time.monotonic()
        for cursor in list(fetcher.cursors.values()):
            mirror = cursor.mirror
            mirror.source_trouble(f"source node {fetcher.node.id}: {error}", now)
            self.errors.keep_to_the_leader(cursor, fetcher)
            self._queue.put(mirror)

    def _look_again(self, now: float) -> None:
        """Place cursors anew whose node is the wrong one by the metadata (which others refresh). Otherwise only an
        error moves a cursor, and a wrong node may go on answering without one: a leader that does not know yet that it
        was replaced, or a replica that has stopped copying."""
        for mirror in self.directory:
            if not self._is_ours(mirror) or mirror in self._queue:
                continue
            for cursor in mirror.cursors:
                if cursor.leader_only_since is not None and now - cursor.leader_only_since > _LEADER_ONLY:
                    cursor.leader_only_since = None
                    self._queue.put(mirror)
            if self._resolver.misplaced(mirror):
                self._queue.put(mirror)

    def request_bytes(self) -> int:
        return max(self.budget.limit // (2 * max(1, len(self._fetchers.at_work))), 64 << 10)

    def memory_short(self, size: int) -> bool:
        now = time.monotonic()
        if now - self._reclaimed_at < _TICK:
            return False
        self._reclaimed_at = now
        freed = 0
        for mirror in self.directory:
            freed += mirror.reclaim(now - self._detach_after)
            if freed >= size:
                break
        return freed > 0

    def sibling(self, fetcher: SourceFetcher) -> SourceFetcher | None:
        return self._fetchers.sibling(fetcher)

    # --- placing

    def _place(self, cursor: PartitionCursor, node: Node) -> None:
        current = cursor.fetcher
        if current is not None and current.node == node:
            self._awake(cursor)
            return
        if current is not None:
            current.remove(cursor)
        if not self._fetchers.may_begin:
            return
        cursor.suspended = False
        self._fetchers.free_for(cursor.mirror, node).add(cursor)

    def _awake(self, cursor: PartitionCursor) -> None:
        cursor.suspended = False
        self.cursor_changed(cursor)

    def _make(self, node: Node, slot: int) -> SourceFetcher:
        return SourceFetcher(
            node,
            slot,
            self,
            self.budget,
            self._limits,
            open_connection=self._open_connection,
            client_id=f"{self._client_id}-fetcher-{slot if slot >= 0 else f'{sibling_slot(slot)}-quiet'}",
            rack=self._rack,
            rate=self._rate,
        )

    def _displace(self, cursor: PartitionCursor) -> None:
        """Away from its fetcher, and back through the queue."""
        if cursor.fetcher is not None:
            cursor.fetcher.remove(cursor)
        self._queue.put_again(cursor.mirror)

    def _suspend(self, cursor: PartitionCursor) -> None:
        """Not now; the same node again after a pause."""
        cursor.failures += 1
        cursor.suspended = True
        self.cursor_changed(cursor)
        asyncio.get_running_loop().call_later(pause_after(cursor.failures), self._awake, cursor)

    # --- what the resolve queue found ---

    def _is_ours(self, mirror: PartitionCopy) -> bool:
        return self.partitions.get(mirror.tp) is mirror and mirror.failed is None and not mirror.spec.held

    def _located(self, mirror: PartitionCopy, offsets: Offsets) -> None:
        """The source said where the partition's log begins and ends, or why it does not."""
        now = time.monotonic()
        if isinstance(offsets, str):
            mirror.source_trouble(offsets, now)
            self._queue.put_again(mirror)
        elif mirror.loaded:
            # Looked up at this leader; never kept for a later one.
            settle(mirror, *offsets, self._resolver.looked_up(mirror.tp))
            self._place_cursors(mirror)
        else:
            earliest, latest = offsets
            mirror.load(latest, latest, earliest, now)
            mirror.source_fine()

    def _judged(self, mirror: PartitionCopy, verdict: SourceVerdict) -> None:
        if verdict.failure is not None:
            mirror.fail(verdict.failure)
            return
        if verdict.trouble is not None:
            mirror.source_trouble(verdict.trouble, time.monotonic())
            self._queue.put_again(mirror)
            return
        if verdict.leader_epoch != mirror.source_leader_epoch:
            mirror.forgotten_epochs.clear()  # another leader may have another log
            for cursor in mirror.cursors:
                cursor.leader_only_since = None  # new leadership, new chance for a near replica
        mirror.source_leader_epoch = verdict.leader_epoch
        if not self._resolver.needs_offsets(mirror):
            self._place_cursors(mirror)

    def _place_cursors(self, mirror: PartitionCopy) -> None:
        for cursor in list(mirror.cursors):
            if cursor.fed:
                continue
            node = self._resolver.choose(mirror, leader_only=cursor.leader_only)
            if node is None:
                self._queue.put_again(mirror)
                return
            self._place(cursor, node)
        if not mirror.cursors:
            mirror.source_fine()  # nobody reads it just now, but it could be read

    # --- time

    async def _tick(self) -> None:
        look_again = time.monotonic() + _LOOK_AGAIN
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            if now >= look_again:
                look_again = now + _LOOK_AGAIN
                self._look_again(now)
            for mirror in list(self._watched):
                if not mirror.tick(now):
                    self._watched.discard(mirror)
            self._fetchers.look_after(asyncio.get_running_loop().time())
