"""Records that are deleted from the replicas alone, as retention at the target did: counted, told, and never promoted away
without a word."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from admin.models import MirrorDescription, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.kafka_admin import kafka_admin
from tests.real.test_validation import LINK, VALIDATION, ask
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.list_offsets import EARLIEST, list_at
from wire.frames.types import TopicPartition
from wire.together import together

pytestmark = pytest.mark.timeout(900)

PATIENCE = 300.0
OLD, NEW, KEPT = 700, 40, 25
DAY_MS = 86_400_000
StartSidecar = Callable[..., Awaitable[SidecarProcess]]
StartCluster = Callable[..., Awaitable[KafkaCluster]]


def write(cluster: KafkaCluster, topic: str, count: int, *, age_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 50})
    now = int(time.time() * 1000)
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=now - age_ms)
    assert producer.flush(60) == 0


def create(cluster: KafkaCluster, *topics: str) -> None:
    admin = kafka_admin(cluster.bootstrap)
    for done in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        done.result(60)


def keep_only_a_day(cluster: KafkaCluster, *topics: str) -> None:
    """Somebody else's hand; the sidecar, which would put it back, is away."""
    admin = kafka_admin(cluster.bootstrap)
    entry = ConfigEntry("retention.ms", str(DAY_MS), incremental_operation=AlterConfigOpType.SET)
    for topic in topics:
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(60)


