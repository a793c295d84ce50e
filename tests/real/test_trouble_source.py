"""Trouble at the source at run time: a broker dies, topics vanish or are made anew, retention outruns the mirror."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio
from confluent_kafka import ElectionType, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from admin.models import MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import placements
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, brokers_back, stopped
from tests.real.harness_trouble import (
    TroubleScene,
    cancel_reassignments,
    create_topic,
    delete_records,
    delete_topic,
    fingerprint,
    in_sync,
    log_start,
    patiently,
    reassign,
    refused,
    set_topic_configs,
    write,
)
from tests.real.kafka_admin import kafka_admin


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sidecar: SidecarProcess,
    unique_topic: Callable[[str], str],
) -> AsyncIterator[TroubleScene]:
    """One topic of one partition unless the test says otherwise; not begun."""
    topic = SourceTopic(unique_topic("t"), 1, SourceFiller.history)
    made = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
    yield made
    await made.close()


async def test_source_broker_dies_and_returns(scene: TroubleScene) -> None:
    """Leaders change under idempotent producers at the target: nothing lost, doubled or shown to a client."""
    scene.topics = [replace(scene.topics[0], partitions=4)]
    await scene.begin()
    [victim] = [node for node in scene.source.brokers if not node.is_controller]
    await victim.kill()
    try:
        await scene.acked_more(100)
    finally:
        await victim.start()
    await patiently("the broker that returned is in sync", lambda: in_sync(scene.source, scene.topics, 2))
    await asyncio.to_thread(prefer_first_replicas, scene)  # leadership returns, too, under load
    await patiently("it leads again", lambda: leads(scene, victim.node_id))
    await scene.acked_more(50)
    await scene.promoted()
    await scene.acked_more(20)
    verdict = await scene.judge()
    assert verdict.acked > 300


def prefer_first_replicas(scene: TroubleScene) -> None:
    admin = kafka_admin(scene.source.bootstrap)
    partitions = [KafkaPartition(tp.topic, tp.partition) for tp in scene.tps]
    admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)


def leads(scene: TroubleScene, broker: int) -> bool:
    return broker in {one.leader for one in placements(scene.source.bootstrap, scene.topics).values()}


async def test_only_replica_at_the_source_goes_away(scene: TroubleScene) -> None:
    """Shown as SOURCE_UNAVAILABLE with the reason; produces wait for its return, clients see no error."""
    [victim] = [node for node in scene.source.brokers if not node.is_controller]
    await asyncio.to_thread(
        create_topic, scene.source.bootstrap, scene.names[0], assignment=[[victim.node_id]]
    )
    await scene.mirror()
    scene.add_writers(50)
    for producer in scene.producers:
        await producer.start(scene.target.bootstrap)
    await scene.acked_more(20)
    await victim.kill()
    try:
        found = await scene.shown(MirrorState.SOURCE_UNAVAILABLE)
        assert found.reason, found
    finally:
        await victim.start()
    await scene.shown(MirrorState.ACTIVE)
    await scene.acked_more(50)
    await scene.promoted()
    await scene.judge()


@pytest.mark.slow
async def test_the_source_stalls_as_a_whole(scene: TroubleScene) -> None:
    """Produces wait and the followers keep what they have; afterwards all goes on."""
    await scene.begin()
    first, second = scene.source.brokers
    with stopped(first), stopped(second):
        await asyncio.sleep(3)
        found = await scene.describe()
        assert found.state is not MirrorState.FAILED, found
    await brokers_back(scene.source)
    await scene.acked_more(50)
    await scene.promoted()
    await scene.judge()


async def test_source_topic_deleted(scene: TroubleScene) -> None:
    """FAILED with the reason, and what was copied stays as it is."""
    await scene.begin(writers=False)
    await scene.copied()
    tp = scene.tps[0]
    brokers = [one.broker for one in (await scene.describe()).partition_status[0].replicas]
    before = await asyncio.to_thread(fingerprint, scene.target, tp, brokers)
    await asyncio.to_thread(delete_topic, scene.source.bootstrap, tp.topic)
    found = await scene.shown(MirrorState.FAILED, "does not exist at the source any more")
    assert f"{tp.topic}-0" in (found.reason or "")
    assert await asyncio.to_thread(fingerprint, scene.target, tp, brokers) == before
    result = await scene.sidecar.run("mirror", "resume", tp.topic, "--link", LINK, "--restart")
    refused(result, tp.topic, "source")


async def test_source_topic_deleted_and_created_again(scene: TroubleScene) -> None:
    """FAILED, and never a record of one log in the other: not in the copies, not by a produce at the target."""
    await scene.begin(writers=False)
    await scene.copied()
    [tp] = scene.tps
    brokers = [one.broker for one in (await scene.describe()).partition_status[0].replicas]
    before = await asyncio.to_thread(fingerprint, scene.target, tp, brokers)
    writer = Producer(
        {
            "bootstrap.servers": scene.target.bootstrap,
            "delivery.timeout.ms": 6000,
            "request.timeout.ms": 3000,
        }
    )
    assert await asyncio.to_thread(say, writer, tp.topic) is None  # it knows the way before the topic goes
    await scene.copied()
    before = await asyncio.to_thread(fingerprint, scene.target, tp, brokers)
    await asyncio.to_thread(delete_topic, scene.source.bootstrap, tp.topic)
    await asyncio.to_thread(create_topic, scene.source.bootstrap, tp.topic)
    # More than the old one held, so that no offset tells the two apart.
    await asyncio.to_thread(write, scene.source.bootstrap, tp.topic, 500)
    assert await asyncio.to_thread(say, writer, tp.topic) is not None, "written to the wrong log"
    await scene.shown(MirrorState.FAILED, "deleted and re-created at the source")
    assert await asyncio.to_thread(say, writer, tp.topic) is not None, "written to the wrong log"
    assert await asyncio.to_thread(fingerprint, scene.target, tp, brokers) == before
    [leader] = {one.leader for one in placements(scene.source.bootstrap, scene.topics).values()}
    assert open_replica(scene.source.log_dir(leader), tp).end() == 500
    result = await scene.sidecar.run("mirror", "resume", tp.topic, "--link", LINK, "--restart")
    refused(result, "delete the mirror and create it again")
    # What the line says is a way. The source has the records no more: they are not deleted without a word.
    result = await scene.sidecar.run("mirror", "delete", tp.topic, "--link", LINK, "--yes")
    refused(result, "exist at the target alone")
    await scene.sidecar.linker("mirror", "delete", tp.topic, "--link", LINK, "--yes", "--force")
    await scene.mirror()
    await scene.copied()
    await scene.promoted()
    await scene.judge()


async def test_a_batch_that_no_segment_of_the_target_holds(scene: TroubleScene) -> None:
    """Larger batches were allowed at the source after the mirror was made: told, and the followers stay whole."""
    name, [tp] = scene.names[0], scene.tps
    await asyncio.to_thread(
        create_topic, scene.source.bootstrap, name, configs={"segment.bytes": str(1 << 20)}
    )
    await asyncio.to_thread(write, scene.source.bootstrap, name, 50)
    await scene.mirror()
    await scene.copied()
    wide = {"segment.bytes": str(8 << 20), "max.message.bytes": str(4 << 20)}
    await asyncio.to_thread(set_topic_configs, scene.source.bootstrap, name, wide)
    await asyncio.to_thread(write, scene.source.bootstrap, name, 1, size=3 << 20)
    found = await scene.shown(MirrorState.FAILED, f"segment.bytes is {1 << 20}")
    assert "mirror resume --restart" in (found.reason or "")
    assert [open_replica(scene.target.log_dir(broker), tp).end() for broker in (1, 2, 3)] == [50] * 3
    await asyncio.to_thread(set_topic_configs, scene.target.bootstrap, name, wide)
    await scene.sidecar.linker("mirror", "resume", name, "--link", LINK, "--restart")
    await scene.shown(MirrorState.ACTIVE)
    await scene.copied()
    await scene.promoted()
    scene.topics = [replace(scene.topics[0], configs=wide)]
    await scene.judge()


@pytest.mark.slow
async def test_the_lag_after_a_pause_is_not_the_one_before_it(scene: TroubleScene) -> None:
    """Written meanwhile, or not: a mirror that was paused shows no lag before its source was heard again."""
    name, [tp] = scene.names[0], scene.tps
    await asyncio.to_thread(create_topic, scene.source.bootstrap, name)
    await asyncio.to_thread(write, scene.source.bootstrap, name, 50)
    await scene.mirror()
    await scene.copied()
    for written in (0, 5000):
        await scene.sidecar.linker("mirror", "pause", name, "--link", LINK)
        paused = await scene.shown(MirrorState.PAUSED)
        assert paused.lag is None
        await asyncio.to_thread(write, scene.source.bootstrap, name, written)
        await scene.sidecar.linker("mirror", "resume", name, "--link", LINK)
        async with asyncio.timeout(10):
            while (await scene.shown(MirrorState.ACTIVE)).lag != 0:
                await asyncio.sleep(0.01)
        end = (await asyncio.to_thread(scene.source_ends))[tp]
        assert [open_replica(scene.target.log_dir(broker), tp).end() for broker in (1, 2, 3)] == [end] * 3


async def test_what_happens_while_the_sidecar_is_away(
    scene: TroubleScene, unique_topic: Callable[[str], str]
) -> None:
    """It finds one topic outrun, one made anew and one as it was: that goes on, the outrun one when told to."""
    outrun, anew, same = scene.topics = [
        SourceTopic(unique_topic(name), 1, SourceFiller.history) for name in ("outrun", "anew", "same")
    ]
    await scene.begin(writers=False)
    await scene.copied()
    ends = await asyncio.to_thread(scene.source_ends)
    before = {tp: await asyncio.to_thread(fingerprint, scene.target, tp, (1, 2, 3)) for tp in scene.tps}
    await scene.sidecar.kill()
    [tp] = outrun.topic_partitions()
    await asyncio.to_thread(write, scene.source.bootstrap, outrun.name, 300)
    gone = ends[tp] + 200
    await asyncio.to_thread(delete_records, scene.source.bootstrap, tp, gone)
    await asyncio.to_thread(delete_topic, scene.source.bootstrap, anew.name)
    await asyncio.to_thread(create_topic, scene.source.bootstrap, anew.name)
    await asyncio.to_thread(write, scene.source.bootstrap, anew.name, 300)
    await asyncio.to_thread(write, scene.source.bootstrap, same.name, 300)
    await scene.sidecar.start()
    found = await scene.shown(MirrorState.FAILED, "retention at the source has outrun", outrun.name)
    assert f"starts at offset {gone}, the mirror has copied up to {ends[tp]}" in (found.reason or "")
    await scene.shown(MirrorState.FAILED, "deleted and re-created at the source", anew.name)
    for failed in (outrun, anew):
        [tp] = failed.topic_partitions()
        assert await asyncio.to_thread(fingerprint, scene.target, tp, (1, 2, 3)) == before[tp]
        refused(
            await scene.sidecar.run("mirror", "promote", failed.name, "--link", LINK), failed.name, "FAILED"
        )
    await scene.sidecar.linker("mirror", "resume", outrun.name, "--link", LINK, "--restart")
    await scene.shown(MirrorState.ACTIVE, topic=outrun.name)
    scene.topics = [outrun, same]
    await scene.copied()
    await scene.promoted()
    await scene.judge()


def say(producer: Producer, topic: str) -> object:
    """One record; None if it was acknowledged, else the error."""
    outcome: list[object] = []
    producer.produce(
        topic, b"to the old log", partition=0, on_delivery=lambda error, _: outcome.append(error)
    )
    producer.flush(30)
    return outcome[0] if outcome else "no outcome"


async def test_retention_outruns_the_mirror(scene: TroubleScene) -> None:
    """FAILED with both offsets while the only copy's broker was away; the operator's override begins again."""
    await scene.begin(writers=False, factor=1)
    await scene.copied()
    [tp] = scene.tps
    [copied] = scene.source_ends().values()
    [replica] = (await scene.describe()).partition_status[0].replicas
    holder = scene.target.nodes[replica.broker]
    await holder.kill()
    try:
        await asyncio.to_thread(write, scene.source.bootstrap, tp.topic, 400)
        gone = copied + 300
        await asyncio.to_thread(delete_records, scene.source.bootstrap, tp, gone)
    finally:
        await holder.start()
        await brokers_back(scene.target)
    found = await scene.shown(MirrorState.FAILED, "retention at the source has outrun the mirror")
    assert f"starts at offset {gone}," in (found.reason or "")
    assert f"copied up to {copied}" in (found.reason or "")
    assert open_replica(scene.target.log_dir(replica.broker), tp).end() == copied, "a gap, silently"
    refused(await scene.sidecar.run("mirror", "resume", tp.topic, "--link", LINK), "--restart begins again")
    await cancel_reassignments(scene.target, [tp])  # by somebody who had given it up: no obstacle
    await scene.sidecar.linker("mirror", "resume", tp.topic, "--link", LINK, "--restart")
    await scene.shown(MirrorState.ACTIVE)
    await scene.copied()
    await scene.promoted()
    await scene.judge()
    assert await asyncio.to_thread(log_start, scene.target.bootstrap, tp) == gone


async def test_copies_that_are_plain_replicas_are_dropped_too(scene: TroubleScene) -> None:
    """As they are once a link broker has joined or left: no reassignment is there to be cancelled."""
    await scene.begin(writers=False, factor=2)
    await scene.copied()
    [tp] = scene.tps
    [copied] = scene.source_ends().values()
    [(own, listed)] = placements(scene.target.bootstrap, scene.topics).values()
    holders = [broker for broker in listed if broker != own]
    [other] = {node.node_id for node in scene.target.brokers} - {*holders}
    await scene.sidecar.kill()
    # What is added replaces what is listed as such, and a cancel takes just that one out again.
    await reassign(scene.target, {tp: [own, *holders, other]})
    await cancel_reassignments(scene.target, [tp])
    await asyncio.to_thread(write, scene.source.bootstrap, tp.topic, 300)
    gone = copied + 200
    await asyncio.to_thread(delete_records, scene.source.bootstrap, tp, gone)
    await scene.sidecar.start()
    await scene.shown(MirrorState.FAILED, "retention at the source has outrun the mirror")
    assert [open_replica(scene.target.log_dir(broker), tp).end() for broker in holders] == [copied] * 2
    await scene.sidecar.linker("mirror", "resume", tp.topic, "--link", LINK, "--restart")
    await scene.shown(MirrorState.ACTIVE)
    await scene.copied()
    await scene.promoted()
    await scene.judge()
    assert await asyncio.to_thread(log_start, scene.target.bootstrap, tp) == gone
