"""Switches on real brokers, at their edges: killed when the source is taken over, configs and partitions that change."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from controller.plan.taken_configs import TAKEN_CONFIGS
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.harness_stalls import brokers_back
from tests.real.kafka_admin import kafka_admin
from tests.real.test_switch import (
    LINK,
    PATIENCE,
    Scene,
    StartCluster,
    StartSidecar,
    judged,
    refused,
    scene_of,
)

pytestmark = pytest.mark.timeout(300)


async def test_killed_with_the_source_taken_and_the_hand_over_sent(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """The target's controller stands still and is killed, with the hand-over in its socket at most. The next process knows
    no more than the state and the logs, and sends it again: nothing is given back."""
    scene = await scene_of(start_cluster, start_sidecar, controllers=1)
    await scene.until(state="ACTIVE")
    await scene.sidecar.linker("mirror", "sync", "orders", "--link", LINK)
    await scene.until(sync="IN_SYNC")
    [controller] = scene.target.controllers
    controller.pause()
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK, "--no-wait")
    await until_stored(scene.sidecar, {"VALIDATED", "TAKEN"})
    await scene.sidecar.kill()
    assert stored(scene.sidecar) == {"VALIDATED", "TAKEN"}
    await controller.kill()
    await controller.start()
    scene.sidecar.launch()
    await scene.sidecar.wait_ready()
    await brokers_back(scene.target)
    await scene.until(direction="REVERSED", state="ACTIVE")
    await scene.acked_more(20)
    await judged(scene, scene.target)


async def test_configs_that_change_late_are_put_right(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """While the target owns the topic, and when the source has it back: somebody does what a late request would do. Configs
    that the owner was given meanwhile come back with the topic."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await alter(scene.source, {"min.insync.replicas": "2", "retention.ms": "86400000"})
    before = await scene.configs(scene.source)
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="REVERSED", state="ACTIVE")
    await until_configs(scene, TAKEN_CONFIGS)
    await alter(scene.source, before)
    await until_configs(scene, {**TAKEN_CONFIGS, "min.insync.replicas": "2"})
    # The owner decides what is kept, for as long as it is the owner: nothing is deleted by what held before.
    await alter(scene.target, {"retention.ms": "172800000", "max.message.bytes": "2000000"})
    after = {**before, "retention.ms": "172800000", "max.message.bytes": "2000000"}
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="FORWARD", state="ACTIVE")
    await until_configs(scene, after)
    await alter(scene.source, TAKEN_CONFIGS)
    await until_configs(scene, after)
    await scene.acked_more(20)
    await judged(scene, scene.source)