async def starts(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Where each broker's own log starts."""
    tp = TopicPartition(topic, 0)
    client = Cluster("test", parse_bootstrap_servers(cluster.bootstrap), ClientSecurity.plaintext(), "test")
    try:
        await client.connect()
        found = {}
        for node in cluster.brokers:
            answer = (await list_at(client, node.node_id, {tp: EARLIEST}, timeout=10))[tp]
            found[node.node_id] = -1 if answer.error else answer.offset
        return found
    finally:
        await client.close()


async def until_starts(cluster: KafkaCluster, topic: str, offset: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while set(now := (await starts(cluster, topic)).values()) != {offset}:
        assert time.monotonic() < deadline, (topic, now)
        await asyncio.sleep(0.3)


async def until_mirror(
    sidecar: SidecarProcess, topic: str, true: Callable[[MirrorDescription], bool]
) -> MirrorDescription:
    deadline = time.monotonic() + PATIENCE
    while True:
        now: MirrorDescription = await ask(sidecar, lambda client: client.describe_mirror(LINK, topic))
        if true(now):
            return now
        assert time.monotonic() < deadline, (now, sidecar.log.read_text()[-3000:])
        await asyncio.sleep(0.3)


async def test_records_that_retention_took_from_the_replicas_alone_are_not_promoted_away(
    start_cluster: StartCluster, start_sidecar: StartSidecar, unique_topic: Callable[[str], str]
) -> None:
    often = {"log.retention.check.interval.ms": "500", "log.segment.delete.delay.ms": "100"}
    source, target = await together(
        [
            start_cluster(name="source", properties={"log.retention.ms": "-1"}),
            start_cluster(name="target", brokers=2, controllers=1, properties=often),
        ]
    )
    half, whole = unique_topic("half"), unique_topic("whole")
    await asyncio.to_thread(create, source, half, whole)
    for topic in (half, whole):
        await asyncio.to_thread(lambda topic=topic: write(source, topic, OLD, age_ms=10 * DAY_MS))
    sidecar = await start_sidecar(target.bootstrap, validation=VALIDATION)
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
    await sidecar.linker("mirror", "create", half, whole, "--link", LINK, "--replication-factor", "2")

    def copied(now: MirrorDescription) -> bool:
        return now.state is MirrorState.ACTIVE and now.lag == 0

    for topic in (half, whole):
        await until_mirror(sidecar, topic, copied)
    # Not before: a follower that gets both with one fetch keeps them in one segment, which is as young as its youngest.
    await asyncio.to_thread(write, source, half, NEW)
    await until_mirror(
        sidecar, half, lambda now: copied(now) and now.partition_status[0].source_end_offset == OLD + NEW
    )
    await asyncio.sleep(2)  # several checks of retention: the mirror's is off
    assert set((await starts(target, half)).values()) == {0}

    await sidecar.stop()
    await asyncio.to_thread(keep_only_a_day, target, half, whole)
    await until_starts(target, half, OLD)
    await until_starts(target, whole, OLD)
    await sidecar.start()

    def seen_late(now: MirrorDescription) -> bool:
        return copied(now) and all(
            one.start_offset == OLD for p in now.partition_status for one in p.replicas
        )

    for topic in (half, whole):
        now = await until_mirror(sidecar, topic, seen_late)
        assert "starts at offset 700, the source goes back to offset 0" in (
            now.partition_status[0].reason or ""
        )

    # Refused before anything is held, with every kind of validation; the replica that was emptied too.
    for topic in (half, whole):
        planned = await sidecar.run("mirror", "promote", topic, "--link", LINK, "--dry-run", "-o", "json")
        assert planned.exit_code == 1
        assert any("at the source only" in line for line in planned.json()["blockers"])
        for validation in ("skip", "warn", "require"):
            began = time.monotonic()
            refused = await sidecar.run(
                "mirror", "promote", topic, "--link", LINK, "--validation", validation
            )
            assert refused.exit_code != 0
            assert "--accept-missing 700" in refused.errors, refused
            assert time.monotonic() - began < 60

    # Counted by reading the source, and neither equal nor a mirror that has failed.
    checked = await sidecar.run("validate", LINK, half, "-o", "json", timeout=PATIENCE)
    assert checked.exit_code == 1
    run = checked.json()
    assert {one["kind"] for one in run["findings"]} == {"late_start"}
    assert all("700 records that are not there" in one["detail"] for one in run["findings"]), run
    now = await until_mirror(sidecar, half, copied)
    for replica in now.partition_status[0].replicas:
        assert (replica.validated_from, replica.validated_offset) == (OLD, OLD + NEW)
        assert (replica.missing_records, replica.missing_counted) == (OLD, True)

    one_less = await sidecar.run("mirror", "promote", half, "--link", LINK, "--accept-missing", str(OLD - 1))
    assert one_less.exit_code != 0 and "699 were accepted" in one_less.errors
    await asyncio.to_thread(write, source, half, KEPT)
    done = (
        await sidecar.linker(
            *("mirror", "promote", half, "--link", LINK, "--accept-missing", str(OLD), "-o", "json"),
            timeout=PATIENCE,
        )
    ).json()
    assert done["phase"] == "PROMOTED"
    assert any("(accepted)" in line for line in done["warnings"])
    validation: dict[str, Any] = done["validation"]
    assert (validation["state"], validation["mismatches"], validation["missing_records"]) == (
        "CLOSED",
        0,
        OLD,
    )
    document = json.loads(Path(validation["json_path"]).read_bytes())
    assert document["verdict"] == "STARTS_LATE"
    assert "starts at offset 700: 700 records that the source has from offset 0" in document["verdict_reason"]
    assert "equal from offset 700 up to 765" in document["verdict_reason"]
    assert (document["source"]["version"], document["target"]["version"]) == ("4.3", "4.3")
    assert "@" in document["requested_by"] and document["accepted_missing"] == OLD
    page = Path(validation["html"]).read_text()
    assert "700 records of the source are not at the target" in page
    assert "Both logs are equal" not in page

    # A replica that was emptied: behind the fence nothing is waited for in vain.
    emptied = (
        await sidecar.linker(
            *("mirror", "promote", whole, "--link", LINK, "--accept-missing", str(OLD), "-o", "json"),
            timeout=PATIENCE,
        )
    ).json()
    assert emptied["phase"] == "PROMOTED"
    document = json.loads(Path(emptied["validation"]["json_path"]).read_bytes())
    assert document["verdict"] == "STARTS_LATE"
    assert "nothing of it was compared" in document["verdict_reason"]


@pytest.mark.slow
async def test_a_mirror_that_was_begun_later_is_equal_from_there(
    start_cluster: StartCluster, start_sidecar: StartSidecar, unique_topic: Callable[[str], str]
) -> None:
    source, target = await together(
        [start_cluster(name="source"), start_cluster(name="target", brokers=2, controllers=1)]
    )
    topic = unique_topic("later")
    await asyncio.to_thread(create, source, topic)
    await asyncio.to_thread(write, source, topic, 100)
    sidecar = await start_sidecar(target.bootstrap, validation=VALIDATION)
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
    await sidecar.linker(
        *("mirror", "create", topic, "--link", LINK, "--replication-factor", "2", "--start", "latest")
    )
    await until_mirror(sidecar, topic, lambda now: now.state is MirrorState.ACTIVE and now.lag == 0)
    await asyncio.to_thread(write, source, topic, 30)
    done = (
        await sidecar.linker("mirror", "promote", topic, "--link", LINK, "-o", "json", timeout=PATIENCE)
    ).json()
    assert (done["phase"], done["warnings"]) == ("PROMOTED", [])
    document = json.loads(Path(done["validation"]["json_path"]).read_bytes())
    assert document["verdict"] == "EQUAL_FROM"
    assert (
        "equal from offset 100, where the mirror began; the source goes back to 0"
        in document["verdict_reason"]
    )
