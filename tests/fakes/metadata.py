"""Metadata: brokers that run, topics by name or id, leaders as far as they are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.cluster import FakeCluster, FakePartition, FakeTopic

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
UNKNOWN_TOPIC_ID = 100


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    cluster = broker.cluster
    wanted = request.entity.topics
    topics: list[Mapping[str, object]] = []
    if wanted is None or (request.version == 0 and not wanted):
        topics = [_topic(cluster, topic, request) for topic in cluster.topics.values()]
    else:
        for item in wanted:
            topic_id = getattr(item, "topic_id", None)
            if topic_id is not None:
                topic = cluster.topic_by_id(topic_id.bytes)
                missing = {"topic_id": topic_id, "name": None, "error_code": UNKNOWN_TOPIC_ID}
            else:
                topic = cluster.topics.get(item.name)
                missing = {"name": item.name, "error_code": UNKNOWN_TOPIC_OR_PARTITION}
            topics.append(missing if topic is None else _topic(cluster, topic, request))
    return {
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port, "rack": cluster.racks.get(node.id)}
            for node in cluster.brokers.values()
            if node.running
        ],
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": topics,
        "error_code": request.forced_error,
    }


def _topic(cluster: FakeCluster, topic: FakeTopic, request: Request) -> Mapping[str, object]:
    return {
        "error_code": request.forced_error,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(cluster, partition) for partition in topic.partitions.values()],
        "topic_authorized_operations": 0x0DF8,
    }


def _partition(cluster: FakeCluster, partition: FakePartition) -> Mapping[str, object]:
    leader, epoch = partition.published or (partition.leader, partition.leader_epoch)
    alive = leader in cluster.brokers and cluster.brokers[leader].running
    return {
        "error_code": 0 if alive else LEADER_NOT_AVAILABLE,
        "partition_index": partition.index,
        "leader_id": leader if alive else -1,
        "leader_epoch": epoch,
        "replica_nodes": partition.replicas,
        # A replica that is no node of ours is a broker under test.
        "isr_nodes": [n for n in partition.isr if n not in cluster.brokers or cluster.brokers[n].running],
        "offline_replicas": [
            n for n in partition.replicas if n in cluster.brokers and not cluster.brokers[n].running
        ],
    }
