"""The partitions that need a broker, and keep a link broker from leaving the target."""

from __future__ import annotations

from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage


def hosted_partitions(
    image: ClusterImage, broker_id: int
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """(led, merely hosted) partitions that need the broker. One that only lists it as on its way out, with the ISR
    without it, does not: it goes with the next change that completes the reassignment."""
    leads, hosts = [], []
    for topic in image.topics_by_id.values():
        for partition in topic.partitions.values():
            if partition.leader == broker_id:
                leads.append(TopicPartition(topic.name, partition.index))
            elif (
                broker_id in partition.isr
                or broker_id in partition.adding
                or (broker_id in partition.replicas and broker_id not in partition.removing)
            ):
                hosts.append(TopicPartition(topic.name, partition.index))
    return leads, hosts
