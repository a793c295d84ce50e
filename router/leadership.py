"""Answering "not me": the new leader of a partition out of the target's metadata, as clients may be told it.
Pure.
"""

from __future__ import annotations

from wire.frames.types import Node, TopicPartition
from wire.metadata.image import ClusterImage


def current_leader(image: ClusterImage, tp: TopicPartition) -> tuple[int, int] | None:
    """(leader id, leader epoch), None if the partition is not known."""
    topic = image.topics_by_name.get(tp.topic)
    partition = topic.partitions.get(tp.partition) if topic is not None else None
    return (partition.leader, partition.leader_epoch) if partition is not None else None


def endpoint(image: ClusterImage, broker_id: int, listener: str) -> Node | None:
    """Where clients of that listener reach the broker."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return None
    at = broker.endpoints.get(listener)
    return Node(broker_id, at.host, at.port, broker.rack) if at is not None else None


def endpoints_of(image: ClusterImage, leaders: set[int], listener: str) -> list[Node]:
    nodes = (endpoint(image, leader, listener) for leader in sorted(leaders))
    return [node for node in nodes if node is not None]
