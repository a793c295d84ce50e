"""A mirror means what its source means: other defaults, other hands on the topic's configs, on real brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from admin.models import MirrorState, PromotePhase, PromoteRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.kafka_admin import kafka_admin
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition as WireTopicPartition
from wire.together import together

pytestmark = pytest.mark.timeout(420)
PATIENCE = 60.0
YEAR_MS = 365 * 24 * 3600 * 1000
LINK = "east"
#: A source that keeps for ever, takes any timestamp and larger batches; the target has Kafka's defaults, and looks often.
KEEPS = {
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": str((1 << 63) - 1),
    "message.max.bytes": "3000000",
}
DEFAULTS = {
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "200",
}

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


class Pair:
    """A source, a target and the sidecar between them."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess) -> None:
        self.source, self.target, self.sidecar = source, target, sidecar

    def create(self, topic: str, configs: dict[str, str] | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": self.source.bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1, config=configs or {})])[topic].result(30)

    def write(self, bootstrap: str, topic: str, count: int, *, ago_ms: int) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20})
        stamp = int(time.time() * 1000) - ago_ms
        for number in range(count):
            producer.produce(topic, f"{number}".encode(), partition=0, timestamp=stamp + number)
        assert producer.flush(30) == 0

    def count(self, topic: str) -> int:
        """Records that a consumer from the beginning finds at the target."""
        consumer = Consumer(
            {"bootstrap.servers": self.target.bootstrap, "group.id": "count", "auto.offset.reset": "earliest"}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
            found, deadline = 0, time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is None or message.error():
                    continue
                found += 1
                if message.offset() + 1 >= end:
                    break
            return found
        finally:
            consumer.close()

    def configs(self, topic: str) -> dict[str, str]:
        admin = AdminClient({"bootstrap.servers": self.target.bootstrap})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = admin.describe_configs([resource])[resource].result(30)
        return {name: entry.value for name, entry in entries.items()}

    def alter(self, bootstrap: str, topic: str, **configs: str | None) -> None:
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value or "",
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        admin = kafka_admin(bootstrap)
        admin.incremental_alter_configs([resource])[resource].result(30)

    async def mirror(self, topic: str, *options: str) -> str:
        said = await self.sidecar.linker("mirror", "create", topic, "--link", LINK, "-r", "2", *options)
        await self.until(topic, MirrorState.ACTIVE)
        return said.output

    async def until(self, topic: str, state: MirrorState, timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while True:
            one = await self.describe(topic)
            if one.state is state and (state is not MirrorState.ACTIVE or one.lag == 0):
                return
            assert time.monotonic() < deadline, one
            await asyncio.sleep(0.1)

    async def describe(self, topic: str):  # type: ignore[no-untyped-def]
        def ask():  # type: ignore[no-untyped-def]
            with self.sidecar.client() as client:
                return client.describe_mirror(LINK, topic)

        return await asyncio.to_thread(ask)

    async def promote(self, topic: str) -> None:
        def ask() -> str:
            with self.sidecar.client() as client:
                job = client.promote(LINK, PromoteRequest(topics=[topic]))
                while not job.phase.final:
                    time.sleep(0.1)
                    job = client.describe_promote(job.id)
                assert job.phase is PromotePhase.PROMOTED, job
                return str(job.id)

        await asyncio.to_thread(ask)


@pytest_asyncio.fixture(loop_scope="session")
async def pair(start_cluster: StartCluster, start_sidecar: StartSidecar) -> AsyncIterator[Pair]:
    source, target = await together(
        [
            start_cluster(name="source", brokers=1, properties=KEEPS),
            start_cluster(name="target", brokers=2, properties=DEFAULTS),
        ]
    )
    sidecar = await start_sidecar(target.bootstrap)
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
    yield Pair(source, target, sidecar)


async def wait_for(check: Callable[[], bool], timeout: float = PATIENCE) -> float:
    began = time.monotonic()
    while not await asyncio.to_thread(check):
        assert time.monotonic() < began + timeout
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_a_target_with_shorter_retention_deletes_nothing_of_a_mirror(pair: Pair) -> None:
    """A source that keeps for ever, a target with Kafka's default of a week, records of last year."""
    pair.create("history")
    pair.write(pair.source.bootstrap, "history", 500, ago_ms=YEAR_MS)
    said = await pair.mirror("history", "--config-from-target", "compression.type")
    assert "retention.ms is -1 at the source and 604800000 by the target's defaults" in said, said
    assert "max.message.bytes is 3000000 at the source" in said, said
    pair.write(pair.target.bootstrap, "history", 100, ago_ms=0)
    await asyncio.sleep(2)  # four looks of the target's retention
    plan = await pair.sidecar.linker("mirror", "promote", "history", "--link", LINK, "--dry-run")
    assert "retention.ms is -1 at the source" in plan.output, plan
    await pair.promote("history")
    await asyncio.sleep(2)
    assert await asyncio.to_thread(pair.count, "history") == 600
    configs = await asyncio.to_thread(pair.configs, "history")
    assert configs["retention.ms"] == "-1"
    assert configs["max.message.bytes"] == "3000000"
    assert configs["message.timestamp.after.max.ms"] == KEEPS["log.message.timestamp.after.max.ms"]
    pair.write(
        pair.target.bootstrap, "history", 5, ago_ms=-2 * 3600 * 1000
    )  # two hours ahead, as at the source

    # The source's own retention is what the promoted topic has, and a change of it while it is mirrored counts.
    pair.create("month", {"retention.ms": "1000000000"})
    await pair.mirror("month")
    assert (await asyncio.to_thread(pair.configs, "month"))["retention.ms"] == "-1"
    pair.alter(pair.source.bootstrap, "month", retention_ms="2592000000", segment_ms="5000000")
    await pair.promote("month")
    configs = await asyncio.to_thread(pair.configs, "month")
    assert (configs["retention.ms"], configs["segment.ms"]) == ("2592000000", "5000000")


async def test_what_somebody_sets_on_a_mirror_is_put_back(pair: Pair) -> None:
    pair.create("kept")
    pair.write(pair.source.bootstrap, "kept", 300, ago_ms=YEAR_MS)
    await pair.mirror("kept")
    wanted = {"unclean.leader.election.enable": "false", "retention.ms": "-1", "retention.bytes": "-1"}

    def as_wanted() -> bool:
        configs = pair.configs("kept")
        return all(configs[name] == value for name, value in wanted.items())

    for changed in (
        {"unclean_leader_election_enable": "true"},
        {"unclean_leader_election_enable": None},
        {"retention_ms": "1000"},
        {"retention_ms": None, "retention_bytes": None},
        {"min_insync_replicas": "2"},
    ):
        pair.alter(pair.target.bootstrap, "kept", **changed)
        await asyncio.sleep(0.1)
        spent = await wait_for(as_wanted)
        assert spent < 10, changed
    one = await pair.describe("kept")
    assert one.configs_put_back["unclean.leader.election.enable"] == 2, one.configs_put_back
    assert one.configs_put_back["min.insync.replicas"] == 1
    # What other tools put there for their own reasons is left alone.
    pair.alter(pair.target.bootstrap, "kept", flush_ms="12345")
    await asyncio.sleep(1.5)
    assert (await asyncio.to_thread(pair.configs, "kept"))["flush.ms"] == "12345"


async def nobody_leads(pair: Pair, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": pair.target.bootstrap})
    await wait_for(lambda: admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader == -1)


async def set_for_the_cluster(cluster: KafkaCluster, name: str, value: str) -> None:
    """A dynamic default of all brokers; none of the clients at hand can name that resource."""
    asked = Cluster("target", parse_bootstrap_servers(cluster.bootstrap), ClientSecurity.plaintext(), "test")
    change = {"name": name, "config_operation": 0, "value": value}
    everywhere = {"resource_type": 4, "resource_name": "", "configs": [change]}
    try:
        await asked.connect()
        answer = await asked.call(
            "incremental_alter_configs", {"resources": [everywhere], "validate_only": False}, timeout=30
        )
        assert [int(one.error_code) for one in answer.responses] == [0]
    finally:
        await asked.close()


@pytest.mark.parametrize("where", [pytest.param("topic", marks=pytest.mark.slow), "cluster"])
async def test_a_mirror_without_isr_and_elr_is_led_again_with_its_copies(pair: Pair, where: str) -> None:
    """min.insync.replicas is changed while the only sidecar is away: ClearElrRecord leaves nobody to elect."""
    pair.create("stranded", {"min.insync.replicas": "2"})
    pair.write(pair.source.bootstrap, "stranded", 400, ago_ms=1000)
    await pair.mirror("stranded")
    log = pair.target.partition_dir(1, WireTopicPartition("stranded", 0)) / "00000000000000000000.log"
    before = log.stat()
    await pair.sidecar.kill()
    await nobody_leads(pair, "stranded")
    if where == "topic":
        pair.alter(pair.target.bootstrap, "stranded", min_insync_replicas="1")
    else:
        await set_for_the_cluster(pair.target, "min.insync.replicas", "2")
    await pair.sidecar.start()
    await pair.until("stranded", MirrorState.ACTIVE)
    after = log.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size), "copied once more"
    assert (await asyncio.to_thread(pair.configs, "stranded"))["min.insync.replicas"] == "2"
    pair.write(pair.target.bootstrap, "stranded", 50, ago_ms=0)
    await pair.promote("stranded")
    assert await asyncio.to_thread(pair.count, "stranded") == 450


async def test_a_forced_election_is_told_with_what_was_written(pair: Pair) -> None:
    """What somebody types who sees an offline partition; clients then write to a broker that has a copy only."""
    pair.create("forked")
    pair.write(pair.source.bootstrap, "forked", 100, ago_ms=1000)
    await pair.mirror("forked")
    await pair.sidecar.kill()
    await nobody_leads(pair, "forked")
    admin = await asyncio.to_thread(kafka_admin, pair.target.bootstrap)
    admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition("forked", 0)]).result(30)
    pair.write(pair.target.bootstrap, "forked", 30, ago_ms=0)
    pair.write(pair.source.bootstrap, "forked", 7, ago_ms=0)
    await pair.sidecar.start()
    await pair.until("forked", MirrorState.FAILED)
    one = await pair.describe("forked")
    assert "(30 records so far)" in (one.reason or ""), one.reason
    said = await pair.sidecar.run("mirror", "repair", "forked", "--link", LINK, "--dry-run")
    assert "taken 30 records by itself, offsets 100 to 130" in said.errors, said
    doctor = await pair.sidecar.run("doctor", "--link", LINK)
    assert doctor.exit_code != 0, doctor
    assert "30 records" in doctor.output, doctor
