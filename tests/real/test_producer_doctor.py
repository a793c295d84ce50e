"""`linker doctor` without a sidecar, on real clusters: what it says of producers, groups, rights and clocks is so."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Consumer

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.history import History
from lab.workload.live_producers import CLIENT_LOG, LibrdkafkaProducer
from lab.workload.source_data import SourceFiller, SourceTopic

pytestmark = pytest.mark.timeout(180)


@pytest_asyncio.fixture(loop_scope="session")
async def topic(
    source_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> AsyncIterator[SourceTopic]:
    """Written to and read by a group that commits all the time."""
    made = SourceTopic(unique_topic("looked-at"), 2, SourceFiller.history, live=True)
    filler = SourceFiller(source_cluster.bootstrap, scale=0.02)
    await asyncio.to_thread(filler.create, [made], 1)
    producer = LibrdkafkaProducer("writer", made.name, 2, 50, History())
    await producer.start(source_cluster.bootstrap)
    stop = asyncio.Event()

    def consume() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": source_cluster.bootstrap,
                "group.id": f"readers-of-{made.name}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": "300",
            },
            logger=CLIENT_LOG,
        )
        consumer.subscribe([made.name])
        try:
            while not stop.is_set():
                consumer.consume(100, 0.1)
        finally:
            consumer.close()

    consuming = asyncio.create_task(asyncio.to_thread(consume))
    try:
        await asyncio.sleep(4)
        yield made
    finally:
        stop.set()
        await consuming
        await producer.stop()


async def test_without_a_sidecar(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, topic: SourceTopic, tmp_path: Path
) -> None:
    config = tmp_path / "linker.yaml"
    config.write_text(
        "sidecar: {broker.id: 950, listeners: 'PLAINTEXT://127.0.0.1:19092'}\n"
        f"target: {{bootstrap.servers: '{target_cluster.bootstrap}'}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "linker", "doctor", "--config", str(config)),
        *("-b", source_cluster.bootstrap, "--topic", topic.name, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        out, errors = await process.communicate()
    assert process.returncode == 0, (out, errors)
    [report] = json.loads(out)
    lines = [(check["name"], check["result"], check["detail"]) for check in report["checks"]]
    assert not [line for line in lines if line[1] == "FAIL"], lines
    [producers] = [detail for name, _, detail in lines if name == "producers"]
    assert f"topic {topic.name}: 1 producer with an id wrote" in producers
    # Of other groups in the cluster it says what it could not learn.
    [groups] = [detail for name, result, detail in lines if (name, result) == ("groups", "OK")]
    assert groups == f"topic {topic.name}: readers-of-{topic.name} (1 members)"
    [rights] = [result for name, result, _ in lines if name == "source rights"]
    assert rights == "OK"
    clocks = [(result, detail) for name, result, detail in lines if name == "clocks"]
    known = [detail for result, detail in clocks if result == "OK" and detail.startswith("source")]
    assert known, clocks
    print(lines)
    # All of them are this machine's clock: no range may leave out zero.
    for part in known[0].partition(": ")[2].split(", "):
        low, high = part.split()[2], part.split()[4]
        assert int(low) <= 20, part
        assert int(high) >= -20, part
