"""A source of before KRaft is upgraded broker by broker under a link: metadata without topic ids, mixed, with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.kafka_jars import ensure_distribution
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_trouble import TroubleScene, in_sync, linked_sidecar, operator, patiently
from tests.real.harness_zookeeper import ZooKeeperKafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
OLD = {"inter.broker.protocol.version": "2.7"}  # the last protocol whose topics have no ids
NEW = {"inter.broker.protocol.version": "3.9"}
NEW_VERSION = "3.9.1"
NOBODY = 0


async def topic_ids(source: ZooKeeperKafka, topics: list[str]) -> list[int]:
    """As the source's metadata tells them; 0 is none."""
    async with operator(source) as client:  # type: ignore[arg-type]
        answer = await client.call("metadata", {"topics": [{"name": name} for name in topics]}, timeout=30)
        return [0 if topic.topic_id is None else topic.topic_id.int for topic in answer.topics]


async def test_a_zookeeper_source_is_upgraded_broker_by_broker(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str], tmp_path: Path, _numbers: Iterator[int]
) -> None:
    """2.8.2 to 3.9.1 with the protocol of 2.7 kept, then raised. Mirrors of before, of half-way and of afterwards."""
    newer = await ensure_distribution(NEW_VERSION)
    first = [SourceTopic(unique_topic("first"), 3, SourceFiller.history)]
    later = [SourceTopic(unique_topic(f"later{index}"), 1, SourceFiller.history) for index in range(2)]
    names = [one.name for one in first + later]
    async with ZooKeeperKafka(2, tmp_path / "old", OLD) as source:
        own_id = 900 + next(_numbers)
        async with linked_sidecar(source, target_cluster, own_id, tmp_path / "sidecar") as sidecar:  # type: ignore[arg-type]
            scene = TroubleScene(source, target_cluster, sidecar, first)  # type: ignore[arg-type]

            async def roll(more: dict[str, str]) -> None:
                for broker in source.brokers:
                    await patiently("ISR", lambda: in_sync(source, scene.topics, 2))  # type: ignore[arg-type]
                    await broker.restart_as(newer, more)
                    await scene.acked_more(20)
                    if later and more is OLD:
                        await grow(later.pop())

            async def grow(topic: SourceTopic) -> None:
                filler = SourceFiller(source.bootstrap, scale=0.05)
                await asyncio.to_thread(filler.create, [topic], 2)
                await asyncio.to_thread(filler.fill, [topic])
                await sidecar.linker("mirror", "create", topic.name, "--link", "old", "-r", "2")
                scene.topics.append(topic)
                await scene.wait_active()

            scene.copies = 2
            try:
                await scene.begin(factor=2)
                assert await topic_ids(source, names[:1]) == [NOBODY]
                await roll(OLD)
                assert await topic_ids(source, names) == [NOBODY] * 3
                await roll(NEW)
                assert NOBODY not in await topic_ids(source, names)
                await scene.acked_more(50)
                await scene.wait_active()
                await scene.promoted()
                await scene.acked_more(20)
                verdict = await scene.judge()
                assert verdict.acked > 300
            finally:
                await scene.close()
