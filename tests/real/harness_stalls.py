"""Real reasons why something does not go on, for the length of a block; and what clusters say about themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin import AdminClient as KafkaAdmin

from lab.clusters.child_process import ChildProcess
from lab.clusters.kafka_cluster import KafkaCluster
from tests.real.kafka_admin import kafka_admin
from wire.frames.types import TopicPartition

PATIENCE = 90.0  # for what has to happen, on a machine that is busy with something else


@contextmanager
def stopped(process: ChildProcess) -> Iterator[None]:
    """SIGSTOP for the length of the block: connections stay open and nothing answers."""
    process.pause()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def open_transaction(cluster: KafkaCluster, tp: TopicPartition) -> Iterator[None]:
    """A transaction that has written one record to the partition; committed at the end of the block."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": f"tx-{tp}",
            "transaction.timeout.ms": 120_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(tp.topic, b"inside a transaction", partition=tp.partition)
    assert producer.flush(30) == 0
    try:
        yield
    finally:
        producer.commit_transaction(30)


@contextmanager
def without_alter_configs(cluster: KafkaCluster, topic: str) -> Iterator[None]:
    """Nobody may change the topic's configs for the length of the block; everything else stays allowed."""
    admin = kafka_admin(cluster.bootstrap)

    def entry(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        pattern = ResourcePatternType.LITERAL
        return AclBinding(ResourceType.TOPIC, topic, pattern, "User:*", "*", operation, permission)

    entries = [
        entry(AclOperation.ALL, AclPermissionType.ALLOW),
        entry(AclOperation.ALTER_CONFIGS, AclPermissionType.DENY),
    ]
    for future in admin.create_acls(entries).values():
        future.result(30)
    try:
        yield
    finally:
        filters = [
            AclBindingFilter(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                None,  # type: ignore[arg-type]  # any principal
                None,  # type: ignore[arg-type]  # any host
                one.operation,
                one.permission_type,
            )
            for one in reversed(entries)
        ]
        for future in admin.delete_acls(filters).values():
            future.result(30)


async def brokers_back(cluster: KafkaCluster) -> None:
    """Wait until every real broker is in the cluster again, unfenced."""
    admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap})
    wanted = {node.node_id for node in cluster.brokers}

    def seen() -> bool:
        return wanted <= set(admin.list_topics(timeout=10).brokers)

    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(seen):
        assert time.monotonic() < deadline, "a broker did not come back"
        await asyncio.sleep(0.2)


def topic_configs(bootstrap: str, topic: str) -> dict[str, tuple[str, bool]]:
    """Config name -> (effective value, whether it is set on the topic itself)."""
    admin = kafka_admin(bootstrap)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(30)
    return {name: (entry.value, entry.source == 1) for name, entry in found.items()}


def cluster_leaders(cluster: KafkaCluster) -> dict[int, int]:
    """How many partitions each real broker leads, over all topics but those that a cluster makes for itself at any time."""
    counts = {node.node_id: 0 for node in cluster.brokers}
    admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap})
    for name, topic in admin.list_topics(timeout=30).topics.items():
        for partition in () if name.startswith("__") else topic.partitions.values():
            if partition.leader in counts:
                counts[partition.leader] += 1
    return counts
