"""A hand-over is told to clients once the brokers know it, and never held up by one that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from linker.promote.new_leaders import open_connections, wait_known, wait_named
from tests.fakes import FakeCluster
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]
LINK_BROKER = 900


@contextlib.asynccontextmanager
async def clusters() -> AsyncIterator[tuple[FakeCluster, Cluster]]:
    async with FakeCluster(nodes=3) as fake:
        fake.add_topic("t", partitions=2)
        cluster = Cluster("target", fake.bootstrap, ClientSecurity.from_properties({}), client_id="test")
        await cluster.connect()
        try:
            yield fake, cluster
        finally:
            await cluster.close()


def image_of(fake: FakeCluster, leaders: tuple[int, int]) -> ClusterImage:
    """Partitions 0 and 1 of t, handed over to these leaders with leader epoch 1."""
    image = ClusterImage()
    topic = TopicImage(
        fake.topics["t"].topic_id,
        "t",
        {
            index: PartitionImage(index, (1, 2, 3), (1, 2, 3), (), (), leader, 1, 5)
            for index, leader in enumerate(leaders)
        },
    )
    image.topics_by_name["t"] = topic
    image.topics_by_id[topic.id] = topic
    for broker in (1, 2, 3, LINK_BROKER):
        image.brokers[broker] = BrokerImage(
            broker, 1, b"i" * 16, None, {}, fenced=False, in_controlled_shutdown=False, log_dirs=()
        )
    return image


async def after(delay: float, *, until: asyncio.Task[None], then: object) -> bool:
    """Whether the task was still waiting when `then` was about to happen."""
    await asyncio.sleep(delay)
    waiting = not until.done()
    then()  # type: ignore[operator]
    return waiting


def move(fake: FakeCluster) -> None:
    for index, leader in enumerate((2, 1)):
        fake.move_leader("t", index, leader)


async def test_waits_for_the_new_leaders_and_for_who_only_names_them() -> None:
    async with clusters() as (fake, cluster):
        image = image_of(fake, (2, 1))
        waiting = asyncio.create_task(wait_known(cluster, image, TPS, {LINK_BROKER}, timeout=60))
        assert await after(0.1, until=waiting, then=lambda: move(fake))
        await asyncio.wait_for(waiting, 30)
        assert {request.node for request in fake.received("list_offsets")} == {1, 2}
        assert 3 in {request.node for request in fake.received("metadata")}


async def test_waits_for_brokers_that_still_name_the_old_leader() -> None:
    async with clusters() as (fake, cluster):
        image = image_of(fake, (2, 1))
        for index, leader in enumerate((2, 1)):
            fake.move_leader("t", index, leader, publish=False)
        waiting = asyncio.create_task(wait_known(cluster, image, TPS, {LINK_BROKER}, timeout=60))

        def publish() -> None:
            for index in (0, 1):
                fake.publish("t", index)

        assert await after(0.1, until=waiting, then=publish)
        await asyncio.wait_for(waiting, 30)


async def test_who_does_not_learn_it_is_not_waited_for_longer() -> None:
    async with clusters() as (fake, cluster):
        began = time.monotonic()
        async with asyncio.timeout(25):
            await wait_known(cluster, image_of(fake, (2, 1)), TPS, {LINK_BROKER}, timeout=0.1)
        assert time.monotonic() - began >= 0.09


async def test_a_dead_broker_is_not_waited_for() -> None:
    async with clusters() as (fake, cluster):
        move(fake)
        await fake.brokers[3].stop()
        await asyncio.wait_for(
            wait_known(cluster, image_of(fake, (2, 1)), TPS, {LINK_BROKER}, timeout=60), 30
        )


async def test_partitions_that_the_link_still_leads_are_not_waited_for() -> None:
    async with clusters() as (fake, cluster):
        fake.requests.clear()
        await wait_known(cluster, image_of(fake, (LINK_BROKER, LINK_BROKER)), TPS, {LINK_BROKER}, timeout=60)
        assert not fake.received("list_offsets")
        assert not fake.received("metadata")


async def test_a_cancelled_wait_leaves_the_connections_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linker.promote.new_leaders._CALL_TIMEOUT", 60.0)  # one call that hangs is seen
    async with clusters() as (fake, cluster):
        image = image_of(fake, (2, 1))
        slow = [fake.inject("list_offsets", delay_answer=0.2, node=node) for node in (1, 2)]
        slow.append(fake.inject("metadata", delay_answer=0.2, node=3))
        waiting = asyncio.create_task(wait_known(cluster, image, TPS, {LINK_BROKER}, timeout=60))
        async with asyncio.timeout(25):
            while not all(one.hits for one in slow):
                await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        move(fake)
        await asyncio.wait_for(wait_known(cluster, image, TPS, {LINK_BROKER}, timeout=60), 25)


async def test_ways_are_open_afterwards_and_a_dead_end_is_no_error() -> None:
    async with clusters() as (fake, cluster):
        await fake.brokers[2].stop()
        await open_connections([(cluster, 1), (cluster, 2), (cluster, 3)], timeout=20)
        fake.requests.clear()
        for node in (1, 3):
            await cluster.connection(node)
        assert not fake.received("api_versions")


async def test_a_move_waits_until_every_real_broker_names_the_new_link_broker() -> None:
    other = 3  # stands for another link broker: it is not asked, and may lead
    async with clusters() as (fake, cluster):
        image = image_of(fake, (other, other))
        waiting = asyncio.create_task(wait_named(cluster, image, TPS, {LINK_BROKER, other}, timeout=60))

        def moved() -> None:
            for index in (0, 1):
                fake.move_leader("t", index, other)

        assert await after(0.1, until=waiting, then=moved)
        await asyncio.wait_for(waiting, 30)
        assert {request.node for request in fake.received("metadata")} >= {1, 2}
        fake.move_leader("t", 0, 1)
        await asyncio.wait_for(wait_named(cluster, image, TPS, {LINK_BROKER, other}, timeout=0.1), 30)
