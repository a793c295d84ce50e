"""Source data, live clients, checker and comparison on real clusters that no link connects.

What the checker is for has to show: with a clean stop and start in one cluster nothing is off, with clients
that are moved to a cluster which never gets the source's records nearly everything is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import NotCoordinatorForGroupError

from lab.clusters.kafka_cluster import KafkaCluster
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
from lab.workload.replica_log import open_replica
from lab.workload.source_data import LARGE_RECORD_BYTES, TOPICS, SourceFiller, SourceTopic
from tests.real.verdicts import assert_sound
from wire.frames.types import TopicPartition

PRODUCERS = (AiokafkaProducer, LibrdkafkaProducer, KafkaPythonProducer)


def clients(
    topics: list[SourceTopic], history: History, group: str
) -> tuple[list[LiveProducer], list[LiveConsumer]]:
    producers: list[LiveProducer] = [
        kind(f"writer-{kind.library}", topic.name, topic.partitions, 150, history)
        for kind, topic in zip(PRODUCERS, topics, strict=True)
    ]
    names = [topic.name for topic in topics]
    return producers, [
        AiokafkaConsumer(f"{group}-aiokafka", names, history),
        LibrdkafkaConsumer(f"{group}-librdkafka", names, history),
    ]


async def stop(everything: list[LiveProducer | LiveConsumer]) -> None:
    for client in everything:
        await client.stop()


async def test_what_the_source_is_filled_with(
    source_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    topics = [replace(topic, name=unique_topic(topic.name)) for topic in TOPICS]
    filler = SourceFiller(source_cluster.bootstrap, scale=0.3)
    await asyncio.to_thread(filler.create, topics, 2)
    await asyncio.to_thread(filler.fill, topics)
    by_stem = {topic.name.partition(".")[0]: topic for topic in topics}
    log_dirs = {node.node_id: node.data for node in source_cluster.brokers}
    assert await asyncio.to_thread(filler.wait_compacted, by_stem["accounts"], log_dirs) > 1000

    def leader_log(stem: str, index: int) -> tuple[Path, TopicPartition]:
        partition = TopicPartition(by_stem[stem].name, index)
        return source_cluster.log_dir(placed[partition].leader), partition

    placed = await asyncio.to_thread(placements, source_cluster.bootstrap, topics)
    assert set(leaders(placed)) == {1, 2}
    codecs = set()
    nothing_null = {"key": False, "value": False, "header": False}
    for index in range(5):
        for batch in open_replica(*leader_log("events", index)).batches():
            codecs.add(batch.header.compression)
            for record in batch.records():
                nothing_null["key"] |= record.key is None
                nothing_null["value"] |= record.value is None
                nothing_null["header"] |= any(value is None for _, value in record.headers)
    assert codecs == {0, 1, 2, 3, 4}
    assert all(nothing_null.values())
    assert open_replica(*leader_log("events", 5)).end() == 0, "the empty partition"
    large = [batch.header.size for batch in open_replica(*leader_log("documents", 0)).batches()]
    assert max(large) > LARGE_RECORD_BYTES
    commits: dict[int, int] = {0: 0, 1: 0}
    for index in range(4):
        for batch in open_replica(*leader_log("ledger", index)).batches():
            if batch.header.is_control:
                for marker in batch.records():
                    commits[int.from_bytes(bytes(marker.key or b"")[2:4], "big")] += 1
    assert min(commits.values()) > 0, "aborted and committed"


async def test_a_clean_move_within_one_cluster_is_clean(
    source_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    topics = [replace(topic, name=unique_topic(topic.name)) for topic in TOPICS if topic.live]
    filler = SourceFiller(source_cluster.bootstrap, scale=0.05)
    await asyncio.to_thread(filler.create, topics, 2)
    await asyncio.to_thread(filler.fill, topics)
    history = History()
    producers, consumers = clients(topics, history, unique_topic("group"))
    for client in (*producers, *consumers):
        await client.start(source_cluster.bootstrap)
    await asyncio.sleep(1.5)
    begin = history.mark("move")
    for client in (*producers, *consumers):
        await client.move(source_cluster.bootstrap)
    end = history.mark("moved")
    await asyncio.sleep(1.5)
    await stop([*producers])
    placed = await asyncio.to_thread(placements, source_cluster.bootstrap, topics)
    logs = await asyncio.to_thread(final_logs, source_cluster, topics, placed)
    for consumer in consumers:
        assert await consumer.read_up_to({tp: log.end for tp, log in logs.items()}, 30)
    await stop([*consumers])
    verdict = check(history, logs, promote=(begin, end))
    assert_sound(verdict)
    assert verdict.unknown == 0
    assert verdict.acked == sum(map(len, history.sends.values())) > 500
    assert verdict.read >= 2 * verdict.acked
    assert verdict.promote_pause_ms is not None
    assert verdict.promote_pause_ms > 0
    followers = await asyncio.to_thread(compare_followers, source_cluster, topics, placed)
    assert len(followers) == 21
    assert all(one.identical and one.offsets_identical for one in followers)


async def test_a_consumer_stops_although_its_coordinator_refuses_a_closing_member_s_commits(
    source_cluster: KafkaCluster, unique_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the coordinator moves, or its disk is slow, just then. aiokafka's own last commit would never end."""
    commit = GroupCoordinator._do_commit_offsets

    async def refused(self: GroupCoordinator, *offsets: object) -> None:
        if self._closing.done():
            self.coordinator_dead()
            raise NotCoordinatorForGroupError
        await commit(self, *offsets)

    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", refused)
    (topic,) = (replace(one, name=unique_topic(one.name)) for one in TOPICS if one.name == "ledger")
    filler = SourceFiller(source_cluster.bootstrap, scale=0.05)
    await asyncio.to_thread(filler.create, [topic], 2)
    await asyncio.to_thread(filler.fill, [topic])
    history = History()
    consumer = AiokafkaConsumer(unique_topic("group"), [topic.name], history)
    async with asyncio.timeout(90):
        await consumer.start(source_cluster.bootstrap)
        before = -1
        while not 0 < len(history.reads) == before:
            before = len(history.reads)
            await asyncio.sleep(1)
        async with asyncio.timeout(30):
            await consumer.stop()
        await consumer.start(source_cluster.bootstrap)
        await asyncio.sleep(1)
        await consumer.stop()
    assert len(history.reads) == before, "it had committed"
    assert history.notices == []


