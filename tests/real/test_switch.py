"""A topic switched to the target and back, under clients of both clusters that are never restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.checker import Verdict, check
from lab.workload.history import History
from lab.workload.inspection import (
    Placement,
    compare_clusters,
    compare_followers,
    final_logs,
    placements,
)
from lab.workload.live_consumers import LibrdkafkaConsumer
from lab.workload.live_producers import AiokafkaProducer, LibrdkafkaProducer, LiveProducer
from lab.workload.source_data import SourceTopic
from tests.real.harness_stalls import topic_configs
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(420)
PATIENCE = 90.0
LINK = "east"

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


@dataclass
class Scene:
    """Two clusters of two brokers, a sidecar in both, and clients at each of them."""

    source: KafkaCluster
    target: KafkaCluster
    sidecar: SidecarProcess
    topic: SourceTopic
    history: History = field(default_factory=History)
    producers: list[LiveProducer] = field(default_factory=list)
    consumers: list[LibrdkafkaConsumer] = field(default_factory=list)

    async def begin(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.source.bootstrap})
        [made] = admin.create_topics([NewTopic(self.topic.name, self.topic.partitions, 2)]).values()
        await asyncio.to_thread(made.result, 30)
        await self.sidecar.linker("link", "create", LINK, "-b", self.source.bootstrap, "--join-source")
        await self.sidecar.linker("mirror", "create", self.topic.name, "--link", LINK)
        await (
            self.forwards()
        )  # a producer that begins before has an id that somebody at the source may have as well
        for where in (self.source, self.target):
            for kind in (LibrdkafkaProducer, AiokafkaProducer):
                name = f"{kind.library}-{where.spec.name}"
                producer = kind(name, self.topic.name, self.topic.partitions, 40.0, self.history)
                await producer.start(where.bootstrap)
                self.producers.append(producer)
        reader = LibrdkafkaConsumer("reader", [self.topic.name], self.history, f"group-{self.topic.name}")
        await reader.start(self.source.bootstrap)
        self.consumers.append(reader)

    async def forwards(self) -> None:
        """Until the ids that the target hands out are apart from those of the source."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.sidecar.linker("link", "describe", LINK, "-o", "json")
            if found.json()["forwarding"]["enabled"]:
                return
            assert time.monotonic() < deadline, found.output
            await asyncio.sleep(0.3)

    async def status(self) -> dict[str, Any]:
        found = await self.sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")
        return {one["topic"]: one for one in found.json()}[self.topic.name]

    async def until(self, **wanted: Any) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.status()
            if all(found.get(key) == value for key, value in wanted.items()):
                return found
            assert time.monotonic() < deadline, (wanted, found)
            await asyncio.sleep(0.3)

    async def acked_more(self, count: int) -> None:
        """Every producer's records are acknowledged on."""
        before = {one.name: self._acked(one.name) for one in self.producers}
        deadline = time.monotonic() + PATIENCE
        while any(self._acked(name) < acked + count for name, acked in before.items()):
            assert time.monotonic() < deadline, {n: (acked, self._acked(n)) for n, acked in before.items()}
            await asyncio.sleep(0.1)

    def _acked(self, producer: str) -> int:
        return sum(ack.producer == producer for ack in self.history.acks)

    async def owner_leads(self, owner: KafkaCluster) -> None:
        ids = {broker.node_id for broker in owner.brokers}
        deadline = time.monotonic() + PATIENCE
        while True:
            placed = await asyncio.to_thread(placements, owner.bootstrap, [self.topic])
            if all(one.leader in ids for one in placed.values()):
                return
            assert time.monotonic() < deadline, placed
            await asyncio.sleep(0.2)

    async def finish(self, owner: KafkaCluster, other: KafkaCluster) -> Verdict:
        """Clients end; what they saw against the logs, and the logs of all brokers against the owner's."""
        for producer in self.producers:
            await producer.stop()
        await asyncio.sleep(3)
        for consumer in self.consumers:
            await consumer.stop()
        placed, there = await asyncio.gather(
            *(asyncio.to_thread(placements, one.bootstrap, [self.topic]) for one in (owner, other))
        )
        placed, copies = real(placed, owner), real(there, other)
        compared = await asyncio.to_thread(compare_clusters, owner, other, [self.topic], placed, copies)
        compared += await asyncio.to_thread(compare_followers, owner, [self.topic], placed)
        assert len(compared) == 3 * self.topic.partitions, compared
        unequal = [one for one in compared if not one.identical]
        assert not unequal, unequal
        logs = await asyncio.to_thread(final_logs, owner, [self.topic], placed)
        return check(self.history, logs)

    async def configs(self, cluster: KafkaCluster) -> dict[str, str]:
        """Those that are set on the topic."""
        found = await asyncio.to_thread(topic_configs, cluster.bootstrap, self.topic.name)
        return {name: value for name, (value, own) in found.items() if own}


