"""Two sources with a topic of the same name, gathered in one target under their links' prefixes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import MirrorState, MirrorSummary
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.log_compare import compare_replica
from lab.workload.replica_log import open_replica
from tests.real.test_read_only import read, written
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(420)
PATIENCE = 120.0

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


def make(cluster: KafkaCluster, topic: str, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    write(cluster, topic, records)


def write(cluster: KafkaCluster, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(records):
        producer.produce(topic, f"{cluster.spec.name} {number}".encode(), partition=number % 2)
    assert producer.flush(60) == 0


class Stage:
    """Two sources, a target and one sidecar with a link to each."""

    def __init__(
        self, east: KafkaCluster, west: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess
    ) -> None:
        self.sources = {"east": east, "west": west}
        self.target, self.sidecar = target, sidecar

    async def mirrors(self, link: str) -> dict[str, MirrorSummary]:
        def ask() -> dict[str, MirrorSummary]:
            with self.sidecar.client() as client:
                return {one.topic: one for one in client.list_mirrors(link)}

        return await asyncio.to_thread(ask)

    async def copied(self, link: str, *topics: str) -> dict[str, MirrorSummary]:
        """Until exactly these are mirrored, and their replicas have what the source has."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.mirrors(link)
            fine = found.keys() == set(topics) and all(
                one.state is MirrorState.ACTIVE and one.lag == 0 for one in found.values()
            )
            if fine and await asyncio.to_thread(self.unequal, link, found) is None:
                return found
            assert time.monotonic() < deadline, (found, self.unequal(link, found))
            await asyncio.sleep(0.2)

    def unequal(self, link: str, found: dict[str, MirrorSummary]) -> str | None:
        """The first difference of two logs as they lie on the brokers' disks: batches, offsets, every byte but the epoch."""
        source = self.sources[link]
        for topic, one in found.items():
            for index in range(one.partitions):
                here = open_replica(self.target.log_dir(1), TopicPartition(topic, index))
                there = open_replica(source.log_dir(1), TopicPartition(one.source_topic or topic, index))
                compared = compare_replica(there, here, TopicPartition(topic, index), 1)
                if not compared.identical or not compared.batches:
                    return f"{topic}-{index}: {compared}"
        return None


@pytest_asyncio.fixture(loop_scope="session")
async def stage(start_cluster: StartCluster, start_sidecar: StartSidecar) -> AsyncIterator[Stage]:
    east, west, target = await asyncio.gather(
        *(start_cluster(name=name, brokers=1) for name in ("east", "west", "target"))
    )
    sidecar = await start_sidecar(target.bootstrap)
    for link, source in (("east", east), ("west", west)):
        options = ("--option", f"prefix={link}.")
        await sidecar.linker("link", "create", link, "--bootstrap-servers", source.bootstrap, *options)
    yield Stage(east, west, target, sidecar)


async def refused(stage: Stage, *command: str) -> str:
    said = await stage.sidecar.run(*command)
    assert said.exit_code != 0, said
    return said.output + said.errors


async def test_two_sources_with_a_topic_of_one_name_fan_in_to_one_target(stage: Stage) -> None:
    sidecar, at = stage.sidecar, stage.target.bootstrap
    for link, source in stage.sources.items():
        await asyncio.to_thread(make, source, "orders", 200)
        await sidecar.linker("mirror", "create", "--link", link, "orders")
    for link in stage.sources:
        found = await stage.copied(link, f"{link}.orders")
        assert found[f"{link}.orders"].source_topic == "orders"

    # Both go on, and so do they after a restart of the sidecar.
    for source in stage.sources.values():
        await asyncio.to_thread(write, source, "orders", 100)
    await sidecar.restart()
    for link, source in stage.sources.items():
        await asyncio.to_thread(write, source, "orders", 100)
        await stage.copied(link, f"{link}.orders")
        assert await asyncio.to_thread(read, at, f"{link}.orders", f"readers of {link}", 400) == 400

    # Read by anybody, written by nobody.
    for more in ({}, {"enable.idempotence": True}):
        error, seconds = await asyncio.to_thread(written, at, "east.orders", **more)
        assert error is not None
        assert error.code() == KafkaError.POLICY_VIOLATION, error
        assert seconds < 10
    groups = (await sidecar.linker("group", "list", "--link", "east", "-o", "json")).json()
    assert groups == [], groups

    assert "is called east.orders here" in await refused(
        stage, "mirror", "describe", "orders", "--link", "east"
    )
    assert "prefix" in await refused(stage, "link", "update", "east", "--option", "prefix=other.")
    assert "east.orders" in await refused(stage, "mirror", "create", "--link", "east", "orders")

    # One is deleted with its topic; the other one, and both sources, stay as they are.
    await sidecar.linker("mirror", "delete", "east.orders", "--link", "east", "--yes")
    await asyncio.to_thread(write, stage.sources["west"], "orders", 100)
    await stage.copied("west", "west.orders")
    assert await stage.mirrors("east") == {}

    def topics(cluster: KafkaCluster) -> set[str]:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        return {name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")}

    assert await asyncio.to_thread(topics, stage.target) == {"west.orders"}
    assert await asyncio.to_thread(topics, stage.sources["east"]) == {"orders"}
    await sidecar.linker("link", "update", "east", "--option", "prefix=other.")
    await sidecar.linker("mirror", "create", "--link", "east", "orders")
    await stage.copied("east", "other.orders")
