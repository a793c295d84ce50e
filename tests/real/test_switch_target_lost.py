"""The cluster that owns switched topics is lost for good: the one that was left goes on with what it has followed."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from lab.workload.checker import check
from lab.workload.inspection import final_logs, placements
from lab.workload.live_producers import LibrdkafkaProducer
from tests.real.test_switch import LINK, Scene, StartCluster, StartSidecar, real, scene_of

pytestmark = pytest.mark.timeout(420)


def open_again(scene: Scene) -> None:
    entry = ConfigEntry("max.message.bytes", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, scene.topic.name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": scene.source.bootstrap})
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(30)


async def test_finish_gives_the_source_its_topics_when_the_target_is_lost(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Its brokers lead what they have followed; the topic takes writes again when its max.message.bytes is removed."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="REVERSED", state="ACTIVE")
    await scene.acked_more(50)
    for producer in scene.producers:
        await producer.stop()
    await asyncio.sleep(3)
    for node in scene.target.nodes.values():
        await node.kill()
    await scene.sidecar.linker("mirror", "finish", "orders", "--link", LINK, "--yes", timeout=120)
    await scene.owner_leads(scene.source)
    placed = real(await asyncio.to_thread(placements, scene.source.bootstrap, [scene.topic]), scene.source)
    logs = await asyncio.to_thread(final_logs, scene.source, [scene.topic], placed)
    # All that the source's brokers had followed: here the producers had ended.
    verdict = check(scene.history, logs)
    assert verdict.acked > 200 and verdict.ok, verdict.violations
    await asyncio.to_thread(open_again, scene)
    producer = LibrdkafkaProducer("after", scene.topic.name, scene.topic.partitions, 40.0, scene.history)
    await producer.start(scene.source.bootstrap)
    scene.producers = [producer]
    await scene.acked_more(20)
    await producer.stop()
    for consumer in scene.consumers:
        await consumer.stop()
