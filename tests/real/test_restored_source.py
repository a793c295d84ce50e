"""A source that has not what it had: after an unclean election, or restored from a backup, with leader epochs that begin
again where they were.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from admin.models import MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_trouble import (
    TroubleScene,
    create_topic,
    fingerprint,
    in_sync,
    linked_sidecar,
    patiently,
    write,
)
from tests.real.kafka_admin import kafka_admin
from wire.frames.types import TopicPartition

METADATA = "__cluster_metadata-0"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_leader_epochs_that_went_back(
    target_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    tmp_path: Path,
    unique_topic: Callable[[str], str],
    _numbers: Iterator[int],
) -> None:
    """Of a log that was kept all is copied, by the mirror that is there and by a later one. One that was restored too has
    other records where it was copied: its mirror fails, and keeps what it has."""
    source = await start_cluster(name="restored")
    [broker] = source.brokers
    kept, later, lost = topics = [
        SourceTopic(unique_topic(name), 1, SourceFiller.history) for name in ("kept", "later", "lost")
    ]
    for topic in topics:
        await asyncio.to_thread(create_topic, source.bootstrap, topic.name)
        await asyncio.to_thread(say, source.bootstrap, topic.name, 100)
    backup = tmp_path / "backup"
    await broker.stop()
    shutil.copytree(broker.data, backup)
    await broker.start()
    await broker.restart()  # each start is another leader epoch
    for topic in topics:
        await asyncio.to_thread(say, source.bootstrap, topic.name, 100)
    async with linked_sidecar(source, target_cluster, 900 + next(_numbers), tmp_path / "s") as sidecar:
        scene = TroubleScene(source, target_cluster, sidecar, [kept, lost])
        await scene.mirror()
        await scene.copied()
        [gone] = lost.topic_partitions()
        before = await asyncio.to_thread(fingerprint, target_cluster, gone, (1, 2, 3))
        await broker.stop()
        for name in (METADATA, f"{gone.topic}-{gone.partition}"):
            shutil.rmtree(broker.data / name)
            shutil.copytree(backup / name, broker.data / name)
        await broker.start()
        for topic in topics:
            await asyncio.to_thread(say, source.bootstrap, topic.name, 300)
        found = await scene.shown(MirrorState.FAILED, "has replaced what was there", lost.name)
        assert "the mirror has copied up to offset 200" in (found.reason or "")
        assert await asyncio.to_thread(fingerprint, target_cluster, gone, (1, 2, 3)) == before
        scene.topics = [later]
        await scene.mirror()  # its epochs went back before it was made
        scene.topics = [kept, later]
        for tp in scene.tps:
            epochs = [one.header.leader_epoch for one in open_replica(source.log_dir(1), tp).batches()]
            assert epochs != sorted(epochs), epochs
        await scene.copied()
        await scene.promoted()
        await scene.judge()
        assert "leader epochs went back behind offset 200" in sidecar.log.read_text()
        await scene.close()


@pytest.mark.timeout(300)
async def test_an_unclean_election_at_the_source(
    target_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    tmp_path: Path,
    unique_topic: Callable[[str], str],
    _numbers: Iterator[int],
) -> None:
    """The source has dropped what was copied and has written something else: so have the replicas, from that offset on."""
    source = await start_cluster(name="unclean", brokers=2, controllers=1)
    ahead, behind = source.brokers
    async with linked_sidecar(source, target_cluster, 900 + next(_numbers), tmp_path / "s") as sidecar:
        topic = SourceTopic(unique_topic("t"), 1, SourceFiller.history)
        scene = TroubleScene(source, target_cluster, sidecar, [topic])
        [tp] = scene.tps
        await asyncio.to_thread(
            create_topic, source.bootstrap, topic.name, assignment=[[ahead.node_id, behind.node_id]]
        )
        await asyncio.to_thread(write, source.bootstrap, topic.name, 100)
        await patiently("both have it", lambda: in_sync(source, scene.topics, 2))
        await scene.mirror()
        await behind.stop()
        await asyncio.to_thread(write, source.bootstrap, topic.name, 100)
        await scene.copied()
        await ahead.stop()
        await behind.start()
        await scene.shown(MirrorState.SOURCE_UNAVAILABLE)
        admin = await asyncio.to_thread(kafka_admin, source.bootstrap)
        elected = admin.elect_leaders(ElectionType.UNCLEAN, [KafkaPartition(tp.topic, tp.partition)])
        await asyncio.to_thread(elected.result, 60)
        await asyncio.to_thread(write, source.bootstrap, topic.name, 70, size=400)
        await scene.shown(MirrorState.ACTIVE)
        await patiently("the replicas have the new log", lambda: ends(target_cluster, tp) == [170] * 3)
        assert "lost everything from offset 100 on" in sidecar.log.read_text()
        await scene.promoted()
        await scene.judge()
        await scene.close()


def ends(cluster: KafkaCluster, tp: TopicPartition) -> list[int]:
    return [open_replica(cluster.log_dir(broker), tp).end() for broker in (1, 2, 3)]


def say(bootstrap: str, topic: str, records: int) -> None:
    """Not idempotent: a restored cluster hands out the producer ids of before, whose sequences its logs know."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 30})
    for number in range(records):
        producer.produce(
            topic,
            b"%08d" % number,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not errors, errors[0]
