"""Consumers that name a replica by `client.rack=linker.replica=N`, on real brokers, before and after a promote."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, Scene

RECORDS = 300
NOWHERE = -1


async def by_aiokafka(bootstrap: str, topic: str, rack: str) -> tuple[list[int], int]:
    """Offsets read, and the replica that gave them (NOWHERE: no redirection)."""
    partition = AiokafkaPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, client_rack=rack, auto_offset_reset="earliest", group_id=None
    )
    await consumer.start()
    try:
        consumer.assign([partition])
        offsets: list[int] = []
        async with asyncio.timeout(30):
            while len(offsets) < RECORDS:
                found = await consumer.getmany(partition, timeout_ms=200)
                offsets += [record.offset for record in found.get(partition, [])]
        replica, _ = consumer._fetcher._preferred_read_replica.get(partition, (NOWHERE, 0))
    finally:
        await consumer.stop()
    return offsets, replica


def librdkafka(bootstrap: str, topic: str, rack: str) -> tuple[list[int], int]:
    """Offsets read, and the broker that they came from, out of librdkafka's statistics."""
    told: list[int] = []

    def statistics(text: str) -> None:
        partition = json.loads(text)["topics"].get(topic, {}).get("partitions", {}).get("0")
        if partition is not None:
            told.append(partition["broker"])

    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.rack": rack,
            "group.id": "reads-only",
            "enable.auto.commit": False,
            "statistics.interval.ms": 100,
            "stats_cb": statistics,
        }
    )
    try:
        consumer.assign([LibrdkafkaPartition(topic, 0, 0)])
        offsets: list[int] = []
        deadline = time.monotonic() + 30
        enough = 0.0
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                offsets.append(message.offset())
            elif len(offsets) >= RECORDS:
                enough = enough or time.monotonic() + 0.5  # statistics of the time after the last record
                if time.monotonic() > enough:
                    break
    finally:
        consumer.close()
    return offsets, told[-1]


async def by_librdkafka(bootstrap: str, topic: str, rack: str) -> tuple[list[int], int]:
    return await asyncio.to_thread(librdkafka, bootstrap, topic, rack)


@pytest.mark.timeout(150)
async def test_the_named_replica_is_read_until_a_stock_broker_leads(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    topic = SourceTopic(unique_topic("orders"), 1, SourceFiller.history)
    filler = SourceFiller(source_cluster.bootstrap)
    await asyncio.to_thread(filler.create, [topic], 2)
    producer = filler._shared("none")
    for number in range(RECORDS):
        producer.produce(topic.name, value=b"%d" % number, partition=0)
    await asyncio.to_thread(producer.flush, 30)
    sidecar = await start_sidecar(target_cluster.bootstrap)
    scene = Scene(source_cluster, target_cluster, sidecar, [topic])
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source_cluster.bootstrap)
    await sidecar.linker("mirror", "create", topic.name, "--link", LINK, "--replication-factor", "3")
    await scene.wait_active()
    await scene.hush()

    everything = list(range(RECORDS))
    for broker in (1, 2, 3):
        rack = f"linker.replica={broker}"
        assert await by_aiokafka(target_cluster.bootstrap, topic.name, rack) == (everything, broker)
    assert await by_librdkafka(target_cluster.bootstrap, topic.name, "linker.replica=3") == (everything, 3)
    # Not a replica: as without a name. A rack is a rack.
    assert await by_aiokafka(target_cluster.bootstrap, topic.name, "linker.replica=77") == (
        everything,
        NOWHERE,
    )
    offsets, replica = await by_aiokafka(target_cluster.bootstrap, topic.name, "b")
    assert (offsets, replica) == (everything, 2)

    await sidecar.linker("mirror", "promote", topic.name, "--link", LINK)
    assert await by_aiokafka(target_cluster.bootstrap, topic.name, "linker.replica=2") == (
        everything,
        NOWHERE,
    )
