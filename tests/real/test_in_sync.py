"""The sidecar among the in-sync replicas of its source, on real brokers: what is acknowledged there, the target has."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from admin.models import CreateMirrorsRequest, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.kafka_jars import DEFAULT_VERSION
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.log_compare import compare_replica
from lab.workload.replica_log import open_replica
from tests.real.harness_stalls import PATIENCE, stopped
from tests.real.kafka_admin import kafka_admin
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]

US = 800
RATE = 1000.0


class At(NamedTuple):
    leader: int
    isr: tuple[int, ...]


class Source:
    """The source as an operator's tool sees it, and the topic that is followed."""

    def __init__(
        self, kafka: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess, topic: str
    ) -> None:
        self.kafka, self.target, self.sidecar = kafka, target, sidecar
        self.tp = TopicPartition(topic, 0)
        self.cluster = Cluster(
            "asked", parse_bootstrap_servers(kafka.bootstrap), ClientSecurity.plaintext(), "test"
        )

    async def at(self) -> At:
        await self.cluster.refresh((self.tp.topic,))
        partition = self.cluster.topics[self.tp.topic].partitions[0]
        return At(partition.leader, tuple(partition.isr))

    async def until(self, condition: Callable[[At], bool], timeout: float = PATIENCE) -> At:
        deadline = time.monotonic() + timeout
        while True:
            at = await self.at()
            if condition(at):
                return at
            assert time.monotonic() < deadline, at
            await asyncio.sleep(0.1)

    async def follow(self) -> None:
        """Returns when the sidecar is in the ISR. By hand, too: nobody has to wait for the link controller's look."""
        await self.sidecar.linker("mirror", "sync", self.tp.topic, "--link", "east")
        await self.reassign([1, 2, US])
        await self.until(lambda at: US in at.isr)

    async def reassign(self, replicas: Collection[int]) -> None:
        answer = await self.cluster.call(
            "alter_partition_reassignments",
            {
                "timeout_ms": 10_000,
                "topics": [
                    {
                        "name": self.tp.topic,
                        "partitions": [{"partition_index": 0, "replicas": list(replicas)}],
                    }
                ],
            },
            timeout=15,
        )
        assert not int(answer.error_code), answer
        assert not int(answer.responses[0].partitions[0].error_code), answer

    def copies(self, brokers: Collection[int] = (1, 2, 3)) -> dict[int, set[bytes]]:
        """The values that lie in each replica's files at the target."""
        return {
            broker: {
                record.value or b""
                for batch in open_replica(self.target.log_dir(broker), self.tp).batches()
                for record in batch.records()
            }
            for broker in brokers
        }


class Writer:
    """Writes numbered records at a steady rate, from a thread: when each was acknowledged, and after how long."""

    def __init__(
        self, bootstrap: str, tp: TopicPartition, *, acks: str, name: str, rate: float = RATE
    ) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "linger.ms": 0,
                "enable.idempotence": acks == "all",
                "message.timeout.ms": 60_000,
            }
        )
        self._tp, self._name, self._rate = tp, name, rate
        self.acked: list[bytes] = []
        self.moments: list[float] = []
        self.waits: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Writer:
        self._thread.start()
        return self

    def _run(self) -> None:
        began, count = time.monotonic(), 0
        while not self._ended.is_set():
            due = began + count / self._rate
            wait = due - time.monotonic()
            if wait > 0:
                self._producer.poll(min(wait, 0.001))
                continue
            value = f"{self._name}-{count}".encode()
            sent = time.monotonic()

            def done(error: Any, _message: Any, value: bytes = value, sent: float = sent) -> None:
                if error is None:
                    now = time.monotonic()
                    self.acked.append(value)
                    self.moments.append(now)
                    self.waits.append(now - sent)

            self._producer.produce(self._tp.topic, value, partition=0, on_delivery=done)
            count += 1

    async def end(self, *, flush: float = 0.0) -> None:
        self._ended.set()
        await asyncio.to_thread(self._thread.join, 10)
        if flush:
            await asyncio.to_thread(self._producer.flush, flush)

    def percentile(self, share: float, skip: int = 500) -> float:
        """In milliseconds, of all but the first ones."""
        found = sorted(self.waits[skip:])
        return found[int(len(found) * share)] * 1000

    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.moments, self.moments[1:], strict=False)), default=0.0)


async def scene(
    start_cluster: StartCluster,
    start_sidecar: StartSidecar,
    target: KafkaCluster,
    topic: str,
    version: str = DEFAULT_VERSION,
    **properties: str,
) -> Source:
    """A source of two brokers, a mirrored topic, and the sidecar a broker of both clusters."""
    kafka = await start_cluster(
        name="source", brokers=2, controllers=1, version=version, properties=properties
    )
    admin = kafka_admin(kafka.bootstrap)
    made = admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=2)])
    await asyncio.to_thread(made[topic].result, 30)
    # Afterwards: a source that cannot cordon would place it on the link broker, maybe.
    sidecar = await start_sidecar(target.bootstrap, sources={"east": {"broker.id": US}})
    await sidecar.linker("link", "create", "east", "-b", kafka.bootstrap, "--join-source")

    def mirror() -> None:
        with sidecar.client() as client:
            client.create_mirrors("east", CreateMirrorsRequest(topics=[topic], replication_factor=3))

    await asyncio.to_thread(mirror)

    def active() -> bool:
        with sidecar.client() as client:
            return client.describe_mirror("east", topic).state is MirrorState.ACTIVE

    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(active):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    source = Source(kafka, target, sidecar, topic)
    await source.cluster.connect()
    return source


