"""Failovers: the source is killed, and the target takes over at what its replicas have, and says what they have not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from admin.client import AdminError
from admin.models import FailoverPartition, FailoverRequest, MirrorState, PromoteJobStatus, PromotePhase
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.checker import check
from lab.workload.inspection import compare_followers, final_logs, placements
from lab.workload.live_producers import KafkaPythonProducer, LiveClientError
from tests.real.harness_promote import LINK, MakeScene, Scene, eventually, scenes
from tests.real.harness_stalls import stopped
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(240)
COPIED = 2.0  # seconds in which replicas get a few records


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    source = await start_cluster(name="doomed", brokers=1)
    async with scenes(source, target_cluster, start_sidecar, unique_topic) as make:
        yield make


async def failed_over(scene: Scene, **options: object) -> dict[TopicPartition, FailoverPartition]:
    """A failover that has to work; what it says of each partition."""
    request = FailoverRequest(topics=scene.names, **options)  # type: ignore[arg-type]
    job: PromoteJobStatus = await scene.ask(lambda client: client.failover(LINK, request))
    job = await scene.settled(job.id)
    scene.began = scene.history.mark("failover")
    assert job.phase is PromotePhase.FAILED_OVER, job
    assert job.failover is not None
    found = {TopicPartition(one.topic, one.partition): one for one in job.failover}
    assert set(found) == set(scene.tps)
    return found


async def kill_source(scene: Scene) -> None:
    for node in scene.source.nodes.values():
        await node.kill()


async def judged(scene: Scene, taken: dict[TopicPartition, FailoverPartition]) -> int:
    """Stop the writers and check the target's log: nothing is gone but what the failover said, nothing twice, in order.
    How many acknowledged records are gone."""
    for producer in scene.producers:
        await producer.stop()
    placed = await asyncio.to_thread(placements, scene.target.bootstrap, scene.topics)
    logs = await asyncio.to_thread(final_logs, scene.target, scene.topics, placed)
    verdict = check(scene.history, logs)
    assert not verdict.duplicated, verdict.duplicated
    assert not verdict.reordered, verdict.reordered
    assert not verdict.phantom, verdict.phantom
    # What was acknowledged by the source beyond the end is gone; its offsets are those of later records by now. An answer
    # of the source's last moment may reach its producer when the failover has been asked for: it ends with the fence.
    cut = scene.began
    gone = 0
    at = {(record.producer, record.sequence): tp for tp, log in logs.items() for record in log.records}
    for ack in scene.history.acks:
        if (ack.producer, ack.sequence) in at:
            continue
        end = taken[ack.partition].end
        assert end is not None
        assert ack.offset is not None
        assert ack.time < cut, f"acknowledged after the take-over and lost: {ack}"
        assert ack.offset >= end, f"it was mirrored and is lost: {ack}, took over at {end}"
        missing = taken[ack.partition].missing
        assert missing is None or ack.offset < end + missing, (
            f"lost, and not said: {ack}, {taken[ack.partition]}"
        )
        gone += 1
    for compared in await asyncio.to_thread(compare_followers, scene.target, scene.topics, placed):
        assert compared.identical, compared
        assert compared.offsets_identical, compared
    scene.check_placement(placed)
    await scene.check_configs()
    return gone


def committed(cluster: KafkaCluster, tp: TopicPartition) -> int:
    """How many records a reader of committed ones gets, from the partition's start to where it ends now."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    partition = KafkaPartition(tp.topic, tp.partition, 0)
    try:
        end = consumer.get_watermark_offsets(partition, timeout=30)[1]
        consumer.assign([partition])
        found = 0
        while True:
            message = consumer.poll(20)
            assert message is not None, f"{tp}: a reader of committed records gets no further than {found}"
            assert message.error() is None, message.error()
            found += 1
            if (message.offset() or 0) >= end - 1:
                return found
    finally:
        consumer.close()


async def test_dead_source(make_scene: MakeScene) -> None:
    """Killed with an open transaction: producers of three libraries, which notice when they write on, go on at the target;
    the transaction is aborted, and the source's return changes nothing. (What a gap does to them is another test's.)"""
    scene = await make_scene()
    python = KafkaPythonProducer("kafka-python", scene.names[0], 3, 50, scene.history)
    scene.producers.append(python)
    await python.start(scene.target.bootstrap)
    writer = Producer(
        {"bootstrap.servers": scene.source.bootstrap, "transactional.id": "left open", "log_level": 0}
    )
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(scene.names[0], b"never committed", partition=1)
    assert writer.flush(30) == 0
    await scene.acked_more(50)
    request = FailoverRequest(topics=scene.names)
    plan = await scene.ask(lambda client: client.plan_failover(LINK, request))
    assert any("the source still answers" in line for line in plan.blockers), plan
    with pytest.raises(AdminError, match="the source still answers"):
        await scene.ask(lambda client: client.failover(LINK, request))
    await scene.acked_more(20)  # nobody was held for that
    await scene.hush()
    await kill_source(scene)
    scene.speak(50)
    await asyncio.sleep(1.0)
    plan = await scene.ask(lambda client: client.plan_failover(LINK, request))
    assert not plan.blockers, plan
    assert {one.partition for one in plan.partitions} == {0, 1, 2}
    shown = await scene.sidecar.linker("mirror", "failover", *scene.names, "--link", LINK, "--dry-run")
    assert "LAST MIRRORED" in shown.output
    assert "a failover could start now" in shown.output
    taken = await failed_over(scene)
    await scene.acked_more(100)
    for one in taken.values():
        assert one.state is MirrorState.FAILED_OVER
        assert one.source_end is not None
        assert one.missing is not None
    assert [len(one.aborted) for _, one in sorted(taken.items())] == [0, 1, 0], taken
    assert await asyncio.to_thread(committed, scene.target, scene.tps[1]) > 100
    mirror = await scene.describe(scene.names[0])
    assert mirror.state is MirrorState.FAILED_OVER
    assert "took over at offset" in (mirror.reason or "")
    for node in scene.source.nodes.values():
        await node.start()
    before = await asyncio.to_thread(source_ends, scene)
    await scene.acked_more(100)
    assert await asyncio.to_thread(source_ends, scene) == before, "something was forwarded after the failover"
    del writer
    gone = await judged(scene, taken)
    print("acknowledged and gone:", gone, {str(tp): (one.end, one.missing) for tp, one in taken.items()})