@pytest.mark.parametrize("ending", [pytest.param("CLOSED", marks=pytest.mark.slow), "DELETED"])
async def test_a_finish_that_is_cut_off_is_gone_on_with(
    start_cluster: StartCluster, start_sidecar: StartSidecar, ending: str
) -> None:
    """A broker of the source is down, and the sidecar is killed as soon as the word is written down."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="REVERSED", state="ACTIVE")
    for producer in scene.producers:
        await producer.move(scene.target.bootstrap)
    for consumer in scene.consumers:
        await consumer.stop()
    dead = scene.source.brokers[1]
    await dead.kill()
    options = ["--delete-source-topics"] if ending == "DELETED" else []
    said = asyncio.create_task(
        scene.sidecar.run("mirror", "finish", "orders", "--link", LINK, "--yes", *options)
    )
    await until_stored(scene.sidecar, {ending}, "ending")
    await scene.sidecar.kill()
    assert stored(scene.sidecar, "ending") == {ending}
    assert (await said).exit_code != 0
    await scene.sidecar.start()
    again = await scene.sidecar.run("mirror", "switch", "orders", "--link", LINK)
    assert again.exit_code != 0
    await dead.start()
    await until_stored(scene.sidecar, set(), "ending")
    assert (await scene.sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json() == []
    await scene.acked_more(20)
    if ending == "CLOSED":
        await scene.owner_leads(scene.source)
        assert await asyncio.to_thread(refused, scene.source.bootstrap)
    else:
        topics = await asyncio.to_thread(kafka_admin(scene.source.bootstrap).list_topics, timeout=30)
        assert "orders" not in topics.topics
    await judged(scene, scene.target)


@pytest.mark.slow
async def test_a_transactional_producer_that_stays(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """It is told to try again, by an error that it survives; it can abort, for the markers are answered; status names it."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    stays = Producer(
        {
            "bootstrap.servers": scene.source.bootstrap,
            "client.id": "stays",
            "transactional.id": "stays",
            "transaction.timeout.ms": 60_000,
        }
    )
    await asyncio.to_thread(stays.init_transactions, 30)
    stays.begin_transaction()
    stays.produce("orders", b"before", partition=0)
    refused_ = await scene.sidecar.run(
        "mirror", "switch", "orders", "--link", LINK, "--transaction-timeout-ms", "1000"
    )
    assert refused_.exit_code != 0
    assert "a transaction has been open at the source" in refused_.output + refused_.errors
    await asyncio.to_thread(stays.commit_transaction, 30)
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="REVERSED", state="ACTIVE")
    errors: list[Any] = []
    stays.begin_transaction()
    stays.produce("orders", b"after", partition=0, on_delivery=lambda error, _: errors.append(error))
    await asyncio.to_thread(stays.flush, 5)
    assert errors == [], "it goes on trying"
    described = (
        await scene.sidecar.linker("mirror", "describe", "orders", "--link", LINK, "-o", "json")
    ).json()
    left = {(one["client_id"], one["does"]) for one in described["clients_left"]}
    assert ("stays", "transaction") in left, left
    named = {one.name for one in scene.producers if one.name.endswith("source")}
    assert {client for client, does in left if does == "produce"} >= named, left
    assert any(does == "fetch" for _, does in left), left
    shown = (await scene.sidecar.linker("status")).output
    assert "CLIENT LEFT AT THE SOURCE" in shown
    assert "stays" in shown
    # A closed topic would refuse the marker, too, and the coordinator would never write it again.
    too_early = await scene.sidecar.run("mirror", "finish", "orders", "--link", LINK, "--yes")
    assert too_early.exit_code != 0
    assert "transactional.id stays still writes in transactions" in too_early.output + too_early.errors
    await asyncio.to_thread(stays.abort_transaction, 60)
    await scene.acked_more(20)
    await judged(scene, scene.target)


