"""One partition of an AlterPartition request, and the request itself.

An item names every epoch that its decision was made on, so a request can only do what was decided: the controller refuses
stale leader and partition epochs (`ReplicationControlManager.validateAlterPartitionData`), a topic id that is gone, and ISR
members whose broker epoch is not the registered one (KIP-903). Items that would certainly be refused are answered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controller.cluster_view import ImageView
from controller.state import Attempt
from wire.errors import BrokerError
from wire.frames import error_codes
from wire.frames.types import TopicId, TopicPartition


class IsrMember(NamedTuple):
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionItem:
    """A new ISR for one partition, and the epochs that must still be the current ones when it is sent."""

    tp: TopicPartition
    topic_id: TopicId
    leader: IsrMember  # the link broker on whose behalf it is sent
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]

    @property
    def attempt(self) -> Attempt:
        return Attempt(leader_epoch=self.leader_epoch, partition_epoch=self.partition_epoch)


def alter_partition_item(image: ImageView, tp: TopicPartition, new_isr: Sequence[int]) -> AlterPartitionItem:
    """The item for a partition as the image shows it, in the name of its leader. BrokerError where there can be none."""
    topic = image.topics_by_name.get(tp.topic)
    partition = None if topic is None else topic.partitions.get(tp.partition)
    if topic is None or partition is None:
        raise BrokerError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, api="alter_partition", topic_partition=tp)
    if partition.leader not in image.brokers:
        raise BrokerError(error_codes.NOT_LEADER_OR_FOLLOWER, api="alter_partition", topic_partition=tp)
    if any(broker not in image.brokers for broker in new_isr):
        raise BrokerError(error_codes.INELIGIBLE_REPLICA, api="alter_partition", topic_partition=tp)
    leader, *members = (IsrMember(b, image.brokers[b].epoch) for b in (partition.leader, *new_isr))
    return AlterPartitionItem(
        tp=tp,
        topic_id=topic.id,
        leader=leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr=tuple(members),
    )


def stale(image: ImageView, item: AlterPartitionItem, broker_epoch: int) -> int:
    """The code with which the controller would refuse the item as the image stands; 0 if it may be sent.

    `broker_epoch` is the leader's, which for ourselves is newer than the image's."""
    topic = image.topics_by_name.get(item.tp.topic)
    partition = None if topic is None else topic.partitions.get(item.tp.partition)
    if topic is None or partition is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if topic.id != item.topic_id:
        return error_codes.UNKNOWN_TOPIC_ID
    if (partition.leader, partition.leader_epoch) != (item.leader.broker_id, item.leader_epoch):
        return error_codes.NOT_LEADER_OR_FOLLOWER
    if item.leader.broker_epoch != broker_epoch:
        return error_codes.STALE_BROKER_EPOCH
    if partition.partition_epoch != item.partition_epoch:
        return error_codes.INVALID_UPDATE_VERSION
    for broker_id, epoch in item.new_isr:
        broker = image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:  # it restarted since the decision
            return error_codes.INELIGIBLE_REPLICA
    return 0


def alter_partition_request(leader: IsrMember, items: Iterable[AlterPartitionItem]) -> Mapping[str, object]:
    """The request for items of one leader."""
    topics: dict[TopicId, list[dict[str, object]]] = {}
    for item in items:
        topics.setdefault(item.topic_id, []).append(
            {
                "partition_index": item.tp.partition,
                "leader_epoch": item.leader_epoch,
                "new_isr": [member.broker_id for member in item.new_isr],  # v2
                "new_isr_with_epochs": [member._asdict() for member in item.new_isr],  # v3, KIP-903
                "leader_recovery_state": 0,
                "partition_epoch": item.partition_epoch,
            }
        )
    return {
        **leader._asdict(),
        "topics": [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in topics.items()],
    }
