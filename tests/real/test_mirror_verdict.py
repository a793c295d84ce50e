"""What doctor, a new beginning and a delete say of mirrors that other hands have changed at the target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from admin.models import MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import TroubleScene, delete_topic, write
from tests.real.kafka_admin import kafka_admin


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sidecar: SidecarProcess,
    unique_topic: Callable[[str], str],
) -> AsyncIterator[TroubleScene]:
    topic = SourceTopic(unique_topic("v"), 1, SourceFiller.history)
    made = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
    await made.begin(writers=False, factor=2)
    await made.copied()
    yield made
    await made.close()


async def doctor(scene: TroubleScene) -> tuple[int, str]:
    result = await scene.sidecar.run("doctor", "--link", LINK)
    return result.exit_code, result.output


async def test_doctor_fails_for_a_mirror_whose_topic_is_gone(scene: TroubleScene) -> None:
    name = scene.names[0]
    code, told = await doctor(scene)
    assert code == 0, told
    assert "1 ACTIVE" in told
    await asyncio.to_thread(delete_topic, scene.target.bootstrap, name)
    await scene.shown(MirrorState.FAILED, "deleted at the target")
    code, told = await doctor(scene)
    assert code == 1, told
    assert f"FAIL  mirror {name}: FAILED: the mirror topic was deleted at the target" in told
    assert f"create it again: linker mirror create --link {LINK} {name}" in told
    for more in ((), ("--dry-run",)):
        refused = await scene.sidecar.run("mirror", "resume", name, "--link", LINK, "--restart", *more)
        assert refused.exit_code == 1
        assert "cannot be begun again: its topic was deleted at the target" in refused.errors
    await scene.sidecar.linker("mirror", "delete", name, "--link", LINK, "--yes")


@pytest.mark.slow
async def test_records_in_added_partitions_are_not_deleted_without_a_word(scene: TroubleScene) -> None:
    """40 of them, acknowledged by a real broker, in a partition that only the target has."""
    name = scene.names[0]
    admin = await asyncio.to_thread(kafka_admin, scene.target.bootstrap)
    [added] = admin.create_partitions([NewPartitions(name, 3)]).values()
    await asyncio.to_thread(added.result, 30)
    await scene.shown_reason("somebody added partitions")
    await asyncio.to_thread(write, scene.target.bootstrap, name, 40, partition=2)
    dry = await scene.sidecar.linker("mirror", "delete", name, "--link", LINK, "--dry-run")
    assert "40 acknowledged records exist at the target alone" in dry.output
    assert f"would drop copies of {name}-0: " in dry.output
    refused = await scene.sidecar.run("mirror", "delete", name, "--link", LINK, "--yes")
    assert refused.exit_code == 1
    assert "40 acknowledged records" in refused.errors
    code, told = await doctor(scene)
    assert code == 1, told
    assert "somebody added partitions" in told
    await scene.sidecar.linker("mirror", "delete", name, "--link", LINK, "--yes", "--force")


async def elect(admin: AdminClient, topic: str) -> None:
    """An unclean election of partition 0, as soon as the controller counts the sidecar as dead: not before."""
    deadline = time.monotonic() + 60
    while True:
        elected = admin.elect_leaders(ElectionType.UNCLEAN, [KafkaPartition(topic, 0)])
        await asyncio.to_thread(elected.result, 60)
        leader = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
        if 0 <= leader < 900:
            return
        assert time.monotonic() < deadline, f"led by {leader}"
        await asyncio.sleep(1)


async def test_a_fork_is_told_and_counted_and_not_begun_again(scene: TroubleScene) -> None:
    """While the sidecar is down somebody forces an election, and clients write to what was a copy."""
    name = scene.names[0]
    [end] = (await asyncio.to_thread(scene.source_ends)).values()
    await scene.sidecar.stop()
    try:
        admin = await asyncio.to_thread(kafka_admin, scene.target.bootstrap)
        await elect(admin, name)
        await asyncio.to_thread(write, scene.target.bootstrap, name, 25)
    finally:
        await scene.sidecar.start()
    await scene.shown(MirrorState.FAILED, "without a promote")
    code, told = await doctor(scene)
    assert code == 1, told
    assert f"FAIL  mirror {name}: FAILED" in told
    refused = await scene.sidecar.run("mirror", "resume", name, "--link", LINK, "--restart")
    assert refused.exit_code == 1, refused.output
    assert "real brokers of the target lead it" in refused.errors
    dry = await scene.sidecar.linker("mirror", "delete", name, "--link", LINK, "--dry-run")
    assert f"{name}-0: up to 25 acknowledged records, from offset {end} on" in dry.output
    await scene.sidecar.linker("mirror", "delete", name, "--link", LINK, "--yes", "--force")
