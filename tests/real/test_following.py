"""Topics by pattern on real brokers: made, deleted, made again, and one that cannot be mirrored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import MirrorState, MirrorSummary
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from wire.together import together

pytestmark = pytest.mark.timeout(420)
PATIENCE = 120.0
LINK = "east"

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


class Stage:
    """A source, a target and the sidecar between them, which looks at the source's topics every second."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess) -> None:
        self.source, self.target, self.sidecar = source, target, sidecar

    def make(self, *topics: str, at: KafkaCluster | None = None) -> None:
        """Each topic with three records."""
        bootstrap = (at or self.source).bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            made.result(60)
        producer = Producer({"bootstrap.servers": bootstrap})
        for topic in topics:
            for number in range(3):
                producer.produce(topic, f"{number}".encode(), partition=0)
        assert producer.flush(60) == 0

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.source.bootstrap})
        admin.delete_topics([topic])[topic].result(60)

    def at_target(self) -> set[str]:
        topics = AdminClient({"bootstrap.servers": self.target.bootstrap}).list_topics(timeout=60).topics
        return {name for name in topics if name.startswith("shop.")}

    async def mirrors(self) -> dict[str, MirrorSummary]:
        def ask() -> dict[str, MirrorSummary]:
            with self.sidecar.client() as client:
                return {one.topic: one for one in client.list_mirrors(LINK)}

        return await asyncio.to_thread(ask)

    async def until(self, *topics: str) -> dict[str, MirrorSummary]:
        """Until exactly these are mirrored, all ACTIVE without lag."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.mirrors()
            done = {topic for topic, one in found.items() if one.state is MirrorState.ACTIVE and one.lag == 0}
            if done == found.keys() == set(topics):
                return found
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.2)

    async def source_topic_id(self, topic: str) -> str | None:
        def ask() -> Any:
            with self.sidecar.client() as client:
                return client.describe_mirror(LINK, topic).source_topic_id

        return await asyncio.to_thread(ask)


@pytest_asyncio.fixture(loop_scope="session")
async def stage(start_cluster: StartCluster, start_sidecar: StartSidecar) -> AsyncIterator[Stage]:
    source, target = await together(start_cluster(name=name, brokers=1) for name in ("source", "target"))
    sidecar = await start_sidecar(target.bootstrap)
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
    yield Stage(source, target, sidecar)


@pytest.mark.real
@pytest.mark.asyncio(loop_scope="session")
async def test_topics_by_pattern_are_made_deleted_and_made_again(stage: Stage) -> None:
    await asyncio.to_thread(stage.make, "shop.a", "shop.b", "shop.tmp", "unasked")
    await asyncio.to_thread(stage.make, "shop.taken", at=stage.target)
    await asyncio.to_thread(stage.make, "shop.taken")
    pattern = ("--include", "shop\\..*", "--exclude", "shop\\.tmp")

    said = await stage.sidecar.linker("mirror", "create", "--link", LINK, *pattern, "--dry-run")
    assert "shop.a" in said.output
    assert "shop.b" in said.output
    assert "unasked" not in said.output
    assert "topic shop.taken is not mirrored: topic shop.taken exists at the target" in said.output
    assert await stage.mirrors() == {}

    options = (
        *("--option", "topics_include=shop\\..*", "--option", "topics_exclude=shop\\.tmp"),
        *("--option", "topics_refresh_interval_ms=1000", "--option", "topics_deleted=delete"),
    )
    await stage.sidecar.linker("link", "update", LINK, *options)
    await stage.until("shop.a", "shop.b")
    listed = await stage.sidecar.linker("mirror", "list", "--link", LINK)
    assert "NOT MIRRORED" in listed.output
    assert "shop.taken" in listed.output

    await asyncio.to_thread(stage.make, "shop.c")
    await stage.until("shop.a", "shop.b", "shop.c")

    await asyncio.to_thread(stage.delete, "shop.b")
    await stage.until("shop.a", "shop.c")
    assert await asyncio.to_thread(stage.at_target) == {"shop.a", "shop.c", "shop.taken"}

    before = await stage.source_topic_id("shop.c")
    await asyncio.to_thread(stage.delete, "shop.c")
    await asyncio.to_thread(stage.make, "shop.c")
    deadline = time.monotonic() + PATIENCE
    while True:
        found = await stage.until("shop.a", "shop.c")
        after = await stage.source_topic_id("shop.c")
        if after != before:
            break
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)