@pytest.mark.parametrize("version", [DEFAULT_VERSION, pytest.param("3.9.1", marks=pytest.mark.slow)])
async def test_all_that_is_acknowledged_is_at_the_target(
    version: str,
    target_cluster: KafkaCluster,
    start_cluster: StartCluster,
    start_sidecar: StartSidecar,
    unique_topic: Callable[[str], str],
) -> None:
    source = await scene(start_cluster, start_sidecar, target_cluster, unique_topic("t"), version)
    before = Writer(source.kafka.bootstrap, source.tp, acks="all", name="before").start()
    await asyncio.sleep(6)
    await before.end(flush=20)

    began = time.monotonic()
    await source.follow()
    joined = time.monotonic() - began

    after = Writer(source.kafka.bootstrap, source.tp, acks="all", name="after").start()
    await asyncio.sleep(8)
    added = after.percentile(0.5) - before.percentile(0.5)
    print(
        f"in the ISR after {joined:.2f} s; acks=all p50 {before.percentile(0.5):.2f} -> {after.percentile(0.5):.2f} ms, "
        f"p99 {before.percentile(0.99):.2f} -> {after.percentile(0.99):.2f} ms; added p50 {added:.2f} ms"
    )
    assert US in (await source.at()).isr
    # In the middle of it all of the source dies, and the sidecar too.
    await asyncio.gather(source.sidecar.kill(), *(node.kill() for node in source.kafka.nodes.values()))
    await after.end()
    acked = {*before.acked, *after.acked}
    assert len(after.acked) > 4 * RATE
    for broker, values in source.copies().items():
        assert not acked - values, f"broker {broker} lacks {len(acked - values)} of {len(acked)}"
    await source.cluster.close()


async def test_a_leader_dies_and_the_sidecar_stalls(
    target_cluster: KafkaCluster,
    start_cluster: StartCluster,
    start_sidecar: StartSidecar,
    unique_topic: Callable[[str], str],
) -> None:
    source = await scene(
        start_cluster,
        start_sidecar,
        target_cluster,
        unique_topic("t"),
        **{"replica.lag.time.max.ms": "4000", "broker.session.timeout.ms": "5000"},
    )
    kafka, tp = source.kafka, source.tp
    await source.follow()
    at = await source.at()
    safe = Writer(kafka.bootstrap, tp, acks="all", name="safe", rate=200).start()
    await asyncio.sleep(2)

    # The follower stands still for a moment: what is written with acks=1 meanwhile only leader and target have.
    leader, other = at.leader, 3 - at.leader
    fast = Writer(kafka.bootstrap, tp, acks="1", name="fast", rate=300).start()
    while not fast.acked:
        await asyncio.sleep(0.05)
    with stopped(kafka.nodes[other]):
        await asyncio.sleep(0.5)
        began, deadline = len(fast.acked), time.monotonic() + 3.0  # its session lasts longer
        ahead: set[bytes] = set()
        while not ahead and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            ahead = set(fast.acked[began:]).intersection(*source.copies().values())
        await kafka.nodes[leader].kill()
    await fast.end()
    assert ahead, "nothing of what only the leader has came to all replicas at the target"
    await source.until(lambda at: at.leader == other)
    await asyncio.sleep(2)
    await kafka.nodes[leader].start()
    await source.until(lambda at: {1, 2, US} <= set(at.isr))

    # A stalled sidecar leaves the ISR, and the source's writes go on.
    count = len(safe.acked)
    with stopped(source.sidecar):
        stalled = time.monotonic()
        await source.until(lambda at: US not in at.isr, 20)
        out = time.monotonic() - stalled
        await asyncio.sleep(1)
        assert len(safe.acked) > count
    await source.until(lambda at: US in at.isr)
    await safe.end(flush=30)
    print(f"out of the ISR {out:.1f} s after the stall began; longest gap of acks {safe.longest_gap():.1f} s")

    await asyncio.sleep(2)
    leads = (await source.at()).leader
    mine = open_replica(kafka.log_dir(leads), tp)
    kept = {record.value or b"" for batch in mine.batches() for record in batch.records()}
    assert not set(safe.acked) - kept
    lost = set(fast.acked) - kept
    print(f"{len(lost)} records of acks=1 lost by the election, {len(safe.acked)} of acks=all kept")
    for broker, values in source.copies().items():
        found = compare_replica(mine, open_replica(target_cluster.log_dir(broker), tp), tp, broker)
        assert found.identical, found.difference
        assert values == kept
    assert ahead & lost, "no replica had anything to truncate"
    await source.cluster.close()
