"""One sidecar with one link, shared by the tests of a module, and the troubles that clusters can be brought into.

Scenes with live producers are harness_promote's; here they come without a sidecar of their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from admin.models import CreateMirrorsRequest, MirrorDescription, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import CommandResult, SidecarProcess, SidecarSpec
from lab.workload.inspection import Placement, placements
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, PATIENCE, RATE, Scene
from tests.real.kafka_admin import kafka_admin
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition


class TroubleScene(Scene):
    """Topics of one test, on a sidecar and a link that are there already."""

    async def begin(self, *, rate: float = RATE, writers: bool = True, factor: int | None = None) -> None:
        filler = SourceFiller(self.source.bootstrap, scale=0.2)
        await asyncio.to_thread(filler.create, self.topics, min(2, len(self.source.brokers)))
        await asyncio.to_thread(filler.fill, self.topics)
        await self.mirror(factor)
        if writers:
            self.add_writers(rate)
            for producer in self.producers:
                await producer.start(self.target.bootstrap)
            await self.acked_more(20)

    async def mirror(self, factor: int | None = None) -> None:
        """Mirror what is at the source, until every replica copies it."""
        request = CreateMirrorsRequest(
            topics=self.names, replication_factor=factor or min(3, len(self.target.brokers))
        )
        await self.ask(lambda client: client.create_mirrors(LINK, request))
        await self.wait_active()

    async def describe(self, topic: str | None = None) -> MirrorDescription:
        name = topic or self.names[0]
        found: MirrorDescription = await self.ask(lambda client: client.describe_mirror(LINK, name))
        return found

    async def shown(
        self, state: MirrorState, reason: str = "", topic: str | None = None, timeout: float = PATIENCE
    ) -> MirrorDescription:
        """Wait until a mirror is shown in a state, with a reason that says so much."""
        deadline = time.monotonic() + timeout
        while True:
            found = await self.describe(topic)
            if found.state is state and reason in (found.reason or ""):
                return found
            assert time.monotonic() < deadline, f"wanted {state} {reason!r}: {found}"
            await asyncio.sleep(0.1)

    async def shown_reason(self, reason: str, timeout: float = PATIENCE) -> MirrorDescription:
        """Wait until the first topic's mirror gives a reason, whatever its state is."""
        deadline = time.monotonic() + timeout
        while reason not in ((found := await self.describe()).reason or ""):
            assert time.monotonic() < deadline, f"wanted {reason!r}: {found}"
            await asyncio.sleep(0.02)
        return found

    async def copied(self, timeout: float = PATIENCE) -> None:
        """Every replica has everything that the source has now."""
        ends = await asyncio.to_thread(self.source_ends)
        deadline = time.monotonic() + timeout
        while True:
            report = await self.ask(lambda client: client.lag(LINK, self.names))
            have = {
                TopicPartition(one.topic, one.partition): one.target_end_offset for one in report.partitions
            }
            if all((have[tp] or 0) >= end for tp, end in ends.items()):
                return
            assert time.monotonic() < deadline, f"wanted {ends}: {have}"
            await asyncio.sleep(0.1)

    def source_ends(self) -> dict[TopicPartition, int]:
        placed = placements(self.source.bootstrap, self.topics)
        return {tp: open_replica(self.source.log_dir(one.leader), tp).end() for tp, one in placed.items()}

    def check_placement(self, placed: Mapping[TopicPartition, Placement]) -> None:
        """Other tests' topics weigh too, so that no more is known than who may be a replica."""
        real = {node.node_id for node in self.target.brokers}
        assert all(set(one.replicas) <= real and one.leader in real for one in placed.values()), placed


@asynccontextmanager
async def linked_sidecar(
    source: KafkaCluster, target: KafkaCluster, broker_id: int, directory: Path
) -> AsyncIterator[SidecarProcess]:
    """A sidecar with the link LINK; it leaves the target in good order."""
    spec = SidecarSpec(target_bootstrap=target.bootstrap, broker_id=broker_id)
    async with SidecarProcess(spec, directory) as sidecar:
        await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source.bootstrap)
        yield sidecar
        for mirror in (await sidecar.linker("mirror", "list", "--link", LINK, "-o", "json")).json():
            kept = ["--keep-data"] if mirror["state"] == "PROMOTED" else []
            await sidecar.linker(
                "mirror", "delete", mirror["topic"], "--link", LINK, "--yes", "--force", *kept
            )
        await sidecar.linker("sidecar", "leave", str(broker_id))
        assert await sidecar.ended() == 0


async def mirrored(sidecar: SidecarProcess, topic: str) -> None:
    """Make a mirror with two copies, and wait until they have what the source has."""
    await sidecar.linker("mirror", "create", topic, "--link", LINK, "--replication-factor", "2")

    def active() -> bool:
        with sidecar.client() as client:
            found = client.describe_mirror(LINK, topic)
        return found.state is MirrorState.ACTIVE and found.lag == 0

    await patiently(f"{topic} ACTIVE", active)


def refused(result: CommandResult, *words: str) -> str:
    """Exit 1 and one line that holds all the words."""
    line = result.errors.strip()
    assert result.exit_code == 1, result
    assert "\n" not in line, line
    assert line.startswith("linker: "), line
    assert "internal error" not in line, line
    assert not [word for word in words if word not in line], line
    assert not result.output.strip(), result.output
    return line


