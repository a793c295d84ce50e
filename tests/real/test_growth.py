"""Partitions that are added at the source of a mirrored topic, on real clusters and under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
import pytest_asyncio
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from admin.models import GroupState, MirrorState, PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.live_producers import AiokafkaProducer, LibrdkafkaProducer
from tests.real.harness_groups import GroupScene
from tests.real.harness_promote import LINK, MakeScene, Scene, scenes
from tests.real.harness_stalls import PATIENCE, open_transaction
from tests.real.harness_trouble import write
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(300)
INTERVAL_MS = 1000


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        yield make


def add(bootstrap: str, topic: str, total: int) -> None:
    """As kafka-topics.sh --alter does; returns once a broker tells of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [added] = admin.create_partitions([NewPartitions(topic, total)]).values()
    added.result(30)
    deadline = time.monotonic() + 30
    while partitions(bootstrap, topic) < total:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def partitions(bootstrap: str, topic: str) -> int:
    return len(
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions
    )


async def grow(scene: Scene, total: int) -> None:
    """The source's topic, and what the scene expects of it."""
    await asyncio.to_thread(add, scene.source.bootstrap, scene.names[0], total)
    scene.topics[0] = replace(scene.topics[0], partitions=total)


async def write_at_source(scene: Scene, total: int) -> LibrdkafkaProducer:
    """A producer that was not moved, and sees the new partitions first."""
    name = f"stayed-{total}"
    producer = LibrdkafkaProducer(name, scene.names[0], total, 200.0, scene.history)
    await producer.start(scene.source.bootstrap)
    last = TopicPartition(scene.names[0], total - 1)
    deadline = time.monotonic() + PATIENCE
    while not [ack for ack in scene.history.acks if ack.producer == name and ack.partition == last]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return producer


async def grown(scene: Scene, total: int) -> float:
    """Until the mirror has as many partitions as the source, all copied; how long it took."""
    began = time.monotonic()
    while True:
        mirror = await scene.describe(scene.names[0])
        states = [one.state for one in mirror.partition_status]
        if len(states) == total and set(states) == {MirrorState.ACTIVE} and mirror.lag is not None:
            return time.monotonic() - began
        assert MirrorState.FAILED not in states, mirror
        assert time.monotonic() - began < PATIENCE, mirror
        await asyncio.sleep(0.05)


async def test_added_partitions_are_mirrored_from_their_first_record(make_scene: MakeScene) -> None:
    """Twice within one interval, then once more; a promote right after. Writers at the source see them first, writers at
    the target go on, and those that are started there find as many partitions."""
    scene = await make_scene()
    await scene.sidecar.linker(
        "link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}"
    )
    await grow(scene, 4)
    stayed = await write_at_source(scene, 4)
    await grow(scene, 5)
    also_stayed = await write_at_source(scene, 5)
    took = await grown(scene, 5)
    assert took < 20, took
    assert await asyncio.to_thread(partitions, scene.target.bootstrap, scene.names[0]) == 5
    for kind in (LibrdkafkaProducer, AiokafkaProducer):
        late = kind(f"late-{kind.library}", scene.names[0], 5, 100.0, scene.history)
        scene.producers.append(late)
        await late.start(scene.target.bootstrap)
    await scene.acked_more(100)
    await stayed.stop()
    await also_stayed.stop()
    await grow(scene, 7)
    last = await write_at_source(scene, 7)
    await last.stop()
    job = await scene.promoted()
    assert job.topics[0].partitions == 7
    verdict = await scene.judge()
    assert verdict.acked > 500