async def test_a_move_to_a_cluster_without_the_records_is_found_out(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    topics = [replace(topic, name=unique_topic(topic.name)) for topic in TOPICS if topic.live]
    for cluster, copies in ((source_cluster, 2), (target_cluster, 3)):
        await asyncio.to_thread(SourceFiller(cluster.bootstrap).create, topics, copies)
    history = History()
    producers, consumers = clients(topics, history, unique_topic("group"))
    for producer in producers:
        await producer.start(source_cluster.bootstrap)
    await asyncio.sleep(1)
    for producer in producers:
        await producer.move(target_cluster.bootstrap)
    await consumers[0].start(target_cluster.bootstrap)
    await asyncio.sleep(1)
    await stop([*producers])
    placed = await asyncio.to_thread(placements, target_cluster.bootstrap, topics)
    logs = await asyncio.to_thread(final_logs, target_cluster, topics, placed)
    assert await consumers[0].read_up_to({tp: log.end for tp, log in logs.items()}, 30)
    await stop([*consumers])
    verdict = check(history, logs)
    assert set(verdict.violations) == {"lost"}
    assert 100 < len(verdict.lost) < verdict.acked
    source_placed = await asyncio.to_thread(placements, source_cluster.bootstrap, topics)
    compared = await asyncio.to_thread(
        compare_clusters, source_cluster, target_cluster, topics, source_placed, placed
    )
    assert len(compared) == 63
    assert not any(one.identical for one in compared)


async def test_an_error_that_reaches_the_application_is_in_the_history(
    source_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    """A topic that takes no record of this size: librdkafka reports it at delivery, once per record."""
    topic = replace(TOPICS[0], name=unique_topic("small"), partitions=3, configs={"max.message.bytes": "100"})
    await asyncio.to_thread(SourceFiller(source_cluster.bootstrap).create, [topic], 2)
    history = History()
    producer = LibrdkafkaProducer("writer", topic.name, 3, 50, history)
    await producer.start(source_cluster.bootstrap)
    await asyncio.sleep(1)
    await producer.stop()
    placed = await asyncio.to_thread(placements, source_cluster.bootstrap, [topic])
    verdict = check(history, await asyncio.to_thread(final_logs, source_cluster, [topic], placed))
    assert verdict.acked == 0
    assert len(verdict.client_errors) == verdict.unknown == len(history.sends["writer"]) > 10
    assert "MSG_SIZE_TOO_LARGE" in verdict.client_errors[0] or "too large" in verdict.client_errors[0]


@pytest.mark.parametrize("kind", PRODUCERS)
async def test_a_broker_that_is_away_for_a_moment_is_no_error(
    kind: type[LiveProducer], source_cluster: KafkaCluster, unique_topic: Callable[[str], str]
) -> None:
    topic = replace(TOPICS[0], name=unique_topic("paused"), partitions=4)
    await asyncio.to_thread(SourceFiller(source_cluster.bootstrap).create, [topic], 2)
    history = History()
    producer = kind("writer", topic.name, 4, 100, history)
    await producer.start(source_cluster.bootstrap)
    await asyncio.sleep(0.5)
    begin = history.mark("pause")
    source_cluster.nodes[2].pause()
    await asyncio.sleep(1.5)
    source_cluster.nodes[2].resume()
    await asyncio.sleep(1.0)
    await producer.stop()
    placed = await asyncio.to_thread(placements, source_cluster.bootstrap, [topic])
    logs = await asyncio.to_thread(final_logs, source_cluster, [topic], placed)
    verdict = check(history, logs, promote=(begin, begin + 1.5))
    assert_sound(verdict)
    assert verdict.unknown == 0
