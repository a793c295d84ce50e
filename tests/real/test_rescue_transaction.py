"""A transaction ends while link brokers lead its partition, because all other brokers of its ISR have died."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.test_switch import LINK, PATIENCE, StartCluster, StartSidecar

pytestmark = pytest.mark.timeout(420)
LINK_BROKER, RECORDS = 800, 5


def leader_of(admin: AdminClient, topic: str, partition: int) -> int:
    return int(admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)


def kafka_hash(text: str) -> int:
    """`String.hashCode`, as `Utils.abs` takes it."""
    found = 0
    for character in text:
        found = (31 * found + ord(character)) & 0xFFFFFFFF
    return found & 0x7FFFFFFF


def transactional_id(admin: AdminClient, coordinator_not_on: int) -> str:
    """One whose coordinator is another broker."""
    log = "__transaction_state"
    partitions = admin.list_topics(log, timeout=10).topics[log].partitions
    return next(
        name
        for name in (f"ledger-{n}" for n in range(1000))
        if partitions[kafka_hash(name) % len(partitions)].leader not in (-1, coordinator_not_on)
    )


async def until_led(admin: AdminClient, leader: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := await asyncio.to_thread(leader_of, admin, "ledger", 0)) != leader:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.005)


async def until_in_sync(sidecar: SidecarProcess) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        [found] = (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
        if found["sync"] == "IN_SYNC":
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.3)


def committed(cluster: KafkaCluster, want: int) -> list[bytes | None]:
    """What `read_committed` gets within the patience of a reader."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "ledger", "auto.offset.reset": "earliest"}
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    reader.subscribe(["ledger"])
    got: list[bytes | None] = []
    deadline = time.monotonic() + 40
    while len(got) < want and time.monotonic() < deadline:
        one = reader.poll(0.5)
        got += [] if one is None or one.error() else [one.value()]
    reader.close()
    return got


async def test_its_marker_is_written_when_a_broker_is_back(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """The coordinator sends it to the link broker, which has no log: taken for written, the transaction would be open for
    good."""
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=3, controllers=1), start_cluster(name="target", brokers=1)
    )
    first = source.brokers[0]
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    [made] = admin.create_topics(
        [NewTopic("ledger", num_partitions=1, replica_assignment=[[first.node_id]])]
    ).values()
    await asyncio.to_thread(made.result, 30)
    sidecar = await start_sidecar(
        target.bootstrap, sources={LINK: {"broker.id": LINK_BROKER}}, validation={"policy": "skip"}
    )
    await sidecar.linker("link", "create", LINK, "-b", source.bootstrap, "--join-source")
    await sidecar.linker("mirror", "create", "ledger", "--link", LINK)
    await sidecar.linker("mirror", "sync", "ledger", "--link", LINK)
    await until_in_sync(sidecar)
    # The coordinators' topic is made by the first that asks for one.
    warm_up = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": "first"})
    await asyncio.to_thread(warm_up.init_transactions, 60)
    name = await asyncio.to_thread(transactional_id, admin, first.node_id)
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": name})
    await asyncio.to_thread(producer.init_transactions, 60)
    producer.begin_transaction()
    for n in range(RECORDS):
        producer.produce("ledger", str(n).encode(), partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0

    stopping = asyncio.create_task(first.stop())
    await until_led(admin, LINK_BROKER)
    await asyncio.to_thread(producer.commit_transaction, 60)
    await stopping
    await asyncio.sleep(3)
    await first.start()
    await until_led(admin, first.node_id)
    assert await asyncio.to_thread(committed, source, RECORDS) == [str(n).encode() for n in range(RECORDS)]
