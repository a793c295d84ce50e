"""Where a mirror begins: earliest, latest, or the first record at or after a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from confluent_kafka import Producer

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic

OLD, YOUNG = 1_700_000_000_000, 1_700_000_600_000


def write(bootstrap: str, topic: str, timestamp: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=timestamp + number)
    assert producer.flush(30) == 0


async def test_a_mirror_begins_where_it_is_told(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    sidecar = await start_sidecar(target_cluster.bootstrap)
    await sidecar.linker("link", "create", "old", "--bootstrap-servers", source_cluster.bootstrap)
    keep = {"retention.ms": "-1"}  # the timestamps are years old
    # Ten old records, then ten young ones; the end is 20.
    for start, first in (("earliest", 0), ("latest", 20), (str(YOUNG), 10), (str(YOUNG + 10_000), 20)):
        topic = SourceTopic(unique_topic("start"), 1, SourceFiller.history, keep)
        filler = SourceFiller(source_cluster.bootstrap)
        await asyncio.to_thread(filler.create, [topic], 1)
        await asyncio.to_thread(write, source_cluster.bootstrap, topic.name, OLD, 10)
        await asyncio.to_thread(write, source_cluster.bootstrap, topic.name, YOUNG, 10)
        await sidecar.linker("mirror", "create", topic.name, "--link", "old", "--start", start)
        async with asyncio.timeout(60):
            while True:
                answer = await sidecar.linker("lag", topic.name, "--link", "old", "-o", "json")
                found = answer.json()
                found = found[0] if isinstance(found, list) else found
                (partition,) = found["partitions"]
                # Where there is nothing to copy nothing is behind, before the replicas begin as after it.
                at_the_end = partition["target_end_offset"] == partition["source_end_offset"]
                if partition["state"] == "ACTIVE" and partition["lag"] == 0 and at_the_end:
                    break
                await asyncio.sleep(0.2)
        assert partition["source_start_offset"] == first, start
        assert partition["source_end_offset"] == partition["target_end_offset"] == 20
