"""The main story with everything in containers: link, mirror, write through the sidecar, promote, records equal.

The story knows only the interface of `lab.clusters.makers`, so `make test-containers MAKER=jars` runs it on jars.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lab.clusters.kafka_cluster import KafkaClusterSpec
from lab.clusters.kafka_containers import ContainerMaker, missing_engine
from lab.clusters.makers import SIDECAR_ID, AnySidecar, JarMaker, Maker

pytestmark = [
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # testcontainers leaves the connections of its networks and of its reaper to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC = "orders"
PARTITIONS = 2
LINK = "east"
WAIT = 60.0
Row = tuple[int | None, int | None, tuple[int, int], bytes | None, bytes | None]


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    if os.environ.get("MAKER") == "jars":
        return JarMaker(tmp_path)
    if reason := missing_engine():
        pytest.skip(reason)
    return ContainerMaker(tmp_path)


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # held: without it its futures end in an error
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    admin.create_topics([topic])[TOPIC].result(timeout=WAIT)


def write(bootstrap: str, first: int, count: int) -> None:
    """All acknowledged, or an error."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failed: list[object] = []
    for number in range(first, first + count):
        producer.produce(
            TOPIC,
            key=b"%d" % number,
            value=b"value %d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
    assert producer.flush(WAIT) == 0
    assert not failed


def read(bootstrap: str) -> list[Row]:
    """Every record of the topic, up to the ends as they are now."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader-without-commits", "enable.auto.commit": False}
    )
    try:
        parts = [TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(part, timeout=WAIT)[1] for part in parts)
        consumer.assign(parts)
        rows: list[Row] = []
        deadline = time.monotonic() + WAIT
        while len(rows) < left:
            assert time.monotonic() < deadline, f"{len(rows)} of {left} records after {WAIT:.0f} s"
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None
                rows.append(
                    (
                        message.partition(),
                        message.offset(),
                        message.timestamp(),
                        message.key(),
                        message.value(),
                    )
                )
        return sorted(rows, key=lambda row: (row[0], row[1]))
    finally:
        consumer.close()


def leaders(bootstrap: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(TOPIC, timeout=WAIT).topics[TOPIC]
    return {partition.leader for partition in partitions.partitions.values()}


async def caught_up(sidecar: AnySidecar) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            (mirror,) = (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
            assert mirror["state"] != "FAILED", mirror
            if mirror["state"] == "ACTIVE" and mirror["lag"] == 0:
                return
            await asyncio.sleep(0.2)


async def test_main_story(maker: Maker) -> None:
    async with maker:
        source_spec = KafkaClusterSpec(name="source")
        target_spec = KafkaClusterSpec(name="target", brokers=2)
        async with maker.cluster(source_spec) as source, maker.cluster(target_spec) as target:
            await asyncio.to_thread(create_topic, source.bootstrap)
            await asyncio.to_thread(write, source.bootstrap, 0, 500)
            async with maker.sidecar(target) as sidecar:
                await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.inside)
                await sidecar.linker("mirror", "create", TOPIC, "--link", LINK, "-r", "2")
                await caught_up(sidecar)
                assert await asyncio.to_thread(leaders, target.bootstrap) == {SIDECAR_ID}

                await asyncio.to_thread(write, target.bootstrap, 500, 300)
                at_source = await asyncio.to_thread(read, source.bootstrap)
                assert {row[3] for row in at_source} == {b"%d" % number for number in range(800)}

                await sidecar.linker("mirror", "promote", TOPIC, "--link", LINK)
                assert SIDECAR_ID not in await asyncio.to_thread(leaders, target.bootstrap)
                assert await asyncio.to_thread(read, target.bootstrap) == at_source
                await sidecar.linker("sidecar", "leave", str(SIDECAR_ID))
            await asyncio.to_thread(write, target.bootstrap, 800, 10)
            assert len(await asyncio.to_thread(read, target.bootstrap)) == 810
