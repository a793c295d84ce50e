"""The cluster that owns switched topics is lost for good: the one that was left goes on with what it has followed."""

from __future__ import annotations

import asyncio
import json

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from controller.plan.taken_configs import TAKEN_CONFIGS
from lab.workload.checker import check
from lab.workload.inspection import final_logs, placements
from lab.workload.live_producers import LibrdkafkaProducer
from tests.real.harness_tools import kafka_tool
from tests.real.test_switch import LINK, Scene, StartCluster, StartSidecar, real, scene_of

pytestmark = pytest.mark.timeout(420)


def open_again(scene: Scene) -> None:
    entry = ConfigEntry("max.message.bytes", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, scene.topic.name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": scene.source.bootstrap})
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(30)


async def switched_and_lost(start_cluster: StartCluster, start_sidecar: StartSidecar) -> Scene:
    """The target owns the topic, the source's brokers have followed all of it, and the target is gone."""
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
    return scene


async def goes_on(scene: Scene) -> None:
    """The source's brokers lead all that was acknowledged, and take writes."""
    await scene.owner_leads(scene.source)
    placed = real(await asyncio.to_thread(placements, scene.source.bootstrap, [scene.topic]), scene.source)
    logs = await asyncio.to_thread(final_logs, scene.source, [scene.topic], placed)
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


async def test_finish_gives_the_source_its_topics_when_the_target_is_lost(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Its brokers lead what they have followed; the topic takes writes again when its max.message.bytes is removed.

    Long after: by then the sidecar's session at the target is over."""
    scene = await switched_and_lost(start_cluster, start_sidecar)
    await asyncio.sleep(15)
    await scene.sidecar.linker("mirror", "finish", "orders", "--link", LINK, "--yes", timeout=120)
    await goes_on(scene)


async def test_the_source_goes_on_by_hand_when_the_sidecars_are_lost_with_the_target(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """docs/switching.md has these commands."""
    scene = await switched_and_lost(start_cluster, start_sidecar)
    await scene.sidecar.kill()
    at, source = scene.source.bootstrap, scene.source.brokers

    async def topic() -> str:
        return (await kafka_tool(at, "kafka-topics", "--describe", "--topic", "orders")).text

    async def configs() -> set[str]:
        of = ("--entity-type", "topics", "--entity-name", "orders")
        told = (await kafka_tool(at, "kafka-configs", "--describe", *of)).text
        return {name for name in TAKEN_CONFIGS if f"{name}=" in told}

    async def run(tool: str, *arguments: str) -> None:
        result = await kafka_tool(at, tool, *arguments)
        assert result.exit_code == 0, result.text

    await asyncio.sleep(12)  # its session at the source ends
    assert (await topic()).count("Leader: none") == 4
    for partition in range(4):
        elect = ("--election-type", "unclean", "--topic", "orders", "--partition", str(partition))
        await run("kafka-leader-election", *elect)
    alter = ("--alter", "--entity-type", "topics", "--entity-name", "orders")
    await run("kafka-configs", *alter, "--delete-config", ",".join(sorted(await configs())))
    ids = [broker.node_id for broker in source]
    plan = {
        "version": 1,
        "partitions": [{"topic": "orders", "partition": n, "replicas": ids} for n in range(4)],
    }
    file = scene.sidecar.directory / "plan.json"
    file.write_text(json.dumps(plan))
    await run("kafka-reassign-partitions", "--reassignment-json-file", str(file), "--execute")
    await run("kafka-cluster", "unregister", "--id", "800")
    await goes_on(scene)
    told = await topic()
    assert (
        "800" not in told
        and told.count(f"Isr: {ids[0]},{ids[1]}") + told.count(f"Isr: {ids[1]},{ids[0]}") == 4
    )
    assert not await configs()