async def test_a_promote_that_waits_takes_them_along_and_a_fence_gives_back(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await scene.sidecar.linker(
        "link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}"
    )
    tp = TopicPartition(scene.names[0], 0)
    # Before the fence: an open transaction at the source holds the promote up, without anybody's writes being held.
    with open_transaction(scene.source, tp):
        job = await scene.start_promote(fence_timeout_ms=60_000)
        await scene.reach(job, PromotePhase.CATCHING_UP)
        await grow(scene, 4)
        await (await write_at_source(scene, 4)).stop()
        deadline = time.monotonic() + PATIENCE
        while (await scene.job(job)).topics[0].partitions < 4:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        with pytest.raises(AssertionError):
            await asyncio.wait_for(scene.reach(job, PromotePhase.PROMOTED, timeout=0.1), 5)
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.PROMOTED, ended
    verdict = await scene.judge()
    assert verdict.acked > 200


async def test_a_promote_is_given_back_inside_the_fence(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await scene.sidecar.linker(
        "link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}"
    )
    async with scene.standing_in(PromotePhase.FENCED, scene.target.nodes[3], fence_timeout_ms=20_000) as job:
        await grow(scene, 4)
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.ABANDONED, ended
    assert "the source topic has 4 partitions now, the mirror 3" in (ended.reason or ""), ended
    await scene.acked_more()
    await grown(scene, 4)
    await scene.promoted()
    await scene.judge()


@pytest.mark.slow
async def test_killed_while_they_are_made(make_scene: MakeScene) -> None:
    """A SIGKILL at some moment of each growth; what was added is there from its first record all the same."""
    scene = await make_scene()
    await scene.sidecar.linker(
        "link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}"
    )
    for total, moment in ((4, "made known"), (5, "made"), (6, "copied")):
        await grow(scene, total)
        stayed = await write_at_source(scene, total)
        deadline = time.monotonic() + PATIENCE
        while not await reached(scene, total, moment):
            assert time.monotonic() < deadline, moment
        await scene.sidecar.kill()
        await scene.sidecar.start()
        await grown(scene, total)
        await stayed.stop()
    await scene.acked_more()
    await scene.promoted()
    await scene.judge()


async def reached(scene: Scene, total: int, moment: str) -> bool:
    if moment == "made":
        return await asyncio.to_thread(partitions, scene.target.bootstrap, scene.names[0]) == total
    mirror = await scene.describe(scene.names[0])
    states = [one.state for one in mirror.partition_status]
    return len(states) == total and (moment == "made known" or set(states) == {MirrorState.ACTIVE})


async def test_partitions_that_somebody_added_at_the_target(make_scene: MakeScene) -> None:
    """An empty one is taken over once the source has it, one with records keeps them and is named."""
    scene = await make_scene(
        copies=2
    )  # else the controller finds too few brokers for a partition of somebody's
    await scene.sidecar.linker(
        "link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}"
    )
    topic = scene.names[0]
    await asyncio.to_thread(add, scene.target.bootstrap, topic, 5)
    await until_reason(
        scene, "somebody added partitions to the mirror topic at the target: it has 5, the source topic 3"
    )
    refused = await scene.sidecar.run("mirror", "promote", topic, "--link", LINK, "--validation", "skip")
    assert refused.exit_code == 1
    assert "somebody added partitions" in refused.errors + refused.output
    await asyncio.to_thread(write, scene.target.bootstrap, topic, 40, partition=4)
    await grow(scene, 5)
    await (await write_at_source(scene, 5)).stop()
    await until_reason(
        scene, f"{topic}-4 was added at the source, but at the target it is somebody else's, with 40 records"
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        states = {one.partition: one.state for one in (await scene.describe(topic)).partition_status}
        if states == {**dict.fromkeys(range(4), MirrorState.ACTIVE), 4: MirrorState.LINKING}:
            break
        assert time.monotonic() < deadline, states
        await asyncio.sleep(0.1)
    await scene.acked_more()
    ends = await asyncio.to_thread(log_ends, scene.target.bootstrap, TopicPartition(topic, 4))
    assert ends == 40
    dry = await scene.sidecar.linker("mirror", "delete", topic, "--link", LINK, "--dry-run")
    assert "40 acknowledged records exist at the target alone" in dry.output, dry.output


@pytest.mark.slow
async def test_empty_ones_that_somebody_added_at_the_target_are_taken_over(make_scene: MakeScene) -> None:
    scene = await make_scene(
        copies=2
    )  # else the controller finds too few brokers for a partition of somebody's
    await scene.sidecar.linker(
        "link", "update", LINK, "--option", f"topics_refresh_interval_ms={INTERVAL_MS}"
    )
    await asyncio.to_thread(add, scene.target.bootstrap, scene.names[0], 5)
    await grow(scene, 5)
    stayed = await write_at_source(scene, 5)
    await grown(scene, 5)
    await scene.acked_more()
    await stayed.stop()
    job = await scene.settled(
        await scene.start_promote(validation="require"), timeout=200
    )  # Spark has to start
    assert job.phase is PromotePhase.PROMOTED, job
    await scene.judge()


async def until_reason(scene: Scene, words: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        mirror = await scene.describe(scene.names[0])
        reasons = [one.reason for one in mirror.partition_status]
        if any(words in (reason or "") for reason in [mirror.reason, *reasons]):
            return
        assert time.monotonic() < deadline, mirror
        await asyncio.sleep(0.1)


def log_ends(bootstrap: str, tp: TopicPartition) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        return int(consumer.get_watermark_offsets(KafkaPartition(tp.topic, tp.partition), timeout=30)[1])
    finally:
        consumer.close()


async def test_a_group_goes_on_where_it_stopped_in_added_partitions_too(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    scene = GroupScene(source_cluster, target_cluster, await start_sidecar(target_cluster.bootstrap))
    topic, group = unique_topic("topic"), unique_topic("growing.g")
    try:
        await scene.link("growing.*", f"topics_refresh_interval_ms={INTERVAL_MS}")
        await scene.topic(topic)
        quick = {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": "500"}
        old = scene.reader(source_cluster, group, [topic], "app", **quick)
        await scene.all_read([old], topic)
        await scene.wait_active(topic)
        await scene.gated(group)
        await asyncio.to_thread(add, source_cluster.bootstrap, topic, 5)
        scene.write(topic, 5, 20, source_cluster.bootstrap)
        await scene.all_read([old], topic)

        def synced() -> bool:
            there = scene.committed(target_cluster, group, topic)
            return set(there) == set(range(5)) and there == scene.committed(source_cluster, group, topic)

        deadline = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(synced):
            assert time.monotonic() < deadline, scene.committed(target_cluster, group, topic)
            await asyncio.sleep(0.2)
        await old.close()
        await scene.promote(group)
        new = scene.reader(target_cluster, group, [topic], "app")
        await scene.state(group, GroupState.PROMOTED)
        scene.write(topic, 5, 20, source_cluster.bootstrap)
        await scene.all_read([old, new], topic)
        assert scene.repeated([old, new]) == []
    finally:
        await scene.close()
