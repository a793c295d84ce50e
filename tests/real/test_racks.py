"""Rack-aware reading: a link that names a rack copies from the source's replica there, and from the leader without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import MirrorState, PartitionStatus
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from wire.together import together

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
PATIENCE = 90.0

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


def write(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce("orders", f"{number}".encode(), partition=0)
    assert producer.flush(60) == 0


async def until(
    sidecar: SidecarProcess, end: int, holds: Callable[[PartitionStatus], bool]
) -> PartitionStatus:
    """Until the replicas stand at `end` and the partition is read as it should be."""

    def ask() -> PartitionStatus:
        with sidecar.client() as client:
            return client.describe_mirror("east", "orders").partition_status[0]

    deadline = time.monotonic() + PATIENCE
    while True:
        found = await asyncio.to_thread(ask)
        if found.state is MirrorState.ACTIVE and found.target_end_offset == end and holds(found):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_replica_of_the_links_rack_is_read_and_the_leader_when_it_is_gone(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    selector = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    source, target = await together(
        [
            start_cluster(name="source", brokers=2, racks=("r1", "r2"), properties=selector),
            start_cluster(name="target", brokers=1),
        ]
    )
    sidecar = await start_sidecar(target.bootstrap)
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    topic = NewTopic("orders", num_partitions=1, replica_assignment=[[1, 2]])
    await asyncio.to_thread(admin.create_topics([topic])["orders"].result, 60)
    await asyncio.to_thread(write, source.bootstrap, 100)

    link = ("link", "create", "east", "--bootstrap-servers", source.bootstrap)
    await sidecar.linker(*link, "--config", "client.rack=r2")
    await sidecar.linker("mirror", "create", "--link", "east", "orders", "-r", "1")
    found = await until(sidecar, 100, lambda seen: seen.read_from == [2])
    assert found.source_leader == 1
    said = await sidecar.linker("mirror", "describe", "orders", "--link", "east")
    assert "1 (read from 2)" in said.output
    await asyncio.to_thread(write, source.bootstrap, 100)
    await until(sidecar, 200, lambda seen: seen.read_from == [2])

    await sidecar.linker("link", "update", "east", "--remove-config", "client.rack")
    await asyncio.to_thread(write, source.bootstrap, 100)
    await until(sidecar, 300, lambda seen: seen.read_from == [1])
    await sidecar.linker("link", "update", "east", "--config", "client.rack=r2")
    await asyncio.to_thread(write, source.bootstrap, 100)
    await until(sidecar, 400, lambda seen: seen.read_from == [2])

    await source.nodes[2].kill()
    await asyncio.to_thread(write, source.bootstrap, 100)
    await until(sidecar, 500, lambda seen: seen.read_from == [1])
