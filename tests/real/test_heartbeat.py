"""Heartbeats on real brokers: a consumer at the target sees that the link lives; and the latency that metrics tell."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from admin.models import MirrorState, MirrorSummary
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from wire.together import together

pytestmark = pytest.mark.timeout(420)
PATIENCE = 90.0
LINK = "east"

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


async def mirrors(sidecar: SidecarProcess) -> dict[str, MirrorSummary]:
    def ask() -> dict[str, MirrorSummary]:
        with sidecar.client() as client:
            return {one.topic: one for one in client.list_mirrors(LINK)}

    return await asyncio.to_thread(ask)


async def active(sidecar: SidecarProcess, *topics: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = await mirrors(sidecar)
        if {topic for topic, one in found.items() if one.state is MirrorState.ACTIVE} >= set(topics):
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


def read(bootstrap: str, topic: str, wanted: int) -> list[Any]:
    """The first records of the topic, as a consumer of the target has them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "watchman",
            "client.id": "anybody",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    got: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(got) < wanted and time.monotonic() < deadline:
        one = consumer.poll(1.0)
        if one is not None and one.error() is None:
            got.append(one)
    consumer.close()
    return got


def metrics(sidecar: SidecarProcess) -> dict[tuple[str, str], float]:
    """By name and topic, or link."""
    with urllib.request.urlopen(f"{sidecar.admin_url}/metrics", timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
    return {
        (sample.name, sample.labels.get("topic", sample.labels.get("link", ""))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.real
@pytest.mark.asyncio(loop_scope="session")
async def test_anybody_sees_at_the_target_that_the_link_lives(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    source, target = await together(start_cluster(name=name, brokers=1) for name in ("source", "target"))
    sidecar = await start_sidecar(target.bootstrap)
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    await asyncio.to_thread(admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result, 60)
    # Nobody may read mirrors before their promote, but for this one.
    beat = ("--option", "heartbeat_topic=linker-heartbeats", "--option", "heartbeat_interval_ms=1000")
    held = ("--option", "unpromoted_reads=hold")
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap, *beat, *held)
    await sidecar.linker("mirror", "create", "--link", LINK, "orders")
    topic = f"linker-heartbeats.{admin.list_topics(timeout=60).cluster_id}"
    await active(sidecar, topic, "orders")

    records = await asyncio.to_thread(read, target.bootstrap, topic, 5)
    assert [one.key() for one in records] == [LINK.encode()] * 5
    values = [json.loads(one.value()) for one in records]
    assert {one["link"] for one in values} == {LINK}
    assert [topic] == [f"linker-heartbeats.{one['source_cluster_id']}" for one in values[:1]]
    stamped = [one.timestamp() for one in records]
    assert {kind for kind, _ in stamped} == {TIMESTAMP_LOG_APPEND_TIME}  # the source's own
    pauses = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(stamped)]
    assert all(500 < pause < 30_000 for pause in pauses), pauses

    # Latencies, of the heartbeats and of a topic with the producer's timestamps.
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 0})
    for number in range(20):
        producer.produce("orders", b"x" * number)
        producer.flush(30)
        await asyncio.sleep(0.05)
    deadline = time.monotonic() + PATIENCE
    while True:
        page = await asyncio.to_thread(metrics, sidecar)
        if page["linker_partition_copied_offsets_total", "orders"] == 20 and not page.get(
            ("linker_partition_record_age_seconds", "orders"), 1
        ):
            break
        assert time.monotonic() < deadline, page
        await asyncio.sleep(0.2)
    count = page["linker_replication_latency_seconds_count", LINK]
    mean = page["linker_replication_latency_seconds_sum", LINK] / count
    assert count >= 10
    assert 0 <= mean < 10, mean  # one clock, one machine
    assert page["linker_replication_latency_clamped_total", LINK] <= count / 2

    # A promote of everything leaves it.
    plan = await sidecar.run("mirror", "promote", "--link", LINK, "--all", "--dry-run")
    assert topic in plan.output, plan
    await sidecar.linker("mirror", "promote", "--link", LINK, "--all", "--validation", "skip")
    found = await mirrors(sidecar)
    assert (found["orders"].state, found[topic].state) == (MirrorState.PROMOTED, MirrorState.ACTIVE)
    refused = await sidecar.run("mirror", "promote", "--link", LINK, topic, "--validation", "skip")
    assert refused.exit_code != 0
    assert "heartbeats" in refused.errors
    assert "still mirrors" in (await sidecar.run("link", "delete", LINK)).errors
    await sidecar.linker("link", "update", LINK, "--option", "heartbeat_topic=")
    await sidecar.linker("mirror", "delete", topic, "--link", LINK, "--yes")
    await sidecar.linker("link", "delete", LINK)
