"""The demonstration, small: link, mirror, move, promote, leave; every record and replica is checked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.demo.group_moves import judge_groups
from lab.workload.checker import check
from lab.workload.history import History
from lab.workload.inspection import compare_clusters, compare_followers, final_logs, leaders, placements
from lab.workload.live_consumers import AiokafkaConsumer, LibrdkafkaConsumer, LiveConsumer
from lab.workload.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from lab.workload.source_data import TOPICS, SourceFiller
from tests.real.verdicts import assert_sound

RATE = 150

pytestmark = pytest.mark.timeout(300)


def led(bootstrap: str) -> Counter[int]:
    """How many partitions of all topics each broker leads."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics.values()
    return Counter(partition.leader for topic in topics for partition in topic.partitions.values())


async def caught_up(sidecar: SidecarProcess, link: str, topics: int, timeout: float = 90.0) -> None:
    async with asyncio.timeout(timeout):
        while True:
            mirrors = (await sidecar.linker("mirror", "list", "--link", link, "-o", "json")).json()
            states = {mirror["topic"]: (mirror["state"], mirror["lag"]) for mirror in mirrors}
            assert all(state != "FAILED" for state, _ in states.values()), mirrors
            ready = [lag for state, lag in states.values() if state == "ACTIVE" and lag is not None]
            if len(ready) == topics and sum(ready) < RATE:
                return
            await asyncio.sleep(0.2)


async def held(sidecar: SidecarProcess, link: str, groups: set[str], timeout: float = 60.0) -> None:
    async with asyncio.timeout(timeout):
        while True:
            found = (await sidecar.linker("group", "list", "--link", link, "-o", "json")).json()
            ready = {
                one["group"] for one in found if one["state"] == "GATED" and one["sync_age_ms"] is not None
            }
            if ready >= groups:
                return
            await asyncio.sleep(0.2)


async def test_clients_move_and_nothing_is_lost(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    topics = [replace(topic, name=unique_topic(topic.name)) for topic in TOPICS]
    live = [topic for topic in topics if topic.live]
    filler = SourceFiller(source_cluster.bootstrap, scale=0.1)
    await asyncio.to_thread(filler.create, topics, 2)
    await asyncio.to_thread(filler.fill, topics)
    history = History()
    kinds = (AiokafkaProducer, LibrdkafkaProducer, KafkaPythonProducer)
    producers: list[LiveProducer] = [
        kind(f"writer-{kind.library}", topic.name, topic.partitions, RATE, history)
        for kind, topic in zip(kinds, live, strict=True)
    ]
    names = [topic.name for topic in live]
    group = unique_topic("group")
    consumers: list[LiveConsumer] = [
        AiokafkaConsumer(f"{group}-aiokafka", names, history),
        LibrdkafkaConsumer(f"{group}-librdkafka", names, history),
    ]
    try:
        for client in (*producers, *consumers):
            await client.start(source_cluster.bootstrap)
        sidecar = await start_sidecar(target_cluster.bootstrap)
        await sidecar.linker("link", "create", "old", "--bootstrap-servers", source_cluster.bootstrap)
        every = [topic.name for topic in topics]
        led_before = await asyncio.to_thread(led, target_cluster.bootstrap)
        await sidecar.linker("mirror", "create", *every, "--link", "old", "--replication-factor", "3")
        await caught_up(sidecar, "old", len(topics))
        await held(sidecar, "old", {consumer.group for consumer in consumers})
        for producer in producers:
            await producer.move(target_cluster.bootstrap)
        left = history.mark("groups move")
        for consumer in consumers:
            await consumer.move(target_cluster.bootstrap, held=True)
        await sidecar.linker("group", "promote", "--all", "--link", "old", "--timeout", "60")
        opened = history.mark("groups are open")
        await asyncio.sleep(2)
        begin = history.mark("promote")
        await sidecar.linker("mirror", "promote", "--all", "--link", "old")
        end = history.mark("promoted")
        await sidecar.linker("sidecar", "leave", str(sidecar.spec.broker_id))
        assert await sidecar.ended() == 0
        await asyncio.sleep(2)
        for producer in producers:
            await producer.stop()
        source_placed = await asyncio.to_thread(placements, source_cluster.bootstrap, topics)
        placed = await asyncio.to_thread(placements, target_cluster.bootstrap, topics)
        logs = await asyncio.to_thread(final_logs, target_cluster, live, placed)
        for consumer in consumers:
            assert await consumer.read_up_to({tp: log.end for tp, log in logs.items()}, 30)
    finally:
        for client in (*producers, *consumers):
            await client.stop()
    verdict = check(history, logs, promote=(begin, end))
    assert_sound(verdict)
    assert verdict.unknown == 0
    groups = {consumer.name: consumer.group for consumer in consumers}
    moves = judge_groups(history, logs, groups, move=(left, opened), opened=opened)
    assert moves.problems == []
    assert verdict.acked > 1000
    # A broker that was late leads nothing just now; it is preferred for its share all the same. What other topics had led
    # before weighs too: a broker that has had its share already gets none.
    preferred = Counter(one.replicas[0] for one in placed.values())
    assert set(preferred) <= {1, 2, 3}
    share = {broker: led_before[broker] + preferred[broker] for broker in (1, 2, 3)}
    uneven = {broker for broker in preferred if share[broker] > min(share.values()) + 2}
    assert not uneven, f"leadership is level over the real brokers: {preferred} beside {led_before}"
    assert set(leaders(placed)) <= {1, 2, 3}
    for compared in (
        await asyncio.to_thread(
            compare_clusters, source_cluster, target_cluster, topics, source_placed, placed
        ),
        await asyncio.to_thread(compare_followers, target_cluster, topics, placed),
    ):
        assert [one for one in compared if not (one.identical and one.offsets_identical)] == []
    assert len(compared) == 2 * sum(topic.partitions for topic in topics)
