"""Everything that the checker wants to know, collected from both clusters' disks when a run is over. Blocking."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import confluent_kafka
from confluent_kafka.admin import AdminClient, OffsetSpec

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.history import PartitionLog
from lab.workload.inspection import InspectionError, Placement, final_logs, placements
from lab.workload.log_compare import ReplicaComparison, compare_replica
from lab.workload.replica_log import ReplicaLog, open_replica
from lab.workload.source_data import SourceTopic
from tests.chaos.committed import TransactionLog, read_transactions
from tests.chaos.stage import Stage
from wire.frames.types import TopicPartition

PLACED_TIMEOUT = 30.0
COPIED_TIMEOUT = 30.0
ENDED_TIMEOUT = 30.0
SERVED_TIMEOUT = 10.0


class Collected:
    """Final logs and comparisons; see checker.Aftermath for what each is."""

    def __init__(self, stage: Stage, topics: Sequence[SourceTopic]) -> None:
        at_source = _placed(stage.source, topics)
        at_target = _placed(stage.target, topics)
        _wait_for_markers(stage.target, at_target)
        self.source: Mapping[TopicPartition, PartitionLog] = final_logs(stage.source, topics, at_source)
        self.owner: Mapping[TopicPartition, PartitionLog] = final_logs(stage.target, topics, at_target)
        self.owned_from: dict[TopicPartition, int] = {}
        self.replicas: list[ReplicaComparison] = []
        self.source_transactions: dict[TopicPartition, TransactionLog] = {}
        self.owner_transactions: dict[TopicPartition, TransactionLog] = {}
        deadline = time.monotonic() + COPIED_TIMEOUT
        for tp, placement in at_target.items():
            leader = open_replica(stage.target.log_dir(placement.leader), tp)
            end = leader.end()
            owned = self.owned_from[tp] = first_owned(leader, end)
            source = open_replica(stage.source.log_dir(at_source[tp].leader), tp)
            self.source_transactions[tp] = read_transactions(source)
            self.owner_transactions[tp] = read_transactions(leader)
            for broker in placement.replicas:
                replica = _copied(stage.target, broker, tp, end, deadline)
                self.replicas.append(compare_replica(source, replica, tp, broker, end=owned))
                if broker != placement.leader:
                    self.replicas.append(compare_replica(leader, replica, tp, broker))


def _wait_for_markers(cluster: KafkaCluster, placed: Mapping[TopicPartition, Placement]) -> None:
    """A commit is acknowledged once its coordinator has written it down (prepared); the markers follow. A transaction
    that stays open is for the checker to tell."""
    deadline = time.monotonic() + ENDED_TIMEOUT
    for tp, placement in placed.items():
        directory = cluster.log_dir(placement.leader)
        while read_transactions(open_replica(directory, tp)).open and time.monotonic() < deadline:
            time.sleep(0.1)


def reader_behind(
    bootstrap: str, reached: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[str]:
    """A line for each partition that the reader of committed records did not read to its end."""
    held = served_ends(bootstrap, ends)
    return [
        f"the reader of committed records is at {reached.get(tp)} of {tp}, which ends at {end}; its leader has {held[tp]}"
        for tp, end in ends.items()
        if reached.get(tp, 0) < end
    ]


def served_ends(bootstrap: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """What the leaders would serve to readers of all records and of committed ones: says who holds a reader back."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {confluent_kafka.TopicPartition(*tp): OffsetSpec.latest() for tp in tps}
    found: dict[TopicPartition, list[str]] = {TopicPartition(tp.topic, tp.partition): [] for tp in wanted}
    for name, level in (
        ("high watermark", confluent_kafka.IsolationLevel.READ_UNCOMMITTED),
        ("last stable offset", confluent_kafka.IsolationLevel.READ_COMMITTED),
    ):
        asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=SERVED_TIMEOUT)
        for tp, answer in asked.items():
            try:
                told: object = answer.result(SERVED_TIMEOUT).offset
            except confluent_kafka.KafkaException as error:
                told = error
            found[TopicPartition(tp.topic, tp.partition)].append(f"{name} {told}")
    return {tp: ", ".join(told) for tp, told in found.items()}


def first_owned(log: ReplicaLog, end: int) -> int:
    """The first offset that the target gave itself. All that was mirrored carries one leader epoch, that of the
    mirror's session; what came after the hand-over carries later ones. Mirrors begin with records in these runs."""
    session: int | None = None
    for batch in log.batches():
        epoch = batch.header.leader_epoch
        if session is None:
            session = epoch
        elif epoch != session:
            return batch.header.base_offset
    return end


def _placed(cluster: KafkaCluster, topics: Sequence[SourceTopic]) -> dict[TopicPartition, Placement]:
    """Where everything lies; at the target, on real brokers only."""
    deadline = time.monotonic() + PLACED_TIMEOUT
    real = {node.node_id for node in cluster.brokers}
    while True:
        try:
            placed = placements(cluster.bootstrap, topics)
        except InspectionError:
            if time.monotonic() > deadline:
                raise
        else:
            strange = {tp: one for tp, one in placed.items() if not {one.leader, *one.replicas} <= real}
            if not strange:
                return placed
            if time.monotonic() > deadline:
                raise InspectionError(f"not on real brokers alone: {strange}")
        time.sleep(0.2)


def _copied(cluster: KafkaCluster, broker: int, tp: TopicPartition, end: int, deadline: float) -> ReplicaLog:
    """The replica once it has everything; a comparison tells if it has not in time."""
    replica = open_replica(cluster.log_dir(broker), tp)
    while replica.end() < end and time.monotonic() < deadline:
        time.sleep(0.1)
        replica = open_replica(cluster.log_dir(broker), tp)
    return replica
