"""The addresses of a source: another cluster answers at one of them, or its brokers have moved away from all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from admin.models import MirrorState
from lab.clusters.kafka_cluster import CONTROLLER, KafkaCluster
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, PATIENCE
from tests.real.harness_trouble import (
    TroubleScene,
    create_topic,
    in_sync,
    linked_sidecar,
    patiently,
    reassign,
)
from tests.real.kafka_admin import kafka_admin
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.list_offsets import LATEST
from wire.frames.types import TopicPartition

StartCluster = Callable[..., Awaitable[KafkaCluster]]


async def link_reason(sidecar: SidecarProcess, wanted: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = (await sidecar.linker("link", "describe", LINK, "-o", "json")).json()
        reason = found["reason"] or ""
        if wanted in reason:
            return reason
        assert time.monotonic() < deadline, f"wanted {wanted!r}: {found}"
        await asyncio.sleep(0.2)


@pytest.mark.timeout(400)
async def test_another_cluster_takes_over_the_address_of_a_dead_broker(
    target_cluster: KafkaCluster,
    start_cluster: StartCluster,
    tmp_path: Path,
    unique_topic: Callable[[str], str],
    _numbers: Iterator[int],
) -> None:
    """It has a topic of the same name, and for a while it alone answers. Nothing fails, nothing goes there."""
    name = unique_topic("t")
    source = await start_cluster(name="own-source", brokers=2)
    async with linked_sidecar(source, target_cluster, 900 + next(_numbers), tmp_path / "s") as sidecar:
        again = ("link", "create", "again", "--bootstrap-servers", source.bootstrap, "--dry-run")
        assert "blocks of 1000" in (await sidecar.linker(*again)).output
        scene = TroubleScene(source, target_cluster, sidecar, [SourceTopic(name, 4, SourceFiller.history)])
        await scene.begin()
        [only] = [node for node in source.brokers if node.is_controller]
        [victim] = [node for node in source.brokers if not node.is_controller]
        await victim.kill()
        with PortReservation() as control:
            taken = {
                "listeners": f"PLAINTEXT://{victim.address()},{CONTROLLER}://127.0.0.1:{control.port}",
                "controller.quorum.voters": f"1@127.0.0.1:{control.port}",
            }
            thief = await start_cluster(name="thief", brokers=1, node_properties=lambda _: taken)
            await asyncio.to_thread(create_topic, victim.address(), name, 4)
            await scene.acked_more(50)
            wrong = f"address {victim.address()} answers for cluster {thief.cluster_id}, expected {source.cluster_id}"
            await only.kill()
            await scene.shown(MirrorState.SOURCE_UNAVAILABLE)
            assert wrong in await link_reason(sidecar, "answers for")
            await asyncio.sleep(12)  # longer than a topic has to be missing to be taken for deleted
            found = await scene.describe()
            assert found.state is MirrorState.SOURCE_UNAVAILABLE, found
            await only.start()
            await scene.shown(MirrorState.ACTIVE)
            await scene.acked_more(50)
            doctor = await sidecar.run("doctor", "--link", LINK, "-o", "json")
            assert "answers for cluster" in doctor.output, doctor
            there = Cluster(
                "thief", parse_bootstrap_servers(victim.address()), ClientSecurity.from_properties({}), "test"
            )
            await there.connect()
            ends = await there.list_offsets({TopicPartition(name, i): LATEST for i in range(4)})
            assert {end.offset for end in ends.values()} == {0}, ends
            await there.close()
            await thief.close()
        await victim.start()
        await patiently("the broker that returned is in sync", lambda: in_sync(source, scene.topics, 2))
        await scene.acked_more(50)
        await scene.promoted()
        await scene.judge()
        await scene.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_broker_is_replaced_by_another_one(
    target_cluster: KafkaCluster,
    start_cluster: StartCluster,
    tmp_path: Path,
    unique_topic: Callable[[str], str],
    _numbers: Iterator[int],
) -> None:
    """New ids at new addresses, one after the other, under load. The link goes on with those that it learns of; doctor says
    that its bootstrap.servers are dead, and after a restart the link says so too, and what helps."""
    source = await start_cluster(name="moving", brokers=4, controllers=1)
    old, new = source.brokers[:2], source.brokers[2:]
    await asyncio.gather(*(node.stop() for node in new))  # not there before their time
    first = SimpleNamespace(bootstrap=",".join(node.address() for node in old))
    async with linked_sidecar(first, target_cluster, 900 + next(_numbers), tmp_path / "s") as sidecar:  # type: ignore[arg-type]
        topic = SourceTopic(unique_topic("t"), 2, SourceFiller.history)
        scene = TroubleScene(source, target_cluster, sidecar, [topic])
        placed = {tp: [node.node_id for node in old] for tp in scene.tps}
        await asyncio.to_thread(
            create_topic, first.bootstrap, topic.name, 2, assignment=list(placed.values())
        )
        await scene.mirror()
        scene.add_writers(50)
        for producer in scene.producers:
            await producer.start(target_cluster.bootstrap)
        for leaves, comes in zip(old, new, strict=True):
            await comes.start()
            for replicas in placed.values():
                replicas[replicas.index(leaves.node_id)] = comes.node_id
            await reassign(source, placed)
            await patiently("moved", lambda: replicas_are(source, placed))
            await leaves.stop()
            await scene.acked_more(20)
        found = await scene.describe()
        assert found.state is MirrorState.ACTIVE, found
        doctor = await sidecar.run("doctor", "--link", LINK, "-o", "json")
        assert "no address of bootstrap.servers answers any more" in doctor.output, doctor
        await sidecar.stop()
        await sidecar.start()
        reason = await link_reason(sidecar, f"linker link update {LINK} --config bootstrap.servers=...")
        assert all(node.address() in reason for node in old), reason
        now = ",".join(node.address() for node in new)
        await sidecar.linker("link", "update", LINK, "--config", f"bootstrap.servers={now}")
        await scene.shown(MirrorState.ACTIVE)
        await scene.acked_more(20)
        await scene.promoted()
        await scene.judge()
        await scene.close()


def replicas_are(source: KafkaCluster, wanted: Mapping[TopicPartition, Sequence[int]]) -> bool:
    """All of them in sync, and no other."""
    topics = kafka_admin(source.bootstrap).list_topics(timeout=10).topics
    return all(
        sorted(topics[tp.topic].partitions[tp.partition].isrs)
        == sorted(topics[tp.topic].partitions[tp.partition].replicas)
        == sorted(replicas)
        for tp, replicas in wanted.items()
    )
