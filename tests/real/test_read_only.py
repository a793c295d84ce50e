"""A link with forwarding=off: its mirrors are read, and written to by nobody until they are promoted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Producer

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.live_producers import CLIENT_LOG
from tests.real.harness_promote import LINK
from tests.real.harness_trouble import create_topic, mirrored, write


def written(bootstrap: str, topic: str, **more: object) -> tuple[KafkaError | None, float]:
    """The outcome of one write, and how long it took."""
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **more}, logger=CLIENT_LOG)
    began = time.monotonic()
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(60) == 0
    return outcome[0], time.monotonic() - began


def read(bootstrap: str, topic: str, group: str, most: int) -> int:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings, logger=CLIENT_LOG)
    consumer.subscribe([topic])
    found, until = 0, time.monotonic() + 60
    while found < most and time.monotonic() < until:
        message = consumer.poll(1)
        found += message is not None and message.error() is None
    consumer.close()
    return found


async def test_writes_are_refused_for_good_until_the_promote(
    sidecar: SidecarProcess,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
) -> None:
    topic, at = unique_topic("standby"), target_cluster.bootstrap
    await asyncio.to_thread(create_topic, source_cluster.bootstrap, topic)
    await asyncio.to_thread(write, source_cluster.bootstrap, topic, 50)
    await mirrored(sidecar, topic)
    await sidecar.linker("link", "update", LINK, "--option", "forwarding=off", "--option", "groups_include=")
    try:
        assert "read-only" in (await sidecar.linker("link", "describe", LINK)).output
        for more in ({}, {"enable.idempotence": True}):
            error, seconds = await asyncio.to_thread(written, at, topic, **more)
            assert error is not None
            assert error.code() == KafkaError.POLICY_VIOLATION, error
            assert seconds < 10
        assert await asyncio.to_thread(read, at, topic, unique_topic("readers"), 50) == 50
        await sidecar.linker("mirror", "promote", topic, "--link", LINK, "--validation", "skip")
        error, _ = await asyncio.to_thread(written, at, topic)
        assert error is None
    finally:
        await sidecar.linker(
            "link", "update", LINK, "--option", "forwarding=on", "--option", "groups_include=.*"
        )
