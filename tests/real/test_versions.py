"""Other versions of Kafka than the newest, on either side: link, mirror, forward, promote."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import TroubleScene, create_topic, linked_sidecar, refused
from tests.real.harness_zookeeper import ZooKeeperKafka
from tests.real.test_bad_input import another, refuses_to_run
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.error_codes import UNSUPPORTED_VERSION
from wire.frames.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP

pytestmark = pytest.mark.timeout(300)
OLDEST_TARGET = "3.9.1"


def topics(unique_topic: Callable[[str], str]) -> list[SourceTopic]:
    """What the batches of a version may differ in."""
    return [
        SourceTopic(unique_topic("live"), 3, SourceFiller.history),
        SourceTopic(unique_topic("mixed"), 6, SourceFiller.mixed),
        SourceTopic(unique_topic("ledger"), 2, SourceFiller.transactions),
    ]


async def whole_way(
    scene: TroubleScene, before: Callable[[TroubleScene], Awaitable[None]] | None = None
) -> None:
    """A writer each for two of the topics, at the target before, while and after they are promoted. before: the promote."""
    await scene.begin()
    await scene.acked_more(100)
    if before is not None:
        await before(scene)
    await scene.promoted()
    await scene.acked_more(50)
    verdict = await scene.judge()
    assert verdict.acked > 300


async def offsets_are_right_or_refused(scene: TroubleScene) -> None:
    """An old broker takes a special timestamp for a time, and answers with its first offset."""
    tp = scene.tps[0]
    cluster = Cluster(
        "target", parse_bootstrap_servers(scene.target.bootstrap), ClientSecurity.plaintext(), "offsets"
    )
    await cluster.connect(timeout=30)
    try:
        found = {
            timestamp: (await cluster.list_offsets({tp: timestamp}, timeout=30))[tp]
            for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP, -7, -86_400_000)
        }
    finally:
        await cluster.close()
    errors = {timestamp: result.error for timestamp, result in found.items() if result.error}
    assert errors.keys() == {MAX_TIMESTAMP, -7, -86_400_000}, found
    assert set(errors.values()) <= {UNSUPPORTED_VERSION}, found
    assert found[EARLIEST].offset == found[EARLIEST_LOCAL].offset
    assert found[LATEST].offset > found[EARLIEST].offset
    assert found[LATEST_TIERED].offset == -1


async def test_old_target(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    unique_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """No cordon there, other versions of every inter-broker request, Produce without topic ids."""
    target = await start_cluster(name="target", brokers=2, controllers=1, version=OLDEST_TARGET)
    async with linked_sidecar(source_cluster, target, 900, tmp_path / "sidecar") as sidecar:
        scene = TroubleScene(source_cluster, target, sidecar, topics(unique_topic))
        try:
            await whole_way(scene)
        finally:
            await scene.close()


async def test_old_source(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str], tmp_path: Path, _numbers: Iterator[int]
) -> None:
    """Kafka 2.8 with ZooKeeper: fetched by topic name. As a target it is refused, and nothing is left there."""
    async with ZooKeeperKafka(2, tmp_path / "old") as source:
        async with another(tmp_path / "refused", source.bootstrap, 900) as process:
            await refuses_to_run(process, "ZooKeeper mode", "KRaft")
        own_id = 900 + next(_numbers)
        async with linked_sidecar(source, target_cluster, own_id, tmp_path / "sidecar") as sidecar:  # type: ignore[arg-type]
            scene = TroubleScene(source, target_cluster, sidecar, topics(unique_topic))  # type: ignore[arg-type]
            try:
                await whole_way(scene, offsets_are_right_or_refused)
            finally:
                await scene.close()


async def test_records_of_an_old_format_are_refused(
    target_cluster: KafkaCluster, unique_topic: Callable[[str], str], tmp_path: Path, _numbers: Iterator[int]
) -> None:
    """Kafka 2.8 writes v0 and v1 where it is told to; said before anything is made, by a dry run too."""
    names = {unique_topic("v0"): "0.9.0", unique_topic("v1"): "0.10.2"}
    async with ZooKeeperKafka(1, tmp_path / "old") as source:
        producer = Producer({"bootstrap.servers": source.bootstrap})  # not idempotent: that needs v2
        for name, version in names.items():
            old = {"message.format.version": version}
            await asyncio.to_thread(create_topic, source.bootstrap, name, 2, configs=old)
            for _ in range(20):
                producer.produce(name, b"old", partition=1)
        assert await asyncio.to_thread(producer.flush, 60) == 0
        own_id = 900 + next(_numbers)
        async with linked_sidecar(source, target_cluster, own_id, tmp_path / "sidecar") as sidecar:  # type: ignore[arg-type]
            for name, further in itertools.product(names, (["--dry-run"], [])):
                result = await sidecar.run("mirror", "create", name, "--link", LINK, *further)
                refused(result, name, f"message format {name[:2]}", "before Kafka 0.11")
            listed = (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
            assert listed == []
