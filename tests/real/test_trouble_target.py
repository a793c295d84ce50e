"""Trouble at the target at run time: brokers and controllers restart, somebody cancels what mirroring needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from admin.models import MirrorState, PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster, KafkaNode
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, brokers_back
from tests.real.harness_stalls import stopped
from tests.real.harness_trouble import (
    TroubleScene,
    active_controller,
    cancel_reassignments,
    delete_topic,
    linked_sidecar,
    write,
)
from wire.frames.types import TopicPartition

#: Seconds. By then the controller has long fenced a broker that hangs (broker.session.timeout.ms).
HANGS = 30.0


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sidecar: SidecarProcess,
    unique_topic: Callable[[str], str],
) -> AsyncIterator[TroubleScene]:
    """One topic of three partitions, not begun."""
    topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
    made = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
    yield made
    await made.close()


async def restarted_hard(node: KafkaNode, meanwhile: Awaitable[None]) -> None:
    """Killed, and started again once `meanwhile` is done."""
    await node.kill()
    try:
        await meanwhile
    finally:
        await node.start()


async def member_again(scene: TroubleScene) -> None:
    """The controller takes the sidecar's heartbeats: those that it sends now."""
    deadline = time.monotonic() + 60
    while True:
        status = await scene.ask(lambda client: client.status())
        age = status.sidecar.heartbeat_age_ms
        if status.sidecar.state == "RUNNING" and age is not None and age < 500:
            return
        assert time.monotonic() < deadline, status.sidecar
        await asyncio.sleep(0.05)


async def test_broker_restarts(scene: TroubleScene) -> None:
    """Killed under load: the other replicas and the clients go on, its own replica catches up, bytes are equal."""
    await scene.begin()
    await restarted_hard(scene.target.nodes[2], scene.acked_more(50))
    await brokers_back(scene.target)
    await scene.acked_more(20)
    await scene.target.nodes[3].restart()  # in good order: it must not wait for the link broker
    await brokers_back(scene.target)
    await scene.acked_more(20)
    await scene.promoted()
    await scene.judge()


def longest_gap(bootstrap: str, tps: list[TopicPartition], until: Callable[[], bool]) -> float:
    """Seconds without a record, of a consumer that asks who leads all the time: that question is passed on to one of the
    target's brokers."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 300,
        }
    )
    reader.assign([KafkaPartition(tp.topic, tp.partition, OFFSET_BEGINNING) for tp in tps])
    last, longest = time.monotonic(), 0.0
    try:
        while not until():
            message = reader.poll(0.2)
            now = time.monotonic()
            if message is not None and message.error() is None:
                longest, last = max(longest, now - last), now
        return max(longest, time.monotonic() - last)
    finally:
        reader.close()


async def test_a_broker_that_hangs_does_not_hold_up_readers(scene: TroubleScene) -> None:
    """It leads nothing that they read; but some of their other requests are passed on to it, and it answers none."""
    await scene.begin()
    ended = False
    readers = [
        asyncio.create_task(asyncio.to_thread(longest_gap, scene.target.bootstrap, scene.tps, lambda: ended))
        for _ in range(4)
    ]
    try:
        await asyncio.sleep(3)
        with stopped(scene.target.nodes[2]):
            await asyncio.sleep(HANGS)
    finally:
        ended = True
        gaps = await asyncio.gather(*readers)
    assert max(gaps) < HANGS - 5, gaps
    await brokers_back(scene.target)
    await scene.acked_more(20)
    await scene.promoted()
    await scene.judge()


async def test_only_controller_restarts(scene: TroubleScene) -> None:
    """While it is away produces are forwarded and followers are served; afterwards the sidecar is a member still."""
    await scene.begin()
    [controller] = scene.target.controllers
    before = await scene.describe()
    await restarted_hard(controller, scene.acked_more(100))
    await member_again(scene)
    await scene.acked_more(50)
    after = await scene.describe()
    assert [one.leader_epoch for one in after.partition_status] == [
        one.leader_epoch for one in before.partition_status
    ], "the link broker was fenced"
    await scene.promoted()
    await scene.judge()


async def test_somebody_cancels_the_reassignment(scene: TroubleScene) -> None:
    """It is asked for again and told; the copies begin from nothing, and nobody is taken to have the old one."""
    await scene.begin()
    await asyncio.to_thread(write, scene.source.bootstrap, scene.names[0], 2000, size=2000)
    await scene.copied()
    before = await scene.describe()
    served = (await scene.ask(lambda client: client.describe_link(LINK))).traffic.served_bytes
    await cancel_reassignments(scene.target, scene.tps)
    # At once, while the followers still are far behind what they had.
    job = await scene.start_promote()
    found = await scene.shown_reason("cancelled by somebody")
    assert found.state in (MirrorState.LINKING, MirrorState.ACTIVE, MirrorState.PROMOTING), found
    ended = await scene.settled(job)
    if ended.phase is not PromotePhase.PROMOTED:
        # It may say that it cannot now; it may not hand over half a copy.
        assert ended.phase is PromotePhase.ABANDONED
        assert ended.reason
        await scene.promoted()
    again = (await scene.ask(lambda client: client.describe_link(LINK))).traffic.served_bytes
    assert again - served >= 3 * 2000 * 1000, "no full copy was made"
    after = await scene.describe()
    for one, other in zip(before.partition_status, after.partition_status, strict=True):
        assert (other.leader_epoch or 0) > (one.leader_epoch or 0)
        assert other.session_epoch == one.session_epoch, "batches have one leader epoch for ever"
    await scene.acked_more(20)
    await scene.judge()


@pytest.mark.slow
async def test_somebody_cancels_again_and_again(scene: TroubleScene) -> None:
    """Each time it is asked for again, and counted for people."""
    await scene.begin()
    for _ in range(3):
        await cancel_reassignments(scene.target, scene.tps)
        await scene.wait_active()
        await scene.acked_more(10)
    await scene.shown_reason("cancelled by somebody 3 times")
    await scene.promoted()
    await scene.judge()


async def test_mirror_topic_deleted_at_the_target(scene: TroubleScene) -> None:
    """Somebody deletes the mirror at the target: FAILED with the reason, the source has everything."""
    await scene.begin(writers=False)
    await asyncio.to_thread(delete_topic, scene.target.bootstrap, scene.names[0])
    await scene.shown(MirrorState.FAILED, "deleted at the target")
    await scene.sidecar.linker("mirror", "delete", scene.names[0], "--link", LINK, "--yes")
    await scene.mirror()
    await scene.promoted()
    await scene.judge()


@pytest.mark.timeout(300)
async def test_active_controller_changes(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Of three controllers the active one dies, returns, and the next one dies: no client sees it."""
    target = await start_cluster(name="quorum", brokers=1, controllers=3)
    topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
    async with linked_sidecar(source_cluster, target, 900, tmp_path / "sidecar") as sidecar:
        scene = TroubleScene(source_cluster, target, sidecar, [topic])
        try:
            await scene.begin()
            first = await active_controller(target)
            await restarted_hard(target.nodes[first], scene.acked_more(100))
            second = await active_controller(target)
            assert second != first
            await restarted_hard(target.nodes[second], scene.acked_more(100))
            await member_again(scene)
            found = await scene.describe()
            assert found.state is MirrorState.ACTIVE, found
            await scene.promoted()
            await scene.acked_more(20)
            await scene.judge()
        finally:
            await scene.close()
