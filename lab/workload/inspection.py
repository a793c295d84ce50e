"""Looking at both clusters afterwards: who leads what, what the logs hold, whether replicas are equal."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from lab.clusters.child_process import ChildProcess
from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.history import LogRecord, PartitionLog, parse_identity
from lab.workload.log_compare import ReplicaComparison, compare_replica
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceTopic
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

IN_SYNC_TIMEOUT = 30.0
_BELOW = "below high watermark"  # Kafka's UnifiedLog.truncateTo

log = logging.getLogger(__name__)


class InspectionError(LinkerError):
    """A cluster does not say what one needs to know."""


class Placement(NamedTuple):
    """Where a partition lies."""

    leader: int
    replicas: tuple[int, ...]


def placements(bootstrap: str, topics: Iterable[SourceTopic]) -> dict[TopicPartition, Placement]:
    """Leader and replicas of every partition of the topics."""
    found = AdminClient({"bootstrap.servers": bootstrap}, logger=log).list_topics(timeout=30).topics
    result = {}
    for topic in topics:
        for partition in topic.topic_partitions():
            metadata = found.get(topic.name)
            info = metadata.partitions.get(partition.partition) if metadata else None
            if info is None or info.leader < 0:
                raise InspectionError(f"{topic.name}-{partition.partition} has no leader at {bootstrap}")
            result[partition] = Placement(info.leader, tuple(info.replicas))
    return result


def leaders(placed: Mapping[TopicPartition, Placement]) -> dict[int, int]:
    """How many partitions each broker leads."""
    return dict(Counter(placement.leader for placement in placed.values()))


def final_logs(
    cluster: KafkaCluster, topics: Iterable[SourceTopic], placed: Mapping[TopicPartition, Placement]
) -> dict[TopicPartition, PartitionLog]:
    """The live producers' records as the leader of each partition holds them."""
    logs = {}
    for partition in (tp for topic in topics for tp in topic.topic_partitions()):
        replica = open_replica(cluster.log_dir(placed[partition].leader), partition)
        records = []
        end = replica.start
        for batch in replica.batches():
            end = batch.header.next_offset
            if batch.header.is_control:
                continue
            for record in batch.records():
                identity = parse_identity(record.value)
                if identity is not None:
                    records.append(LogRecord(record.offset, *identity))
        logs[partition] = PartitionLog(replica.start, end, records)
    return logs


def older_records(
    cluster: KafkaCluster,
    topics: Iterable[SourceTopic],
    placed: Mapping[TopicPartition, Placement],
    before_ms: int,
) -> int:
    """Records with a timestamp before that moment, as the leaders hold them."""
    found = 0
    for partition in (tp for topic in topics if not topic.compacted for tp in topic.topic_partitions()):
        for batch in open_replica(cluster.log_dir(placed[partition].leader), partition).batches():
            if not batch.header.is_control:
                found += sum(record.timestamp < before_ms for record in batch.records())
    return found


def compare_clusters(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: Sequence[SourceTopic],
    source_placed: Mapping[TopicPartition, Placement],
    target_placed: Mapping[TopicPartition, Placement],
    began: Mapping[TopicPartition, int] | None = None,
) -> list[ReplicaComparison]:
    """Every target replica of every partition against the source's leader. `began`: where the source's logs begin for
    clients; its files may hold more (DeleteRecords)."""
    results = []
    for topic in topics:
        for partition in topic.topic_partitions():
            original = open_replica(source.log_dir(source_placed[partition].leader), partition)
            for broker in target_placed[partition].replicas:
                replica = open_replica(target.log_dir(broker), partition)
                results.append(
                    compare_replica(
                        original,
                        replica,
                        partition,
                        broker,
                        compacted=topic.compacted,
                        began=(began or {}).get(partition, 0),
                    )
                )
    return results


def compare_followers(
    target: KafkaCluster,
    topics: Sequence[SourceTopic],
    placed: Mapping[TopicPartition, Placement],
    began: Mapping[TopicPartition, int] | None = None,
) -> list[ReplicaComparison]:
    """Every follower of the target against its leader, once it has caught up; writers have stopped before. `began`: where
    the logs begin for clients; a leader's files may hold more than those of a follower that began later."""
    deadline = time.monotonic() + IN_SYNC_TIMEOUT
    results = []
    for topic in topics:
        for partition in topic.topic_partitions():
            leader, replicas = placed[partition]
            original = open_replica(target.log_dir(leader), partition)
            for broker in replicas:
                if broker == leader:
                    continue
                replica = open_replica(target.log_dir(broker), partition)
                while replica.end() < original.end() and time.monotonic() < deadline:
                    time.sleep(0.05)
                    replica = open_replica(target.log_dir(broker), partition)
                results.append(
                    compare_replica(
                        original,
                        replica,
                        partition,
                        broker,
                        compacted=topic.compacted,
                        began=(began or {}).get(partition, 0),
                    )
                )
    return results


def truncations(nodes: Iterable[ChildProcess], topics: Sequence[SourceTopic]) -> list[str]:
    """By the brokers' own logs: who truncated records that it knew to be committed, and where to. Followers of a mirror may
    do so rightly: a sidecar died before it had written a leader epoch down, and the same records come again."""
    wanted = [f" {tp} to offset" for topic in topics for tp in topic.topic_partitions()]
    found = []
    for node in nodes:
        with node.log.open(errors="replace") as lines:
            found += [
                f"{node.name}: {line[line.index('Truncating') :].strip()}"
                for line in lines
                if _BELOW in line and any(one in line for one in wanted)
            ]
    return found
