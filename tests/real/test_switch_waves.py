"""A switch of more partitions than go together: wave after wave, and what is left when it is cut off between two."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from admin.models import Direction
from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.checker import check
from lab.workload.history import History, PartitionLog
from lab.workload.inspection import compare_clusters, final_logs, placements
from lab.workload.live_producers import LibrdkafkaProducer
from lab.workload.source_data import SourceTopic
from linker.promote.ports import PromoteSettings
from tests.real.kafka_admin import kafka_admin
from tests.real.test_switch import (
    LINK,
    PATIENCE,
    Scene,
    StartCluster,
    StartSidecar,
    judged,
    real,
    scene_of,
)
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(420)
WIDE = [SourceTopic(name, 60, lambda _filler, _topic: None) for name in ("wide-0", "wide-1")]
NAMES = ["orders", *(topic.name for topic in WIDE)]  # "orders" and "wide-0" are the first wave


async def test_killed_between_two_waves(start_cluster: StartCluster, start_sidecar: StartSidecar) -> None:
    """The first wave stays where it went, the second is the source's still; naming it goes on, and all go back together.
    Producers of both waves, at both clusters, see no error."""
    assert 2 * WIDE[0].partitions > PromoteSettings().switch_partitions >= 4 + WIDE[0].partitions
    scene = await scene_of(start_cluster, start_sidecar)
    admin = await asyncio.to_thread(kafka_admin, scene.source.bootstrap)
    for made in admin.create_topics([NewTopic(one.name, one.partitions, 2) for one in WIDE]).values():
        await asyncio.to_thread(made.result, 30)
    await scene.sidecar.linker("mirror", "create", *NAMES[1:], "--link", LINK)
    await until(scene, dict.fromkeys(NAMES, "FORWARD"))
    history = History()
    writers = [
        LibrdkafkaProducer(f"wide-{at.spec.name}", ",".join(NAMES[1:]), WIDE[0].partitions, 40.0, history)
        for at in (scene.source, scene.target)
    ]
    for writer, at in zip(writers, (scene.source, scene.target), strict=True):
        await writer.start(at.bootstrap)
    await scene.sidecar.linker("mirror", "sync", *NAMES, "--link", LINK)
    await until(scene, dict.fromkeys(NAMES, "FORWARD"), sync="IN_SYNC")

    planned = await scene.sidecar.linker(
        "mirror", "switch", *NAMES, "--link", LINK, "--dry-run", "-o", "json"
    )
    assert any("124 partitions go in 2 waves" in line for line in planned.json()["warnings"]), planned.output

    open_ = await asyncio.to_thread(transaction, scene.source.bootstrap)  # the second wave waits for its end
    await scene.sidecar.linker("mirror", "switch", *NAMES, "--link", LINK, "--no-wait")
    deadline = time.monotonic() + PATIENCE
    while (await asyncio.to_thread(directions, scene)) != {
        "orders": Direction.REVERSED,
        "wide-0": Direction.REVERSED,
        "wide-1": Direction.FORWARD,
    }:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    back = await scene.sidecar.run("mirror", "switch", "wide-0", "--link", LINK)
    assert back.exit_code and "wide-0: still part of switch" in back.errors, back
    await scene.sidecar.kill()
    await scene.sidecar.start()
    left = {"orders": "REVERSED", "wide-0": "REVERSED", "wide-1": "FORWARD"}
    await until(scene, left)
    await asyncio.to_thread(open_.abort_transaction, 60)

    mixed = await scene.sidecar.run("mirror", "switch", *NAMES, "--link", LINK)
    assert mixed.exit_code != 0
    assert "the source owns wide-1 and the target orders, wide-0" in mixed.errors
    await scene.sidecar.linker("mirror", "switch", "wide-1", "--link", LINK)
    await until(scene, dict.fromkeys(NAMES, "REVERSED"))
    await scene.acked_more(20)
    await scene.sidecar.linker("mirror", "switch", *NAMES, "--link", LINK)
    await until(scene, dict.fromkeys(NAMES, "FORWARD"))
    await scene.acked_more(20)

    for writer in writers:
        await writer.stop()
    await judged(scene, scene.source)
    verdict = check(history, await wide_logs(scene.source))
    assert verdict.ok, verdict.violations
    print(f"pauses in ms: {verdict.pauses_ms}")
    placed = real(await asyncio.to_thread(placements, scene.source.bootstrap, WIDE), scene.source)
    copies = real(await asyncio.to_thread(placements, scene.target.bootstrap, WIDE), scene.target)
    compared = await asyncio.to_thread(compare_clusters, scene.source, scene.target, WIDE, placed, copies)
    assert compared and all(one.identical for one in compared), compared


def transaction(bootstrap: str) -> Producer:
    """One that is open in "wide-1"."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "waves", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(WIDE[1].name, b"open", partition=0)
    assert producer.flush(60) == 0
    return producer


async def wide_logs(owner: KafkaCluster) -> dict[TopicPartition, PartitionLog]:
    placed = real(await asyncio.to_thread(placements, owner.bootstrap, WIDE), owner)
    return await asyncio.to_thread(final_logs, owner, WIDE, placed)


def directions(scene: Scene) -> dict[str, Direction]:
    with scene.sidecar.client() as client:
        return {one.topic: one.direction for one in client.list_mirrors(LINK)}


async def until(scene: Scene, wanted: dict[str, str], **more: str) -> None:
    """All of them are ACTIVE in these directions."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = (await scene.sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
        now = {one["topic"]: one for one in found}
        if (
            all(
                now[topic]["direction"] == way
                and now[topic]["state"] == "ACTIVE"
                and all(now[topic].get(key) == value for key, value in more.items())
                for topic, way in wanted.items()
                if topic in now
            )
            and wanted.keys() <= now.keys()
        ):
            return
        assert time.monotonic() < deadline, (wanted, now)
        await asyncio.sleep(0.3)
