"""A switch with the validator: Spark before the fence, and of the brokers that were left afterwards; the same way back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import placements
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_stalls import topic_configs
from tests.real.test_validation import damage
from validator.evidence.model import Evidence
from wire.frames.types import TopicPartition

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]  # Spark runs five times
LINK = "east"
PATIENCE = 400.0
VALIDATION = {
    "spark.master": "local[1]",
    "idle.timeout.ms": 600_000,
    "spark.conf": {"spark.driver.memory": "512m"},
}

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


async def prepared(
    start_cluster: StartCluster, start_sidecar: StartSidecar, validation: Mapping[str, Any] = VALIDATION
) -> tuple[KafkaCluster, KafkaCluster, SidecarProcess, SourceTopic]:
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=2), start_cluster(name="target", brokers=2)
    )
    sidecar = await start_sidecar(target.bootstrap, sources={LINK: {"broker.id": 800}}, validation=validation)
    topic = SourceTopic("orders", 2, lambda _filler, _topic: None)
    await asyncio.to_thread(SourceFiller(source.bootstrap).create, [topic], 2)
    await asyncio.to_thread(written, source.bootstrap, 500)
    await sidecar.linker("link", "create", LINK, "-b", source.bootstrap, "--join-source")
    await sidecar.linker("mirror", "create", topic.name, "--link", LINK, "--replication-factor", "2")
    await until(sidecar, topic.name, state="ACTIVE", lag=0)
    return source, target, sidecar, topic


def written(bootstrap: str, count: int) -> None:
    """To each of the two partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 50, "linger.ms": 20})
    for number in range(2 * count):
        producer.produce("orders", f"record {number}".encode(), partition=number % 2)
    assert producer.flush(60) == 0


@asynccontextmanager
async def writes(bootstrap: str, partitions: Sequence[int] = (0, 1)) -> AsyncIterator[list[int]]:
    """A producer that goes on all the time, at one cluster. Yields the offsets that were acknowledged."""
    acked: list[int] = []
    errors: list[Any] = []
    over = asyncio.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def told(error: Any, message: Any) -> None:
        (errors if error is not None else acked).append(error or message.offset())

    async def write() -> None:
        number = 0
        while not over.is_set():
            index = partitions[number % len(partitions)]
            producer.produce("orders", f"live {number}".encode(), partition=index, on_delivery=told)
            producer.poll(0)
            number += 1
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(producer.flush, 60) == 0

    task = asyncio.create_task(write())
    try:
        yield acked
    finally:
        over.set()
        await task
    assert not errors, errors


async def more(acked: Sequence[int], count: int) -> None:
    """The writes go on."""
    wanted, deadline = len(acked) + count, time.monotonic() + PATIENCE
    while len(acked) < wanted:
        assert time.monotonic() < deadline, f"{wanted - len(acked)} of {count} are not acknowledged"
        await asyncio.sleep(0.05)


