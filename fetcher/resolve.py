"""Source metadata for mirror partitions: is it still the same topic, who leads it, where does its log
begin and end.

Only questions and verdicts; link_fetcher.py acts on the verdicts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fetcher.join import Doubt, high_watermark_at, source_joins
from fetcher.partition_copy import PartitionCopy
from wire.client.cluster import Cluster, PartitionMetadata
from wire.errors import LinkerError, error_name
from wire.frames.error_codes import (
    OFFSET_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.list_offsets import EARLIEST, LATEST
from wire.frames.types import ZERO_TOPIC_ID, Node, TopicPartition, topic_id_str
from wire.task_group import TaskGroup

_TIMEOUT = 15.0
#: Short, since leadership may have moved: then the whole question is put again.
_OFFSETS_TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class SourceVerdict:
    """The meaning of the source's metadata for one partition; `failure` is final, `trouble` passes."""

    failure: str | None = None
    trouble: str | None = None
    leader_epoch: int = -1


class Resolver:
    def __init__(self, cluster: Cluster, *, rack: str | None, deleted_after: float) -> None:
        self._cluster = cluster
        self._rack = rack
        #: Seconds until a topic that the source does not know has failed.
        self.deleted_after = deleted_after
        self._missing_since: dict[TopicPartition, float] = {}
        self._ask_offsets: set[TopicPartition] = set()
        self._doubts: dict[TopicPartition, set[Doubt]] = {}
        self._looked_up: dict[TopicPartition, list[tuple[int, int, str | None]]] = {}

    def ask_offsets(self, mirror: PartitionCopy, epoch: int, position: int) -> None:
        """The next resolve of the partition asks where the source's log begins and ends, and whether the batch before a
        position is of an epoch."""
        self._ask_offsets.add(mirror.tp)
        self._doubts.setdefault(mirror.tp, set()).add(Doubt(epoch, position, mirror.source_epochs))

    def forget(self, tp: TopicPartition) -> None:
        self._missing_since.pop(tp, None)
        self._ask_offsets.discard(tp)
        self._doubts.pop(tp, None)
        self._looked_up.pop(tp, None)

    async def resolve(self, mirrors: Sequence[PartitionCopy]) -> dict[TopicPartition, SourceVerdict]:
        """A verdict for each; raises when the cluster as a whole cannot be asked."""
        try:
            await self._cluster.refresh({mirror.spec.topic for mirror in mirrors}, timeout=_TIMEOUT)
        except LinkerError:
            # It is missing for as long as answers say so one after the other, not since one before an outage.
            for mirror in mirrors:
                self._missing_since.pop(mirror.tp, None)
            raise
        now = time.monotonic()
        return {mirror.tp: self._judge(mirror, now) for mirror in mirrors}

    def needs_offsets(self, mirror: PartitionCopy) -> bool:
        return not mirror.loaded or mirror.tp in self._ask_offsets

    async def offsets(
        self, tps: Collection[TopicPartition], followed: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, tuple[int, int] | str]:
        """Where each log begins and ends (its high watermark), or why that is not known. A new leader does not tell the end
        before its whole ISR has all of an earlier epoch. Where this may wait for us (`followed`), what it has by now is
        told: a high watermark that is too low, as its own followers are told it."""
        earliest = await self._cluster.list_offsets(dict.fromkeys(tps, EARLIEST), timeout=_OFFSETS_TIMEOUT)
        latest = await self._cluster.list_offsets(dict.fromkeys(tps, LATEST), timeout=_OFFSETS_TIMEOUT)
        found: dict[TopicPartition, tuple[int, int] | str] = {}
        doubtful: list[tuple[TopicPartition, int, int]] = []
        for tp in tps:
            first, last = earliest.get(tp), latest.get(tp)
            if tp in followed and first and not first.error and last and last.error == OFFSET_NOT_AVAILABLE:
                found[tp] = await self._told_to_followers(tp, first.offset)
                continue
            if first is None or last is None or first.error or last.error:
                code = next((r.error for r in (first, last) if r is not None and r.error), -1)
                found[tp] = f"the source does not tell the offsets of {tp}: {error_name(code)}"
                continue
            found[tp] = (first.offset, last.offset)
            if self._doubts.get(tp):
                doubtful.append((tp, first.offset, last.offset))

        async def look_up(tp: TopicPartition, earliest: int, latest: int) -> None:
            try:
                await self._look_up(tp, earliest, latest)
            except LinkerError as error:
                found[tp] = str(error)

        # At once: a source node that hangs holds up its own partitions only.
        async with TaskGroup() as group:
            for one in doubtful:
                group.create_task(look_up(*one))
        self._ask_offsets.difference_update(tp for tp, one in found.items() if not isinstance(one, str))
        return found

    async def _told_to_followers(self, tp: TopicPartition, start: int) -> tuple[int, int] | str:
        leader = self._cluster.leader(tp)
        if leader is None:
            return f"nobody leads {tp} at the source"
        try:
            return start, await high_watermark_at(self._cluster, leader.id, tp, start)
        except LinkerError as error:
            return str(error)

    async def _look_up(self, tp: TopicPartition, earliest: int, latest: int) -> None:
        """Whether the source has the batches that were read before the places in doubt."""
        for doubt in list(self._doubts.get(tp, ())):
            leader = self._cluster.leader(tp)
            if leader is not None and doubt.epoch >= 0 and earliest <= doubt.position <= latest:
                other = await source_joins(self._cluster, leader.id, tp, earliest, doubt)
                self._looked_up.setdefault(tp, []).append((doubt.epoch, doubt.position, other))
        self._doubts.pop(tp, None)

    def looked_up(self, tp: TopicPartition) -> list[tuple[int, int, str | None]]:
        """(epoch, position, what else is there), once."""
        return self._looked_up.pop(tp, [])

    def _judge(self, mirror: PartitionCopy, now: float) -> SourceVerdict:
        spec = mirror.spec
        tp, name = mirror.tp, spec.source_name or spec.topic
        topic = self._cluster.topics.get(spec.topic)
        partition = None if topic is None else topic.partitions.get(spec.partition)
        code = UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
        if topic is not None and not code:
            found = topic.topic_id
            if (
                spec.source_topic_id is not None
                and found
                and found not in (ZERO_TOPIC_ID, spec.source_topic_id)
            ):
                return SourceVerdict(
                    failure=f"topic {name} was deleted and re-created at the source: its id is "
                    f"{topic_id_str(found)}, the mirror was made from {topic_id_str(spec.source_topic_id)}"
                )
        if code == UNKNOWN_TOPIC_OR_PARTITION or (not code and partition is None):
            since = self._missing_since.setdefault(tp, now)
            if now - since >= self.deleted_after:
                return SourceVerdict(failure=f"{tp} does not exist at the source any more")
            return SourceVerdict(trouble=f"the source does not know {tp} just now")
        self._missing_since.pop(tp, None)
        if code == TOPIC_AUTHORIZATION_FAILED:
            return SourceVerdict(
                trouble=f"not allowed to see topic {name} at the source: grant DESCRIBE and READ on it"
            )
        if code or partition is None:
            return SourceVerdict(trouble=f"the source answers {error_name(code)} for topic {name}")
        if self._leader(partition) is None:
            return SourceVerdict(trouble=f"{tp} has no leader at the source")
        return SourceVerdict(leader_epoch=partition.leader_epoch)

    # --- nodes

    def node(self, node_id: int) -> Node | None:
        return self._cluster.nodes.get(node_id)

    def is_leader(self, mirror: PartitionCopy, node_id: int) -> bool:
        partition = self._partition(mirror)
        return partition is not None and partition.leader == node_id

    def misplaced(self, mirror: PartitionCopy) -> bool:
        """Whether metadata know of a newer leader than the one that its cursors were placed for, or a cursor reads from a
        replica that is not in sync.
        """
        partition = self._partition(mirror)
        if partition is None or mirror.source_leader_epoch < 0:
            return False
        if partition.leader_epoch > mirror.source_leader_epoch:
            return True
        good = {partition.leader, *partition.isr}
        return any(
            cursor.fetcher is not None and cursor.fetcher.node.id not in good for cursor in mirror.cursors
        )

    def leader_of(self, mirror: PartitionCopy) -> int:
        partition = self._partition(mirror)
        return -1 if partition is None else partition.leader

    def choose(self, mirror: PartitionCopy, *, leader_only: bool) -> Node | None:
        """The node to read from: the leader if it is in our rack, else an in-sync replica that is, else
        the leader.
        """
        partition = self._partition(mirror)
        if partition is None:
            return None
        leader = self._leader(partition)
        if leader is None or leader_only or self._rack is None or leader.rack == self._rack:
            return leader
        near = [node for i in partition.isr if (node := self.node(i)) is not None and node.rack == self._rack]
        return near[mirror.spec.partition % len(near)] if near else leader

    def _partition(self, mirror: PartitionCopy) -> PartitionMetadata | None:
        topic = self._cluster.topics.get(mirror.spec.topic)
        return None if topic is None else topic.partitions.get(mirror.spec.partition)

    def _leader(self, partition: PartitionMetadata) -> Node | None:
        return None if partition.leader < 0 else self.node(partition.leader)