# --- the clusters, through a client's eyes (blocking) --------------------------------------------------------------


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    copies: int = 1,
    configs: Mapping[str, str] | None = None,
    assignment: list[list[int]] | None = None,
) -> None:
    admin = kafka_admin(bootstrap)
    placed = {"replication_factor": copies} if assignment is None else {"replica_assignment": assignment}
    new = NewTopic(name, partitions, **placed, config=dict(configs or {}))
    admin.create_topics([new], operation_timeout=30)[name].result(60)
    deadline = time.monotonic() + 30
    while True:
        seen = admin.list_topics(timeout=10).topics.get(name)
        if seen is not None and seen.partitions and all(p.leader >= 0 for p in seen.partitions.values()):
            return
        assert time.monotonic() < deadline, f"{name} has no leader"
        time.sleep(0.05)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = kafka_admin(bootstrap)
    admin.delete_topics([name], operation_timeout=30)[name].result(60)


def set_topic_configs(bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
    admin = kafka_admin(bootstrap)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def write(bootstrap: str, topic: str, records: int, *, size: int = 200, partition: int = 0) -> None:
    """That many records to one partition, each acknowledged, in batches of 30 or less."""
    errors: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": 30,
            "message.max.bytes": 10_000_000,
        }
    )
    for number in range(records):
        producer.produce(
            topic,
            (b"%08d" % number) * (size // 8),
            partition=partition,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(90) == 0, "records are left"
    assert not errors, errors[0]


def delete_records(bootstrap: str, tp: TopicPartition, before: int) -> None:
    admin = kafka_admin(bootstrap)
    partition = KafkaPartition(tp.topic, tp.partition, before)
    for future in admin.delete_records([partition]).values():
        assert future.result(60).low_watermark == before


def log_start(bootstrap: str, tp: TopicPartition) -> int:
    """As consumers are told."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        low, _ = consumer.get_watermark_offsets(KafkaPartition(tp.topic, tp.partition), timeout=30)
    finally:
        consumer.close()
    return int(low)


def topics_of(bootstrap: str) -> set[str]:
    return set(KafkaAdmin({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics)


def fingerprint(cluster: KafkaCluster, tp: TopicPartition, brokers: Sequence[int]) -> dict[int, str]:
    """What a partition's replicas hold, batch bytes and offsets."""
    found = {}
    for broker in brokers:
        digest = hashlib.sha256()
        for batch in open_replica(cluster.log_dir(broker), tp).batches():
            digest.update(b"%d" % batch.header.base_offset + batch.after_epoch)
        found[broker] = digest.hexdigest()
    return found


@asynccontextmanager
async def operator(cluster: KafkaCluster) -> AsyncIterator[Cluster]:
    """Somebody with the right to do anything."""
    client = Cluster(
        "operator", parse_bootstrap_servers(cluster.bootstrap), ClientSecurity.plaintext(), "operator"
    )
    try:
        await client.connect(timeout=30)
        yield client
    finally:
        await client.close()


async def cancel_reassignments(cluster: KafkaCluster, tps: Sequence[TopicPartition]) -> None:
    """What an operator does with `kafka-reassign-partitions --cancel`."""
    await reassign(cluster, dict.fromkeys(tps))


async def delete_mirrors_of_dead_brokers(cluster: KafkaCluster) -> None:
    """Tools ask each broker of a reassignment, and wait a minute for one that is gone. Tests that kill their sidecar leave
    such ones; where the dead broker is the whole ISR they cannot be cancelled either."""
    async with operator(cluster) as client:
        described = await client.call("describe_cluster", {}, timeout=30)
        alive = {int(broker.broker_id) for broker in described.brokers}
        listed = await client.call(
            "list_partition_reassignments", {"timeout_ms": 20_000, "topics": None}, timeout=30
        )
    left = [
        topic.name
        for topic in listed.topics
        if any(not alive.issuperset(part.replicas) for part in topic.partitions)
    ]
    for name in left:
        await asyncio.to_thread(delete_topic, cluster.bootstrap, name)


async def reassign(
    cluster: KafkaCluster, wanted: Mapping[TopicPartition, Sequence[int]] | Mapping[TopicPartition, None]
) -> None:
    """What an operator does with `kafka-reassign-partitions`; None cancels one."""
    async with operator(cluster) as client:
        topics: dict[str, list[dict[str, object]]] = {}
        for tp, replicas in wanted.items():
            topics.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "replicas": None if replicas is None else list(replicas),
                }
            )
        answer = await client.call(
            "alter_partition_reassignments",
            {
                "timeout_ms": 20_000,
                "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
            },
            timeout=30,
        )
        codes = [int(part.error_code) for topic in answer.responses for part in topic.partitions]
        assert [int(answer.error_code), *codes] == [0] * (1 + len(wanted)), answer


async def active_controller(cluster: KafkaCluster) -> int:
    """The node that leads the metadata quorum now."""
    async with operator(cluster) as client:
        answer = await client.call(
            "describe_quorum",
            {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
            timeout=30,
        )
        return int(answer.topics[0].partitions[0].leader_id)


def in_sync(cluster: KafkaCluster, topics: Sequence[SourceTopic], copies: int) -> bool:
    """Whether every partition has that many replicas in sync."""
    found = KafkaAdmin({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=10).topics
    return all(
        len(found[tp.topic].partitions[tp.partition].isrs) >= copies
        for topic in topics
        for tp in topic.topic_partitions()
    )


async def patiently(what: str, condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait for a condition that blocks while it is looked at."""
    deadline = time.monotonic() + timeout
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
        await asyncio.sleep(0.2)