async def until(sidecar: SidecarProcess, topic: str, **wanted: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json()
        now = {one["topic"]: one for one in found}.get(topic, {})
        if all(now.get(key) == value for key, value in wanted.items()):
            return
        assert time.monotonic() < deadline, (wanted, now)
        await asyncio.sleep(0.3)


async def switched(sidecar: SidecarProcess, topic: SourceTopic) -> dict[str, Any]:
    """As the command tells it, which waits for the proof."""
    done: dict[str, Any] = (
        await sidecar.linker("mirror", "switch", topic.name, "--link", LINK, "-o", "json", timeout=PATIENCE)
    ).json()
    assert done["phase"] == "PROMOTED", done
    return done


def holds_proof(done: dict[str, Any]) -> None:
    """All four replicas: those that took over by Spark before the fence, those that were left afterwards."""
    validation = done["validation"]
    assert (validation["policy"], validation["state"]) == ("require", "CLOSED"), validation
    assert (validation["mismatches"], validation["replicas"]) == (0, 4), validation
    before, fence, after = validation["proved_by"]
    assert before.startswith("before the fence, by Spark: 4 of 4 replicas"), before
    assert fence.endswith("the last batch of all 4"), fence  # batch by batch as far as 100 ms go
    assert after.startswith("after the hand-over, by Spark: 4 replicas in the cluster that was left"), after
    written_down = json.loads(Path(validation["json_path"]).read_bytes())
    assert (written_down.pop("verdict"), written_down.pop("verdict_reason")) == ("EQUAL", None)
    document = Evidence.model_validate(written_down)
    for one in document.partitions:
        assert one.end and len(one.replicas) == 2
        assert all((replica.through or 0) >= one.end for replica in one.replicas), one
        assert all(replica.digest == replica.source_digest for replica in one.replicas), one


async def test_there_and_back_by_the_default_policy(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """No flag is said. The validator is asked before each fence, and has the last word after each hand-over."""
    source, _target, sidecar, topic = await prepared(start_cluster, start_sidecar)
    async with writes(source.bootstrap) as acked:
        await there_and_back(sidecar, topic)
    assert len(acked) > 100


async def there_and_back(sidecar: SidecarProcess, topic: SourceTopic) -> None:
    began = time.monotonic()
    there = await switched(sidecar, topic)
    print(f"there: {time.monotonic() - began:.1f} s, {there['phases_ms']}, {there['validation']}")
    holds_proof(there)
    await until(sidecar, topic.name, direction="REVERSED", state="ACTIVE")
    found = await sidecar.linker("validate", LINK, topic.name, "-o", "json", timeout=PATIENCE)
    print(found.output)
    run = found.json()
    assert (run["state"], run["mismatches"], run["replicas"], run["left_out"]) == ("DONE", 0, 4, []), run
    back = await switched(sidecar, topic)
    print(f"back: {back['phases_ms']}, {back['validation']}")
    holds_proof(back)
    await until(sidecar, topic.name, direction="FORWARD", state="ACTIVE")


def break_checksum(cluster: KafkaCluster, broker: int, topic: str) -> None:
    """The checksum of the last batch of one replica: without the validator, that and the size are compared."""
    [segment] = cluster.partition_dir(broker, TopicPartition(topic, 0)).glob("*.log")
    data = bytearray(segment.read_bytes())
    last = at = 0
    while at < len(data):
        last, at = at, at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[last + 17] ^= 0x10
    with segment.open("r+b") as file:
        file.seek(last + 17)
        file.write(data[last + 17 : last + 18])


@pytest.mark.parametrize(("policy", "spoil"), [("require", damage), ("skip", break_checksum)])
async def test_a_difference_refuses_a_switch(
    start_cluster: StartCluster,
    start_sidecar: StartSidecar,
    policy: str,
    spoil: Callable[[KafkaCluster, int, str], None],
) -> None:
    """One bit of one replica. The validator sees it before anybody is held; without it the last batch is compared behind the
    fence, with the source taken over, which is given back. Clients of the source have seen latency at most."""
    source, target, sidecar, topic = await prepared(
        start_cluster, start_sidecar, {**VALIDATION, "policy": policy}
    )
    configs = await asyncio.to_thread(topic_configs, source.bootstrap, topic.name)
    await sidecar.linker("mirror", "sync", topic.name, "--link", LINK)
    await until(sidecar, topic.name, sync="IN_SYNC")
    async with writes(source.bootstrap, [1]) as acked:
        broker = target.brokers[0].node_id
        spoil(target, broker, topic.name)
        refused = await sidecar.run("mirror", "switch", topic.name, "--link", LINK, timeout=PATIENCE)
        told = refused.output + refused.errors
        print(policy, refused.exit_code, told)
        assert refused.exit_code, told
        assert f"broker {broker}" in told and f"{topic.name}-0" in told, told
        await more(acked, 20)
    placed = await asyncio.to_thread(placements, source.bootstrap, [topic])
    assert {one.leader for one in placed.values()} <= {broker.node_id for broker in source.brokers}, placed
    assert await asyncio.to_thread(topic_configs, source.bootstrap, topic.name) == configs
    await until(sidecar, topic.name, direction="FORWARD")
    again = await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")
    print(again.output)
