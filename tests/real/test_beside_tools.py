"""Kafka's own tools at a target that has mirrors: each ends soon, says what is true, and harms nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from admin.models import MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_promote import LINK
from tests.real.harness_tools import ToolResult, kafka_tool
from tests.real.harness_trouble import (
    create_topic,
    delete_mirrors_of_dead_brokers,
    fingerprint,
    linked_sidecar,
    patiently,
    write,
)
from wire.frames.types import TopicPartition

UniqueTopic = Callable[[str], str]
pytestmark = pytest.mark.timeout(400)


async def mirrored(
    sidecar: SidecarProcess,
    source: KafkaCluster,
    topic: str,
    records: int = 20,
    configs: dict[str, str] | None = None,
) -> None:
    await asyncio.to_thread(create_topic, source.bootstrap, topic, configs=configs)
    await asyncio.to_thread(write, source.bootstrap, topic, records)
    await sidecar.linker("mirror", "create", "--link", LINK, topic, "-r", "3")

    def active() -> bool:
        with sidecar.client() as client:
            return client.describe_mirror(LINK, topic).state is MirrorState.ACTIVE

    await patiently(f"{topic} ACTIVE", active, 60)


def ends(result: ToolResult, *, exit_code: int = 0, within: float = 45) -> str:
    assert result.exit_code == exit_code, result
    assert result.seconds < within, result
    assert "Unexpected broker id" not in result.text, result.text
    return result.text


async def test_tools_that_ask_every_broker(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
) -> None:
    at, us = target_cluster.bootstrap, str(sidecar.spec.broker_id)
    topic = unique_topic("m")
    await mirrored(sidecar, source_cluster, topic)

    text = ends(await kafka_tool(at, "kafka-configs", "--entity-type", "brokers", "--describe"))
    assert f"Dynamic configs for broker {us} are:" in text
    text = ends(
        await kafka_tool(
            at, "kafka-configs", "--entity-type", "brokers", "--entity-name", us, "--describe", "--all"
        )
    )
    assert f"broker.id={us} " in text

    text = ends(await kafka_tool(at, "kafka-log-dirs", "--describe"))
    dirs = {
        broker["broker"]: broker["logDirs"]
        for broker in json.loads(text[text.index('{"') :].splitlines()[0])["brokers"]
    }
    ours = dirs.pop(int(us))
    assert [(one["logDir"], one["partitions"], one["error"]) for one in ours] == [("kafka-linker", [], None)]
    assert all(one["partitions"] for broker in dirs.values() for one in broker)

    text = ends(await kafka_tool(at, "kafka-transactions", "list"))
    assert us not in text
    text = ends(
        await kafka_tool(at, "kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0")
    )
    assert "ProducerId" in text
    ends(await kafka_tool(at, "kafka-transactions", "find-hanging", "--broker-id", us))
    ends(await kafka_tool(at, "kafka-groups", "--list"))


async def test_a_throttled_reassignment_of_another_topic(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
    tmp_path: Path,
) -> None:
    """It ended half-way where broker 900 refused its throttle, and left throttles on every mirror."""
    at = target_cluster.bootstrap
    topic, plain = unique_topic("m"), unique_topic("plain")
    await delete_mirrors_of_dead_brokers(target_cluster)
    await mirrored(sidecar, source_cluster, topic)
    await asyncio.to_thread(create_topic, at, plain, assignment=[[1, 2]])
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": plain, "partition": 0, "replicas": [2, 3]}]})
    )
    how = ["--reassignment-json-file", str(plan)]
    more = ["--execute", "--additional", "--throttle", "50000000"]
    text = ends(await kafka_tool(at, "kafka-reassign-partitions", *how, *more))
    assert "Successfully started partition reassignment" in text
    line = await doctor_line(sidecar, "replication throttle")
    assert line["result"] == "WARN"
    assert topic in line["detail"]
    assert "50000000 B/s on broker" in line["detail"]
    with sidecar.client() as client:
        assert "replication.throttled.rate 50000000" in (client.describe_mirror(LINK, topic).reason or "")
    text = ends(await kafka_tool(at, "kafka-reassign-partitions", *how, "--verify"))
    assert f"{plain}-0 is complete" in text
    # As doctor says: while a mirror is open, Kafka's tool takes no throttle away.
    names = "leader.replication.throttled.replicas,follower.replication.throttled.replicas"
    alter = ["--alter", "--entity-type", "topics", "--entity-name", topic, "--delete-config", names]
    ends(await kafka_tool(at, "kafka-configs", *alter))
    await until_silent(sidecar, "replication throttle", topic)
    text = ends(await kafka_tool(at, "kafka-topics", "--describe", "--topic", plain))
    assert "Replicas: 2,3" in text
    ends(await kafka_tool(at, "kafka-reassign-partitions", *how, "--cancel"), exit_code=0)


async def doctor_line(sidecar: SidecarProcess, name: str) -> dict[str, str]:
    """Of that name, as soon as there is one."""
    deadline = time.monotonic() + 90
    while True:
        [report] = (await sidecar.run("doctor", "--link", LINK, "-o", "json")).json()
        found = [check for check in report["checks"] if check["name"] == name]
        if found:
            return dict(found[0])
        assert time.monotonic() < deadline, report


async def until_silent(sidecar: SidecarProcess, name: str, topic: str) -> None:
    """Until doctor has no such line of the topic; other mirrors of this module may have one."""
    deadline = time.monotonic() + 90
    while True:
        [report] = (await sidecar.run("doctor", "--link", LINK, "-o", "json")).json()
        if not [one for one in report["checks"] if one["name"] == name and topic in one["detail"]]:
            return
        assert time.monotonic() < deadline, report


async def test_preferred_elections_move_no_mirror(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
) -> None:
    at, topic = target_cluster.bootstrap, unique_topic("m")
    await mirrored(sidecar, source_cluster, topic)
    for kind in ("preferred", "unclean"):
        result = await kafka_tool(
            at, "kafka-leader-election", "--election-type", kind, "--all-topic-partitions"
        )
        print(f"\n{kind}: {result}")
        assert result.seconds < 45
    text = ends(await kafka_tool(at, "kafka-topics", "--describe", "--topic", topic))
    assert f"Leader: {sidecar.spec.broker_id}" in text
    await asyncio.to_thread(write, at, topic, 10)


async def test_a_partition_that_a_monitor_places_on_the_link_broker(
    sidecar: SidecarProcess, target_cluster: KafkaCluster, unique_topic: UniqueTopic, tmp_path: Path
) -> None:
    at, us, topic = target_cluster.bootstrap, sidecar.spec.broker_id, unique_topic("monitor")
    create = ["--create", "--topic", topic, "--replica-assignment", f"{us}:1"]
    ends(await kafka_tool(at, "kafka-topics", *create))
    line = await doctor_line(sidecar, "placed here")
    assert (line["result"], line["detail"].partition(":")[0]) == ("FAIL", f"{topic}-0")
    # As doctor says: real brokers are in its ISR.
    plan = tmp_path / "away.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]})
    )
    how = ["--reassignment-json-file", str(plan), "--execute", "--additional"]
    ends(await kafka_tool(at, "kafka-reassign-partitions", *how))
    await until_silent(sidecar, "placed here", topic)
    await asyncio.to_thread(write, at, topic, 10)


async def test_records_of_a_mirror_are_deleted_at_the_source(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
    tmp_path: Path,
) -> None:
    topic = unique_topic("m")
    await mirrored(sidecar, source_cluster, topic)
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 5}]}))
    result = await kafka_tool(
        target_cluster.bootstrap, "kafka-delete-records", "--offset-json-file", str(plan), timeout=90
    )
    assert result.seconds < 45, result
    assert "PolicyViolationException" in result.text, result


async def test_a_share_consumer_of_a_mirror_is_told(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
) -> None:
    """It got nothing, and no error."""
    topic = unique_topic("m")
    await mirrored(sidecar, source_cluster, topic)
    result = await kafka_tool(
        target_cluster.bootstrap,
        "kafka-console-share-consumer",
        *("--topic", topic, "--group", unique_topic("share"), "--timeout-ms", "60000"),
        timeout=90,
    )
    assert f"Unexpected error code 44 while fetching from topic-partition {topic}-0" in result.text, result
    assert result.seconds < 55, result


@pytest.mark.parametrize("min_isr", ["1", "2"])
async def test_somebody_unregisters_the_link_broker_again_and_again(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
    min_isr: str,
) -> None:
    """Operators of Kubernetes do, with every id that is not their own: it comes back, leads, and copies nothing anew."""
    at, us = target_cluster.bootstrap, sidecar.spec.broker_id
    topic = unique_topic("m")
    configs = {"min.insync.replicas": min_isr}
    await mirrored(sidecar, source_cluster, topic, records=200, configs=configs)
    copies = [1, 2, 3]
    await patiently("copied", lambda: lags(sidecar, topic) == 0, 30)
    before = {broker: first_segment(target_cluster, topic, broker).stat().st_ino for broker in copies}
    for _ in range(3):
        ends(await kafka_tool(at, "kafka-cluster", "unregister", "--id", str(us)))
        # A write at the target is forwarded again as soon as the link broker leads again.
        began = time.monotonic()
        await asyncio.to_thread(write, at, topic, 10)
        print(f"\nmin.insync.replicas={min_isr}: written after {time.monotonic() - began:.1f} s")
    await patiently("copied", lambda: lags(sidecar, topic) == 0, 30)
    assert {b: first_segment(target_cluster, topic, b).stat().st_ino for b in copies} == before
    result = await sidecar.run("mirror", "promote", topic, "--link", LINK, "--validation", "skip")
    assert result.exit_code == 0, result
    tp = TopicPartition(topic, 0)
    held = set(fingerprint(target_cluster, tp, copies).values())
    [at_source] = [
        b.node_id for b in source_cluster.brokers if source_cluster.partition_dir(b.node_id, tp).exists()
    ]
    assert held == set(fingerprint(source_cluster, tp, [at_source]).values())


def first_segment(cluster: KafkaCluster, topic: str, broker: int) -> Path:
    """Another file of this name is another copy."""
    return cluster.partition_dir(broker, TopicPartition(topic, 0)) / f"{0:020}.log"


def lags(sidecar: SidecarProcess, topic: str) -> int | None:
    with sidecar.client() as client:
        [mine] = client.lag(LINK, [topic]).partitions
    return mine.lag


async def test_the_targets_features_are_upgraded_while_the_link_broker_is_a_member(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    tmp_path: Path,
    unique_topic: UniqueTopic,
) -> None:
    target = await start_cluster(name="target", brokers=3, controllers=1, metadata_version="4.1")
    async with linked_sidecar(source_cluster, target, 900, tmp_path / "sidecar") as sidecar:
        topic = unique_topic("m")
        await mirrored(sidecar, source_cluster, topic)
        how = ["upgrade", "--release-version", "4.3"]
        text = ends(await kafka_tool(target.bootstrap, "kafka-features", *how))
        assert "was upgraded to 30" in text, text
        await asyncio.to_thread(write, target.bootstrap, topic, 10)
        await sidecar.restart()
        await asyncio.to_thread(write, target.bootstrap, topic, 10)
        await patiently("copied", lambda: lags(sidecar, topic) == 0, 30)