def real(
    placed: Mapping[TopicPartition, Placement], cluster: KafkaCluster
) -> dict[TopicPartition, Placement]:
    """Without the link brokers."""
    ids = {broker.node_id for broker in cluster.brokers}
    return {tp: Placement(one.leader, tuple(sorted(ids & set(one.replicas)))) for tp, one in placed.items()}


async def scene_of(start_cluster: StartCluster, start_sidecar: StartSidecar, **of_target: Any) -> Scene:
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=2), start_cluster(name="target", brokers=2, **of_target)
    )
    sidecar = await start_sidecar(
        target.bootstrap, sources={LINK: {"broker.id": 800}}, validation={"policy": "skip"}
    )
    scene = Scene(source, target, sidecar, SourceTopic("orders", 4, lambda _filler, _topic: None))
    await scene.begin()
    return scene


async def test_there_and_back_under_clients_of_both(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Twice each way. Nobody is restarted, and sees no error; afterwards both clusters have the same bytes."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.acked_more(50)
    configs = await scene.configs(scene.source)
    for _ in range(2):
        await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
        await scene.owner_leads(scene.target)
        await scene.until(direction="REVERSED", state="ACTIVE")
        await scene.acked_more(150)
        await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
        await scene.owner_leads(scene.source)
        await scene.until(direction="FORWARD", state="ACTIVE")
        await scene.acked_more(150)
    assert await scene.configs(scene.source) == configs
    await scene.sidecar.linker("mirror", "sync", "orders", "--link", LINK, "--off")
    verdict = await scene.finish(scene.source, scene.target)
    assert verdict.ok, verdict.violations
    assert verdict.acked > 2000
    print(f"pauses in ms: {verdict.pauses_ms}")


async def test_a_sidecar_that_is_killed_on_the_way(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Whatever a switch had begun is given back or ended by the next process, and the switch can be asked for again."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.sidecar.linker("mirror", "sync", "orders", "--link", LINK)
    await scene.until(sync="IN_SYNC")
    for pause in (0.1, 0.5, 1.0, 2.0):
        began = (await scene.status())["direction"]
        await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK, "--no-wait")
        await asyncio.sleep(pause)
        await scene.sidecar.kill()
        await scene.sidecar.start()
        found = await scene.until(state="ACTIVE")
        await scene.owner_leads(scene.source if found["direction"] == "FORWARD" else scene.target)
        await scene.acked_more(20)
        print(f"killed after {pause} s: {began} -> {found['direction']}")
    await judged(scene, scene.source if (await scene.status())["direction"] == "FORWARD" else scene.target)


async def test_a_switch_that_is_finished(start_cluster: StartCluster, start_sidecar: StartSidecar) -> None:
    """The clients move; at the source the topic stays as it is, and takes no writes, whatever their acks."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="REVERSED", state="ACTIVE")
    await scene.acked_more(30)
    for producer in scene.producers:
        await producer.move(scene.target.bootstrap)
    await scene.sidecar.linker("mirror", "finish", "orders", "--link", LINK, "--yes")
    await scene.acked_more(30)
    assert (await scene.configs(scene.source))["max.message.bytes"] == "0"
    await scene.owner_leads(scene.source)
    await judged(scene, scene.target)
    assert await asyncio.to_thread(refused, scene.source.bootstrap)


async def judged(scene: Scene, owner: KafkaCluster) -> None:
    """Clients end. The owner has each acknowledged record, once and in order."""
    for producer in scene.producers:
        await producer.stop()
    await asyncio.sleep(3)
    for consumer in scene.consumers:
        await consumer.stop()
    placed = real(await asyncio.to_thread(placements, owner.bootstrap, [scene.topic]), owner)
    logs = await asyncio.to_thread(final_logs, owner, [scene.topic], placed)
    verdict = check(scene.history, logs, drained=False)
    assert not verdict.lost and not verdict.duplicated and not verdict.reordered, verdict.violations


def refused(bootstrap: str) -> bool:
    """Whether a write to the topic is refused there, whatever its acks."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1})
    producer.produce("orders", b"late", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    return len(errors) == 1 and errors[0] is not None and errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
