"""Nodes, topics and leaders as Metadata answers told them. No I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from wire.errors import BrokerError
from wire.frames.types import Node, TopicId, TopicPartition

log = logging.getLogger(__name__)

_BELIEVED_AFTER = 10.0  # seconds; a live broker learns of a new leader much sooner
_BELIEVED_ANSWERS = 5


class PartitionMetadata(NamedTuple):
    """A partition's leadership; leader -1 when there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic; topic_id None when the broker is too old to tell or the topic does not exist."""

    name: str
    topic_id: TopicId | None
    error: int
    partitions: dict[int, PartitionMetadata]


class _Older(NamedTuple):
    """Answers in a row that told an older leader epoch than the one that is known."""

    since: float
    answers: int


class ClusterMetadata:
    """The newest metadata of a cluster.

    Invariant: within one topic id an answer of a stale node does not set a partition's leader epoch back. If every answer
    tells the older epoch for some time it is accepted: the cluster's metadata may have been restored from a backup.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._older: dict[TopicPartition, _Older] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicMetadata] = {}

    def leader(self, tp: TopicPartition) -> Node | None:
        topic = self.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        return self.nodes.get(partition.leader) if partition is not None else None

    def learn_leader(
        self, tp: TopicPartition, leader: int, leader_epoch: int, node: Node | None = None
    ) -> bool:
        topic = self.topics.get(tp.topic)
        known = topic.partitions.get(tp.partition) if topic is not None else None
        if topic is None or known is None or leader < 0 or leader_epoch <= known.leader_epoch:
            return False
        if node is not None and node.id == leader and leader not in self.nodes:
            self.nodes[leader] = node
        topic.partitions[tp.partition] = known._replace(leader=leader, leader_epoch=leader_epoch, error=0)
        self._older.pop(tp, None)  # a newer epoch was told meanwhile: the older answers are of stale nodes
        return True

    def apply(self, answer: Any, *, all_topics: bool) -> None:
        """Apply a decoded Metadata answer; with all_topics, topics that it does not name are removed."""
        top_error = int(getattr(answer, "error_code", 0))
        if top_error:
            raise BrokerError(top_error, api="metadata")
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in answer.brokers}
        if nodes:
            # a broker that has just started may answer with no nodes; the known ones are better
            self.nodes = nodes
        self.cluster_id = getattr(answer, "cluster_id", None) or self.cluster_id
        self.controller_id = getattr(answer, "controller_id", -1)
        found = {topic.name: self._topic(topic) for topic in answer.topics if topic.name is not None}
        if all_topics:
            self.topics = found
            self._older = {tp: one for tp, one in self._older.items() if tp.topic in found}
        else:
            self.topics.update(found)

    def _topic(self, raw: Any) -> TopicMetadata:
        raw_id = getattr(raw, "topic_id", None)
        topic_id = raw_id.bytes if raw_id is not None else None
        old = self.topics.get(raw.name)
        comparable = old is not None and old.topic_id == topic_id and topic_id is not None
        if comparable and old is not None and not self._older and _same(old, raw):
            return old
        partitions: dict[int, PartitionMetadata] = {}
        for item in raw.partitions:
            fresh = PartitionMetadata(
                item.leader_id,
                getattr(item, "leader_epoch", -1),
                tuple(item.replica_nodes),
                tuple(item.isr_nodes),
                int(item.error_code),
            )
            known = old.partitions.get(item.partition_index) if comparable and old is not None else None
            tp = TopicPartition(raw.name, item.partition_index)
            partitions[item.partition_index] = fresh if known is None else self._newer(tp, known, fresh)
        return TopicMetadata(raw.name, topic_id, int(raw.error_code), partitions)

    def _newer(
        self, tp: TopicPartition, known: PartitionMetadata, fresh: PartitionMetadata
    ) -> PartitionMetadata:
        if fresh.leader_epoch >= known.leader_epoch:
            self._older.pop(tp, None)
            return fresh
        now = self._clock()
        since, answers = self._older.get(tp, _Older(now, 0))
        if now - since < _BELIEVED_AFTER or answers < _BELIEVED_ANSWERS:
            self._older[tp] = _Older(since, answers + 1)
            return known
        del self._older[tp]
        log.warning(
            "the leader epoch of %s went back from %d to %d: for %.0f s nothing else was answered. Were the cluster's "
            "metadata restored?",
            tp,
            known.leader_epoch,
            fresh.leader_epoch,
            now - since,
        )
        return fresh


def _same(known: TopicMetadata, raw: Any) -> bool:
    """Whether the answer tells what is known: for thousands of topics at rest nothing is made anew."""
    partitions = known.partitions
    if known.error != raw.error_code or len(partitions) != len(raw.partitions):
        return False
    for item in raw.partitions:
        told = (
            item.leader_id,
            getattr(item, "leader_epoch", -1),
            item.replica_nodes,
            item.isr_nodes,
            item.error_code,
        )
        if partitions.get(item.partition_index) != told:
            return False
    return True
