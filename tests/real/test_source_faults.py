"""Faults of a source's log while it is copied: bytes that are damaged, records that are purged, a start inside a batch, a
partition that nobody leads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from confluent_kafka import Producer

from admin.client import AdminError
from admin.models import CreateMirrorsRequest, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import placements
from lab.workload.replica_log import Batch, open_replica
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.fakes.batches import build_batch
from tests.real.harness_promote import LINK, PATIENCE, eventually
from tests.real.harness_trouble import (
    TroubleScene,
    create_topic,
    delete_records,
    log_start,
    patiently,
    write,
)
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.frames.error_codes import LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT
from wire.frames.types import TopicPartition

RETRIABLE = (LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sidecar: SidecarProcess,
    unique_topic: Callable[[str], str],
) -> AsyncIterator[TroubleScene]:
    """One topic of one partition and one replica, not there yet."""
    topic = SourceTopic(unique_topic("t"), 1, SourceFiller.history)
    made = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
    yield made
    await made.close()


async def written(scene: TroubleScene, records: int, *, size: int = 200) -> TopicPartition:
    """The scene's topic, with so many records in batches of 30 at most."""
    [tp] = scene.tps
    await asyncio.to_thread(create_topic, scene.source.bootstrap, tp.topic)
    await asyncio.to_thread(write, scene.source.bootstrap, tp.topic, records, size=size)
    return tp


async def begun(scene: TroubleScene) -> None:
    """The mirror is made; nobody waits for what becomes of it."""
    request = CreateMirrorsRequest(topics=scene.names, replication_factor=3)
    await scene.ask(lambda client: client.create_mirrors(LINK, request))


def batch_with(scene: TroubleScene, tp: TopicPartition, offset: int) -> Batch:
    """Of the source's log."""
    [placed] = placements(scene.source.bootstrap, scene.topics).values()
    log = open_replica(scene.source.log_dir(placed.leader), tp)
    return next(batch for batch in log.batches() if batch.header.last_offset >= offset)


def flip(batch: Batch) -> None:
    """One bit of its records, where the broker has them: it sends what is on its disk and looks at no checksum."""
    place = batch.header.end - 3
    with Path(batch.path).open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x40]))


def ends(scene: TroubleScene, tp: TopicPartition) -> list[int]:
    """Where the replicas of the target end; 0 for one that is not there yet."""
    return [
        open_replica(scene.target.log_dir(broker), tp).end()
        if any(scene.target.partition_dir(broker, tp).glob("*.log"))
        else 0
        for broker in (1, 2, 3)
    ]


async def damaged_reads(sidecar: SidecarProcess) -> float:
    """As the metrics page tells."""
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{sidecar.admin_url}/metrics")
    [line] = [one for one in answer.text.splitlines() if one.startswith("linker_damaged_reads_total{")]
    return float(line.rpartition(" ")[2])


async def test_records_that_come_damaged(scene: TroubleScene) -> None:
    """Every follower refuses them: that is shown and counted, and nobody has to do anything once the source is well."""
    tp = await written(scene, 300)
    bad = batch_with(scene, tp, 150)
    flip(bad)
    try:
        await begun(scene)
        found = await scene.shown(MirrorState.SOURCE_UNAVAILABLE, "came damaged from the source")
        assert f"from offset {bad.header.base_offset} to {bad.header.last_offset} " in (found.reason or "")
        assert all(end <= bad.header.base_offset for end in await asyncio.to_thread(ends, scene, tp))
        assert await damaged_reads(scene.sidecar) > 0
        assert "came damaged from the source" in scene.sidecar.log.read_text()
    finally:
        flip(bad)
    await scene.shown(MirrorState.ACTIVE)
    await scene.copied()
    await scene.promoted()
    await scene.judge()


@asynccontextmanager
async def purged_under_load(
    scene: TroubleScene, tp: TopicPartition, keep: int
) -> AsyncIterator[Callable[[], int]]:
    """Somebody writes, and deletes all but the last records again and again; how often that was."""
    over = threading.Event()
    purges = 0

    def load() -> None:
        nonlocal purges
        heard: list[int] = []
        producer = Producer({"bootstrap.servers": scene.source.bootstrap, "linger.ms": 5})
        while not over.is_set():
            for _ in range(100):
                producer.produce(
                    tp.topic,
                    b"x" * 200,
                    partition=0,
                    on_delivery=lambda error, message: heard.append(message.offset()),
                )
            assert producer.flush(30) == 0
            delete_records(scene.source.bootstrap, tp, max(heard) + 1 - keep)
            purges += 1
            over.wait(0.1)

    work = asyncio.create_task(asyncio.to_thread(load))
    try:
        yield lambda: purges
    finally:
        over.set()
        await work