@pytest.mark.slow
async def test_unequal_replicas_and_a_killed_sidecar(make_scene: MakeScene) -> None:
    """One replica was behind when the source died, and nobody has its data in memory: it gets it from the longest one,
    by a sidecar that never reached the source."""
    scene = await make_scene()
    behind = scene.target.nodes[3]
    with stopped(behind):
        await scene.acked_more(150)
        # What is acknowledged has to be on the other replicas: a gap would end idempotent producers.
        for producer in scene.producers:
            producer._rate = 0.0
        await eventually("every record has its outcome", lambda: scene.history.pending() == 0, 60)
        await asyncio.sleep(COPIED)
        await kill_source(scene)
        await scene.sidecar.kill()
    scene.speak()
    await scene.sidecar.start()
    plan = await scene.ask(lambda client: client.plan_failover(LINK, FailoverRequest(all=True)))
    unequal = [p for p in plan.partitions if p.shortest_replica_end != p.end]
    assert unequal, plan
    taken = await failed_over(scene)
    assert all(one.source_end is None and one.missing is None for one in taken.values()), taken
    assert all("is not known" in (one.reason or "") for one in taken.values())
    for planned in plan.partitions:
        assert taken[TopicPartition(planned.topic, planned.partition)].end == planned.end
    await scene.acked_more(50)
    await judged(scene, taken)


@pytest.mark.slow
async def test_sidecar_dies_in_the_middle(make_scene: MakeScene) -> None:
    """A failover is durable: the sidecar is killed while it waits for a stopped broker, and goes on after its start."""
    scene = await make_scene()
    await scene.hush()  # what is acknowledged has to be on the replicas: a gap would end idempotent producers
    await kill_source(scene)
    scene.speak()
    with stopped(scene.target.nodes[2]):
        request = FailoverRequest(topics=scene.names)
        job = await scene.ask(lambda client: client.failover(LINK, request))
        await scene.reach(job.id, PromotePhase.FENCED, "broker 2")
        scene.began = scene.history.mark("failover")
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"FENCED"}
        assert scene.stored_jobs() == {"RUNNING"}
    await scene.sidecar.start()
    ended = await scene.settled(job.id)
    assert ended.phase is PromotePhase.FAILED_OVER, ended
    await scene.acked_more(50)
    await judged(scene, {TopicPartition(one.topic, one.partition): one for one in ended.failover or ()})


def source_ends(scene: Scene) -> list[int]:
    """A broker that has just started says for a moment that it leads nothing."""
    consumer = Consumer({"bootstrap.servers": scene.source.bootstrap, "group.id": "ends"})
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                return [
                    consumer.get_watermark_offsets(KafkaPartition(tp.topic, tp.partition), timeout=60)[1]
                    for tp in scene.tps
                ]
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)
    finally:
        consumer.close()


async def test_acknowledged_and_not_copied(make_scene: MakeScene) -> None:
    """Copying was paused while writes went on: what the source acknowledged after that is lost with it, and every offset
    of it is said. Idempotent producers have a gap in their sequences then: librdkafka and aiokafka report it, and a
    producer that is made anew goes on."""
    scene = await make_scene()
    await scene.sidecar.linker("mirror", "pause", scene.names[0], "--link", LINK)
    await scene.acked_more(60)
    await kill_source(scene)
    taken = await failed_over(scene)
    assert all((one.missing or 0) > 0 for one in taken.values()), taken
    for producer in scene.producers:
        # librdkafka calls it fatal, and says so to whoever flushes.
        with contextlib.suppress(LiveClientError, SystemError):
            await producer.stop()
        producer._rate = 0.0
    broken = scene.history.errors + scene.history.unacked
    assert any("out of order" in str(one).lower() or "OutOfOrder" in str(one) for one in broken), broken[:5]
    scene.producers = [KafkaPythonProducer("made anew", scene.names[0], 3, 50, scene.history)]
    await scene.producers[0].start(scene.target.bootstrap)
    await scene.acked_more(50)
    assert await judged(scene, taken) > 50