@pytest.mark.slow
async def test_a_transaction_that_stays_open_is_aborted(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Without the word for it a switch names the transaction, and leaves it; with it it is aborted, and what was committed
    before is at the target."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.acked_more(20)
    stays = Producer(
        {
            "bootstrap.servers": scene.source.bootstrap,
            "transactional.id": "stays-open",
            "transaction.timeout.ms": 600_000,  # it does not end by itself meanwhile
        }
    )
    await asyncio.to_thread(stays.init_transactions, 30)
    for tag in ("committed", "left open"):
        stays.begin_transaction()
        for index in range(4):
            stays.produce("orders", f"{tag} {index}", key=b"txn", partition=index)
        if tag == "committed":
            await asyncio.to_thread(stays.commit_transaction, 30)
    assert await asyncio.to_thread(stays.flush, 30) == 0
    switch = ("mirror", "switch", "orders", "--link", LINK, "--transaction-timeout-ms", "1000")
    refused_ = await scene.sidecar.run(*switch)
    told = refused_.output + refused_.errors
    assert refused_.exit_code and "stays-open" in told, told
    await scene.until(direction="FORWARD", state="ACTIVE")
    await scene.acked_more(20)
    done = (await scene.sidecar.linker(*switch, "--abort-open-transactions", "-o", "json")).json()
    assert (done["phase"], done["source_fenced"]) == ("PROMOTED", []), done
    assert any("stays-open" in line for line in done["warnings"]), done["warnings"]
    await scene.until(direction="REVERSED", state="ACTIVE")
    with pytest.raises(KafkaException) as fenced:
        await asyncio.to_thread(stays.commit_transaction, 30)
    print(f"the producer that stayed is told: {fenced.value}")
    for cluster in (scene.source, scene.target):
        assert await asyncio.to_thread(committed, cluster) == {f"committed {index}" for index in range(4)}
    await scene.acked_more(20)
    await judged(scene, scene.target)


def committed(cluster: KafkaCluster) -> set[str]:
    """The records of that producer that are committed there, up to the end of now."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "reads", "enable.partition.eof": True}
    consumer = Consumer({**config, "isolation.level": "read_committed"})
    consumer.assign([Partition("orders", index, 0) for index in range(4)])
    found: set[str] = set()
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    try:
        while len(ended) < 4:
            assert time.monotonic() < deadline, (found, ended)
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                ended.add(message.partition())
            elif message.key() == b"txn":
                found.add(message.value().decode())
    finally:
        consumer.close()
    return found


@pytest.mark.slow
async def test_partitions_that_the_owner_gets_while_it_is_reversed(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """The source has them too, written and read at either cluster, and they come back with the topic."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.until(state="ACTIVE")
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="REVERSED", state="ACTIVE")
    admin = kafka_admin(scene.target.bootstrap)
    [added] = admin.create_partitions([NewPartitions("orders", 5)]).values()
    await asyncio.to_thread(added.result, 30)
    await scene.until(direction="REVERSED", state="ACTIVE", partitions=5)
    await asyncio.to_thread(written, scene.target, "target")
    await asyncio.to_thread(written, scene.source, "source")
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.until(direction="FORWARD", state="ACTIVE", partitions=5)
    await asyncio.to_thread(written, scene.source, "back")
    expected = [f"{tag}-{index}" for tag in ("target", "source", "back") for index in range(50)]
    for cluster in (scene.source, scene.target):
        assert await asyncio.to_thread(read, cluster, len(expected)) == expected
    await judged(scene, scene.source)


def written(cluster: KafkaCluster, tag: str) -> None:
    """Fifty records to the partition that was added."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for index in range(50):
        producer.produce(
            "orders",
            f"{tag}-{index}".encode(),
            partition=4,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failed == []


def read(cluster: KafkaCluster, count: int) -> list[str]:
    """All records of the partition that was added, and none after those that are expected."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "reads", "enable.partition.eof": True}
    consumer = Consumer(config)
    consumer.assign([Partition("orders", 4, 0)])
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                if len(found) >= count:
                    break
                continue
            found.append(message.value().decode())
    finally:
        consumer.close()
    return found


async def alter(cluster: KafkaCluster, configs: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=entries)
    admin = kafka_admin(cluster.bootstrap)
    [done] = admin.incremental_alter_configs([resource]).values()
    await asyncio.to_thread(done.result, 30)


async def until_configs(scene: Scene, configs: Mapping[str, str]) -> None:
    """Set on the topic at the source."""
    deadline = time.monotonic() + PATIENCE
    while (found := await scene.configs(scene.source)) != configs:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


def stored(sidecar: SidecarProcess, field: str = "phase") -> set[str]:
    """What is written down of mirrors and their partitions under this name."""
    database = sqlite3.connect(sidecar.directory / "state" / "linker.db")
    try:
        rows = database.execute("SELECT value FROM node WHERE path LIKE '/links/%/mirrors/%'").fetchall()
    finally:
        database.close()
    found = [json.loads(value) for (value,) in rows]
    return {str(one[field]) for one in found if field in one}


async def until_stored(sidecar: SidecarProcess, wanted: set[str], field: str = "phase") -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := stored(sidecar, field)) != wanted:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)
