"""What a client knows of a cluster, fed by Metadata answers. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from wire.errors import BrokerError
from wire.types import Node, TopicId, TopicPartition


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


class ClusterMetadata:
    """Invariant: within one topic id a partition's leader epoch never goes back, whichever stale node
    answered.
    """

    def __init__(self) -> None:
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
        return True

    def apply(self, answer: Any, *, all_topics: bool) -> None:
        """Take over a decoded Metadata answer; with all_topics, topics it does not name are gone."""
        top_error = int(getattr(answer, "error_code", 0))
        if top_error:
            raise BrokerError(top_error, api="metadata")
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in answer.brokers}
        if nodes:
            # a broker that has just started may answer with nobody; what we know is better
            self.nodes = nodes
        self.cluster_id = getattr(answer, "cluster_id", None) or self.cluster_id
        self.controller_id = getattr(answer, "controller_id", -1)
        found = {topic.name: self._topic(topic) for topic in answer.topics if topic.name is not None}
        if all_topics:
            self.topics = found
        else:
            self.topics.update(found)

    def _topic(self, raw: Any) -> TopicMetadata:
        raw_id = getattr(raw, "topic_id", None)
        topic_id = raw_id.bytes if raw_id is not None else None
        old = self.topics.get(raw.name)
        comparable = old is not None and old.topic_id == topic_id and topic_id is not None
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
            stale = known is not None and fresh.leader_epoch < known.leader_epoch
            partitions[item.partition_index] = known if stale and known is not None else fresh
        return TopicMetadata(raw.name, topic_id, int(raw.error_code), partitions)
