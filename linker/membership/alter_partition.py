"""The AlterPartition request, built from the image's epochs at the moment of sending. Pure.

`ReplicationControlManager.validateAlterPartitionData` refuses stale leader and partition epochs, and ISR members whose
broker epoch is not the registered one (KIP-903). Items that would certainly be refused are answered here, with the same
code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wire.frames.error_codes import (
    INELIGIBLE_REPLICA,
    INVALID_UPDATE_VERSION,
    NOT_LEADER_OR_FOLLOWER,
    STALE_BROKER_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicId, TopicPartition
from wire.metadata.image import ClusterImage


class AlterPartitionItem(NamedTuple):
    """A partition's wished ISR. An epoch that is given must still be the current one at the sending."""

    topic_partition: TopicPartition
    new_isr: tuple[int, ...]
    leader_epoch: int | None = None
    partition_epoch: int | None = None
    broker_epochs: tuple[int, ...] | None = None  # of new_isr, one by one
    leader: int | None = None  # the link broker on whose behalf it is sent; None: ourselves
    leader_broker_epoch: int | None = None


def alter_partition_request(
    image: ClusterImage,
    broker_id: int,
    broker_epoch: int,
    items: Iterable[AlterPartitionItem],
    results: dict[TopicPartition, int],
    sent: dict[tuple[TopicId, int], TopicPartition],
) -> Mapping[str, object]:
    """The request for what `image` shows now. Fills `sent`, and `results` for what is not sent."""
    topics: dict[TopicId, list[dict[str, object]]] = {}
    for item in items:
        tp = item.topic_partition
        topic = image.topics_by_name.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        if topic is None or partition is None:
            results[tp] = UNKNOWN_TOPIC_OR_PARTITION
            continue
        if partition.leader != broker_id or item.leader_epoch not in (None, partition.leader_epoch):
            results[tp] = NOT_LEADER_OR_FOLLOWER
            continue
        if item.leader_broker_epoch not in (None, broker_epoch):
            results[tp] = STALE_BROKER_EPOCH
            continue
        if item.partition_epoch not in (None, partition.partition_epoch):
            results[tp] = INVALID_UPDATE_VERSION
            continue
        epochs = []
        for index, member in enumerate(item.new_isr):
            broker = image.brokers.get(member)
            if broker is None:
                break
            if item.broker_epochs is not None and item.broker_epochs[index] != broker.epoch:
                break  # it restarted since the caller looked
            epochs.append({"broker_id": member, "broker_epoch": broker.epoch})
        if len(epochs) != len(item.new_isr):
            results[tp] = INELIGIBLE_REPLICA
            continue
        sent[(topic.id, tp.partition)] = tp
        topics.setdefault(topic.id, []).append(
            {
                "partition_index": tp.partition,
                "leader_epoch": partition.leader_epoch,
                "new_isr": list(item.new_isr),  # v2
                "new_isr_with_epochs": epochs,  # v3, KIP-903
                "leader_recovery_state": 0,
                "partition_epoch": partition.partition_epoch,
            }
        )
    return {
        "broker_id": broker_id,
        "broker_epoch": broker_epoch,
        "topics": [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in topics.items()],
    }
