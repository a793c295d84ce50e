"""The validator inside the sidecar, with real Spark: watermarks that move by themselves and outlive a restart, a promote
that leaves evidence, and a damaged replica that stops one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from admin.models import MirrorDescription, MirrorState
from admin.validation_models import LinkValidationDescription, ValidationRun
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from validator.evidence.model import Evidence

pytestmark = pytest.mark.timeout(900)

LINK = "old"
# One core, and Spark stays: what is tested is what the sidecar makes of it.
VALIDATION = {
    "policy": "require",
    "spark.master": "local[1]",
    "idle.timeout.ms": 600_000,
    "spark.conf": {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # it ends before better code would pay
    },
}
PATIENCE = 500.0  # a machine that runs several clusters beside Spark
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


async def ask(sidecar: SidecarProcess, call: Callable[[Any], Any]) -> Any:
    def run() -> Any:
        with sidecar.client() as client:
            return call(client)

    return await asyncio.to_thread(run)


async def mirrored(
    sidecar: SidecarProcess, source: KafkaCluster, *topics: SourceTopic, replicas: int = 3
) -> None:
    """Topics at the source, linked and copied by every replica."""
    filler = SourceFiller(source.bootstrap, scale=0.05)
    await asyncio.to_thread(filler.create, topics, 1)
    await asyncio.to_thread(filler.fill, topics)
    names = [topic.name for topic in topics]
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
    await sidecar.linker("mirror", "create", *names, "--link", LINK, "--replication-factor", str(replicas))
    for name in names:
        await until(sidecar, name, lambda now: now.state is MirrorState.ACTIVE and now.lag == 0)


async def until(
    sidecar: SidecarProcess, topic: str, true: Callable[[MirrorDescription], bool]
) -> MirrorDescription:
    deadline = time.monotonic() + PATIENCE
    while True:
        now: MirrorDescription = await ask(sidecar, lambda client: client.describe_mirror(LINK, topic))
        if true(now):
            return now
        assert time.monotonic() < deadline, (now, sidecar.log.read_text()[-2000:])
        await asyncio.sleep(0.2)


def proved(now: MirrorDescription) -> bool:
    """Every replica up to the source's end."""
    return all(
        replica.validated_offset == partition.source_end_offset
        for partition in now.partition_status
        for replica in partition.replicas
    )


def written(now: MirrorDescription, end: int) -> bool:
    """Heard of, copied and proved: all of partition 0 up to there. No lag is none behind what was heard of."""
    (first,) = [one for one in now.partition_status if one.partition == 0]
    return (first.source_end_offset or 0) >= end and now.lag == 0 and proved(now)


async def produce(source: KafkaCluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for number in range(count):
        producer.produce(topic, f"more {number}".encode(), partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0


@pytest.mark.slow
async def test_watermarks_outlive_a_restart_and_a_promote_leaves_evidence(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: StartSidecar,
    unique_topic: Callable[[str], str],
) -> None:
    sidecar = await start_sidecar(target_cluster.bootstrap, validation=VALIDATION)
    topic = SourceTopic(unique_topic("proved"), 2, SourceFiller.mixed)
    await mirrored(sidecar, source_cluster, topic)
    planned = (
        await sidecar.linker("mirror", "promote", "--all", "--link", LINK, "--dry-run", "-o", "json")
    ).json()
    assert planned["validation"] == "require"
    assert "nothing of broker" in planned["unproved"][0]

    await sidecar.linker("validate", LINK, "--continuous", "--interval", "1s")
    filled = await until(sidecar, topic.name, proved)
    (end,) = [one.source_end_offset or 0 for one in filled.partition_status if one.partition == 0]
    await produce(source_cluster, topic.name, 30)
    moved = await until(sidecar, topic.name, lambda now: written(now, end + 30))
    assert all(one.validated_age_ms == 0 for p in moved.partition_status for one in p.replicas)

    await sidecar.restart()
    await until(sidecar, topic.name, lambda now: now.state is MirrorState.ACTIVE)
    await produce(source_cluster, topic.name, 20)
    await until(sidecar, topic.name, lambda now: written(now, end + 50))
    found: LinkValidationDescription = await ask(sidecar, lambda client: client.validation(LINK))
    assert found.continuous
    runs = [run for run in found.runs if run.kind == "continuous" and run.state == "DONE"]
    assert sum(run.records for run in runs) == 3 * 20  # from the watermark on, and nothing before it

    done = (
        await sidecar.linker("mirror", "promote", "--all", "--link", LINK, "-o", "json", timeout=PATIENCE)
    ).json()
    assert done["phase"] == "PROMOTED"
    validation = done["validation"]
    assert (validation["state"], validation["mismatches"], validation["replicas"]) == ("CLOSED", 0, 6)
    assert Path(validation["html"]).read_text().startswith("<!")
    document = json.loads(Path(validation["json_path"]).read_bytes())
    assert (document.pop("verdict"), document.pop("verdict_reason")) == ("EQUAL", None)
    evidence = Evidence.model_validate(document)
    ends = {partition.partition: partition.end for partition in evidence.partitions}
    assert all(
        replica.through == ends[partition.partition]
        and (replica.tail_equal or partition.end == partition.start)  # one of them is empty
        for partition in evidence.partitions
        for replica in partition.replicas
    )
    report = await sidecar.linker("validate", "report")
    assert validation["html"] in report.output


def damage(cluster: KafkaCluster, broker: int, topic: str) -> None:
    """One bit at the end of one replica's largest segment, behind its broker's back."""
    log_dir = cluster.log_dir(broker) / f"{topic}-0"
    segment = max(log_dir.glob("*.log"), key=lambda path: path.stat().st_size)
    with segment.open("r+b") as file:
        size = segment.stat().st_size
        file.seek(size - 3)  # in a record's value
        byte = file.read(1)
        file.seek(size - 3)
        file.write(bytes([byte[0] ^ 0x10]))


async def test_a_damaged_replica_stops_its_mirror_and_no_other(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: StartSidecar,
    unique_topic: Callable[[str], str],
) -> None:
    sidecar = await start_sidecar(target_cluster.bootstrap, validation=VALIDATION)
    bad = SourceTopic(unique_topic("bad"), 1, SourceFiller.history)
    good = SourceTopic(unique_topic("good"), 1, SourceFiller.history)
    await mirrored(sidecar, source_cluster, bad, good, replicas=2)
    now: MirrorDescription = await ask(sidecar, lambda client: client.describe_mirror(LINK, bad.name))
    broker = now.partition_status[0].replicas[1].broker
    damage(target_cluster, broker, bad.name)

    result = await sidecar.run("validate", LINK, "-o", "json", timeout=PATIENCE)
    assert result.exit_code == 1
    run = ValidationRun.model_validate(json.loads(result.output))
    assert run.mismatches == 1, run
    assert {(one.topic, one.broker, one.kind) for one in run.findings} == {(bad.name, broker, "corrupt")}
    failed = await until(sidecar, bad.name, lambda one: one.state is MirrorState.FAILED)
    reason = failed.reason or ""
    assert f"broker {broker}'s replica differs from the source at offset {run.findings[0].offset}" in reason
    assert "CRC" in reason
    refused = await sidecar.run("mirror", "promote", bad.name, "--link", LINK, "--validation", "warn")
    assert refused.exit_code == 1
    assert "only ACTIVE mirrors can be promoted" in refused.errors
    other: MirrorDescription = await ask(sidecar, lambda client: client.describe_mirror(LINK, good.name))
    assert other.state is MirrorState.ACTIVE
    assert proved(other)
