"""The producers of a partition (DescribeProducers, KIP-664), and abort markers for them.

It serves source and target alike; the caller knows the leader, and decides what follows from a producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from controller.judge.hand_over import find
from controller.state import AbortedTransaction
from linker.membership import TargetCluster
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.types import TopicPartition, per_topic
from wire.together import together, together_by_key

_MARKERS_VERSION = 1  # v2 (KIP-1228) adds the transaction version, which only a coordinator can know
_INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE, _PRODUCER_FENCED = 47, 48, 90


class ProducerState(NamedTuple):
    """One active producer of a partition. -1: none, or not known. `last_timestamp` in epoch milliseconds."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_start_offset: int

    @property
    def in_transaction(self) -> bool:
        return self.txn_start_offset >= 0


States = Mapping[TopicPartition, Sequence[ProducerState]]


async def describe_producers(
    cluster: Cluster, leaders: Mapping[TopicPartition, int], *, timeout: float
) -> dict[TopicPartition, list[ProducerState]]:
    """The producers of each partition as its leader has them. BrokerError with the partition if one is refused (READ on
    the topic is needed); LinkerError if a leader cannot be asked, or is older than the request (before 2.8)."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for tp, leader in leaders.items():
        by_leader.setdefault(leader, []).append(tp)
    answers = await together_by_key(
        {leader: _ask(cluster, leader, tps, timeout) for leader, tps in by_leader.items()}
    )
    return {tp: found for answer in answers.values() for tp, found in answer.items()}


async def _ask(
    cluster: Cluster, leader: int, tps: Iterable[TopicPartition], timeout: float
) -> dict[TopicPartition, list[ProducerState]]:
    answer = await cluster.call(
        "describe_producers",
        {
            "topics": [
                {"name": topic, "partition_indexes": [tp.partition for tp in of_topic]}
                for topic, of_topic in per_topic(tps).items()
            ]
        },
        node_id=leader,
        timeout=timeout,
    )
    found: dict[TopicPartition, list[ProducerState]] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if int(part.error_code):
                raise BrokerError(
                    int(part.error_code),
                    message=f"broker {leader} of {cluster.name} does not tell its producers",
                    api="describe_producers",
                    topic_partition=tp,
                )
            found[tp] = [
                ProducerState(
                    int(p.producer_id),
                    int(p.producer_epoch),
                    int(p.last_sequence),
                    int(p.last_timestamp),
                    int(p.coordinator_epoch),
                    int(p.current_txn_start_offset),
                )
                for p in part.active_producers
            ]
    return found


async def abort_transactions(
    cluster: Cluster, leaders: Mapping[TopicPartition, int], open_: States, *, timeout: float
) -> None:
    """Write an abort marker for each, as `kafka-transactions.sh abort` does: to the partition's leader, with the
    coordinator epoch that it knows already, or 0. CLUSTER_ACTION, or ALTER on Cluster, is needed.

    A producer that went on meanwhile (another epoch, or no transaction any more) is left alone. The coordinator is not
    asked, and may write its own marker later: a second one changes nothing.
    """
    by_leader: dict[int, list[dict[str, object]]] = {}
    for tp, producers in open_.items():
        for one in producers:
            by_leader.setdefault(leaders[tp], []).append(
                {
                    "producer_id": one.producer_id,
                    "producer_epoch": one.producer_epoch,
                    "transaction_result": False,
                    "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}],
                    "coordinator_epoch": max(0, one.coordinator_epoch),
                }
            )
    await together(_mark(cluster, leader, markers, timeout) for leader, markers in by_leader.items())


async def _mark(cluster: Cluster, leader: int, markers: list[dict[str, object]], timeout: float) -> None:
    answer = await cluster.call(
        "write_txn_markers",
        {"markers": markers},
        node_id=leader,
        timeout=timeout,
        version=_MARKERS_VERSION,
    )
    for marker in answer.markers:
        for topic in marker.topics:
            for part in topic.partitions:
                code = int(part.error_code)
                if code and code not in (_INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE, _PRODUCER_FENCED):
                    raise BrokerError(
                        code,
                        message=f"broker {leader} of {cluster.name} refuses the abort marker of producer "
                        f"{marker.producer_id}",
                        api="write_txn_markers",
                        version=_MARKERS_VERSION,
                        topic_partition=TopicPartition(topic.name, part.partition_index),
                    )


class TargetTransactions:
    """linker.promote.failover.OpenTransactions"""

    def __init__(self, target: TargetCluster) -> None:
        self._target = target

    def _leaders(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for tp in tps:
            partition = find(self._target.image, tp)
            if partition is None or partition.leader < 0:
                raise LinkerError(f"{tp} has no leader at the target")
            found[tp] = partition.leader
        return found

    async def _open(
        self, tps: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, list[ProducerState]]:
        states = await describe_producers(self._target.cluster, self._leaders(tps), timeout=timeout)
        return {tp: [one for one in found if one.in_transaction] for tp, found in states.items()}

    async def find(
        self, tps: Iterable[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, Sequence[AbortedTransaction]]:
        return {
            tp: [
                AbortedTransaction(
                    producer_id=one.producer_id,
                    producer_epoch=one.producer_epoch,
                    start_offset=one.txn_start_offset,
                )
                for one in found
            ]
            for tp, found in (await self._open(tps, timeout)).items()
        }

    async def abort(
        self, found: Mapping[TopicPartition, Sequence[AbortedTransaction]], *, timeout: float
    ) -> None:
        open_ = await self._open(found, timeout / 2)
        mine = {
            tp: [
                one
                for one in seen
                if any(
                    (a.producer_id, a.producer_epoch) == (one.producer_id, one.producer_epoch)
                    for a in found[tp]
                )
            ]
            for tp, seen in open_.items()
        }
        await abort_transactions(self._target.cluster, self._leaders(found), mine, timeout=timeout / 2)