async def test_purged_while_it_is_copied_for_the_first_time(scene: TroubleScene) -> None:
    """As Streams does with what it has repartitioned. The replicas have a part of what goes; they begin again."""
    tp = await written(scene, 1000, size=4000)
    bad = batch_with(scene, tp, 700)
    # Holds the copies: a follower takes all answers before the one with such a batch, and nothing of that one.
    flip(bad)
    await begun(scene)
    await patiently("a part is copied", lambda: min(ends(scene, tp)) > 0)
    assert max(await asyncio.to_thread(ends, scene, tp)) <= bad.header.base_offset
    async with purged_under_load(scene, tp, 50) as purges:
        await eventually("purged some times", lambda: purges() > 5)
        await scene.shown(MirrorState.ACTIVE)
        before = purges()
        await eventually("purged many times more", lambda: purges() > before + 20)
        found = await scene.describe()
        assert found.state is MirrorState.ACTIVE, found
    flip(bad)  # whoever compares the logs reads the files from the beginning
    await scene.copied()
    start = await asyncio.to_thread(log_start, scene.source.bootstrap, tp)
    assert start > 1000
    await scene.promoted()
    await scene.judge()
    # Followers hear of the last purges with an answer that may come after the promote; they keep those records then.
    assert 1000 < await asyncio.to_thread(log_start, scene.target.bootstrap, tp) <= start


async def test_a_log_that_starts_inside_a_batch(scene: TroubleScene) -> None:
    """Copied with the whole batch, as a follower of the source has it, and read from the very offset."""
    tp = await written(scene, 300)
    inside = batch_with(scene, tp, 150)
    start = inside.header.base_offset + 1
    assert start <= inside.header.last_offset
    await asyncio.to_thread(delete_records, scene.source.bootstrap, tp, start)
    await scene.mirror()
    await scene.copied()
    assert await asyncio.to_thread(log_start, scene.target.bootstrap, tp) == start
    await scene.promoted()
    await scene.judge()
    assert await asyncio.to_thread(log_start, scene.target.bootstrap, tp) == start


async def test_a_partition_without_a_leader_at_the_source(
    scene: TroubleScene, unique_topic: Callable[[str], str]
) -> None:
    """It goes on, or may be mirrored, once somebody leads it, and stands in nobody's way, though it is all the link has."""
    [victim] = [node for node in scene.source.brokers if not node.is_controller]
    alone, late, other = [
        SourceTopic(unique_topic(name), 1, SourceFiller.history) for name in ("alone", "late", "other")
    ]
    for topic in (alone, late):
        await asyncio.to_thread(
            create_topic, scene.source.bootstrap, topic.name, assignment=[[victim.node_id]]
        )
        await asyncio.to_thread(write, scene.source.bootstrap, topic.name, 100)
    scene.topics = [alone]
    await scene.mirror()
    await scene.copied()
    await victim.stop()
    try:
        await scene.shown(MirrorState.SOURCE_UNAVAILABLE, f"{alone.name}-0 has no leader at the source")
        scene.topics = [late]
        with pytest.raises(AdminError, match=f"topic {late.name} has no leader at the source"):
            await begun(scene)  # its leader alone would tell whether it is a mirror of this very cluster
        scene.topics = [other]
        await asyncio.to_thread(create_topic, scene.source.bootstrap, other.name)
        await asyncio.to_thread(write, scene.source.bootstrap, other.name, 100)
        await scene.mirror()
        await scene.copied()
    finally:
        await victim.start()
    scene.topics = [late]
    await scene.mirror()
    scene.topics = [alone, late, other]
    await scene.wait_active()
    await scene.copied()
    await scene.promoted()
    await scene.judge()


async def test_one_request_with_mixed_answers(scene: TroubleScene) -> None:
    """One partition is written, the other has no leader: each is told its own, and what is sent again is there once, the
    part that was written too."""
    [lives] = [node for node in scene.source.brokers if node.is_controller]
    [victim] = [node for node in scene.source.brokers if not node.is_controller]
    scene.topics = [SourceTopic(scene.names[0], 2, SourceFiller.history)]
    await asyncio.to_thread(
        create_topic,
        scene.source.bootstrap,
        scene.names[0],
        2,
        assignment=[[lives.node_id], [victim.node_id]],
    )
    await scene.mirror()
    host, _, port = scene.sidecar.address().rpartition(":")
    client = await Connection.open(host, int(port), ClientSecurity.plaintext(), client_id="mixed", timeout=30)
    try:
        asked = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        producer = await client.call("init_producer_id", asked, timeout=30)

        async def send(sequence: int) -> dict[int, tuple[int, int]]:
            """By partition: error code and base offset."""
            batch = build_batch(
                2,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=sequence,
            )
            partitions = [{"index": index, "records": batch} for index in (0, 1)]
            answer = await client.call(
                "produce",
                {
                    "transactional_id": None,
                    "acks": -1,
                    "timeout_ms": 2000,
                    "topic_data": [{"name": scene.names[0], "partition_data": partitions}],
                },
                timeout=60,
                version=9,
            )
            [topic] = answer.responses
            return {one.index: (int(one.error_code), one.base_offset) for one in topic.partition_responses}

        assert await send(0) == {0: (0, 0), 1: (0, 0)}
        await victim.stop()
        try:
            mixed = await send(2)
            assert mixed[0] == (0, 2)
            code, offset = mixed[1]
            assert offset == -1
            assert code in RETRIABLE, mixed
        finally:
            await victim.start()
        await scene.shown(MirrorState.ACTIVE)
        # As a client does that sends the whole request again.
        deadline = time.monotonic() + PATIENCE
        while (again := await send(2))[1][0] in RETRIABLE:
            assert time.monotonic() < deadline, again
        assert again == {0: (0, 2), 1: (0, 2)}
        assert await send(4) == {0: (0, 4), 1: (0, 4)}
    finally:
        client.close()
    assert set((await asyncio.to_thread(scene.source_ends)).values()) == {6}
    await scene.copied()
    await scene.promoted()
    await scene.judge()
