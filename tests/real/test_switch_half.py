"""A promote without sync that ended half way: a switch says how to go on, and what was promoted has a way back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import placements
from lab.workload.source_data import SourceTopic
from tests.real.harness_stalls import open_transaction
from tests.real.test_restore import LINK, equal, eventually, values
from tests.real.test_switch import real
from wire.frames.types import TopicPartition

pytestmark = [pytest.mark.timeout(420), pytest.mark.slow]
PARTITIONS = 40  # more than go through a promote together: those before the last batch are handed over
TOPIC = SourceTopic("orders", PARTITIONS, lambda _filler, _topic: None)
MOVED = TopicPartition("orders", 0)

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


async def write(
    cluster: KafkaCluster, tag: str, partitions: range = range(PARTITIONS), each: int = 5
) -> None:
    """To each partition; all are acknowledged."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for index in partitions:
        for number in range(each):
            producer.produce(
                "orders",
                f"{tag}-{number}",
                partition=index,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
    assert await asyncio.to_thread(producer.flush, 60) == 0
    assert not failed, failed[:3]


async def test_a_promote_that_ended_half_way_is_brought_forward_and_back(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """The source is joined afterwards. A switch is refused with the way, and changes nothing; on that way nothing is lost:
    what a client left behind wrote to the source meanwhile is in files."""
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=2), start_cluster(name="target", brokers=2)
    )
    sidecar = await start_sidecar(
        target.bootstrap, sources={LINK: {"broker.id": 800}}, validation={"policy": "skip"}
    )
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    [made] = admin.create_topics([NewTopic("orders", PARTITIONS, 2)]).values()
    await asyncio.to_thread(made.result, 30)
    await sidecar.linker("link", "create", LINK, "-b", source.bootstrap)
    await sidecar.linker("mirror", "create", "orders", "--link", LINK)

    async def mirror() -> dict[str, Any]:
        found = (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
        return {one["topic"]: one for one in found}["orders"]

    async def active() -> bool:
        found = await mirror()
        return (found["state"], found["lag"]) == ("ACTIVE", 0)

    await write(source, "before")
    await eventually("the mirror has all", active)
    with open_transaction(source, TopicPartition("orders", PARTITIONS - 1)):
        half = await sidecar.run(
            "mirror", "promote", "orders", "--link", LINK, "--transaction-timeout-ms", "500", timeout=120
        )
        assert half.exit_code and "partitions ARE promoted and stay so" in half.output + half.errors, half
    await write(target, "target")
    await write(source, "stray", range(1))  # by a client that was left behind
    late = await sidecar.run("link", "update", LINK, "--join-source")
    assert not late.exit_code, late

    async def joined() -> bool:
        found = await sidecar.run("mirror", "switch", "orders", "--link", LINK)
        told = found.output + found.errors
        assert found.exit_code, told
        return "by a promote that ended half way" in told and "mirror promote orders --link east" in told

    await eventually("a switch says how to go on", joined)
    again = await sidecar.run("mirror", "sync", "orders", "--link", LINK)
    assert again.exit_code and "by a promote that ended half way" in again.output + again.errors, again
    early = await sidecar.run("mirror", "restore", "orders", "--link", LINK, "--yes")
    assert early.exit_code and "promoted or failed over as a whole" in early.output + early.errors, early

    await sidecar.linker("mirror", "promote", "orders", "--link", LINK, timeout=120)
    told = await sidecar.run("mirror", "switch", "orders", "--link", LINK)
    assert told.exit_code and "mirror restore orders --link east" in told.output + told.errors, told
    everything = await sidecar.run("mirror", "restore", "--all", "--link", LINK, "--yes")
    assert everything.exit_code, "topics that were promoted have to be named"
    done = await sidecar.linker(
        "mirror", "restore", "orders", "--link", LINK, "--yes", "-o", "json", timeout=120
    )
    records = {one["partition"]: one["records"] for one in done.json()["partitions"]}
    assert records.pop(0) == 5, records
    # The transaction was committed at the source before the rest was promoted: nothing lies beyond there.
    assert set(records.values()) == {0}, records
    await write(source, "left")

    async def owned_by(direction: str) -> None:
        async def so() -> bool:
            found = await mirror()
            return (found["direction"], found["state"]) == (direction, "ACTIVE")

        await eventually(f"it is {direction}", so)

    await owned_by("REVERSED")
    await equal(target, source, TOPIC)
    await sidecar.linker("mirror", "switch", "orders", "--link", LINK, timeout=120)
    await owned_by("FORWARD")
    await write(source, "back")
    await equal(source, target, TOPIC)
    placed = real(await asyncio.to_thread(placements, source.bootstrap, [TOPIC]), source)
    kept = [value for _, value in values(source, placed[MOVED].leader, MOVED)]
    assert kept == [f"{tag}-{n}" for tag in ("before", "target", "left", "back") for n in range(5)]
