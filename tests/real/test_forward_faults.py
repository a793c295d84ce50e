"""Produces that are cut anywhere: between client and sidecar, and between sidecar and source, in the request and in the
answer, at bytes from the first to the last; and connections that stand still in the middle of either.

Idempotent producers of three libraries write all the time. An ordinary consumer judges at the source and through the
link: no error reached an application, nothing is lost, nothing twice, everything in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
import pytest_asyncio
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec, KafkaNode
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.checker import check
from lab.workload.history import LogRecord, PartitionLog, parse_identity
from lab.workload.live_producers import (
    CLIENT_LOG,
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveProducer,
)
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.chaos.proxy import Proxy
from tests.chaos.surgeon import Cut, Side, Surgeon, Where
from tests.real.harness_promote import LINK, Scene
from tests.real.verdicts import assert_sound
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(240)
RATE = 100.0
STALL = 3.5  # longer than the impatient one waits for an answer
STRIKE_TIMEOUT = 20.0
GOES_ON_TIMEOUT = 40.0

POSITIONS: dict[str, Where] = {
    "before the first byte": lambda size: 0,
    "in the size": lambda size: 2,
    "in the header": lambda size: 9,
    "behind the header": lambda size: min(30, size - 1),
    "at a third": lambda size: size // 3,
    "in the middle": lambda size: size // 2,
    "before the last byte": lambda size: size - 1,
    "behind the last byte": lambda size: size,
}


class Impatient(LibrdkafkaProducer):
    """Gives an answer two seconds, and then sends again."""

    def _connect(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "enable.idempotence": "true",
                "max.in.flight.requests.per.connection": "5",
                "linger.ms": "2",
                "request.timeout.ms": "2000",
                "socket.timeout.ms": "2000",
                "error_cb": self._told,
            },
            logger=CLIENT_LOG,
        )


@dataclass
class Cuttable:
    """A scene whose connections go through proxies."""

    scene: Scene
    hops: dict[str, Surgeon]

    def acked(self) -> dict[str, int]:
        found = dict.fromkeys((producer.name for producer in self.scene.producers), 0)
        for ack in list(self.scene.history.acks):
            found[ack.producer] += 1
        return found

    async def goes_on(self, more: int = 10) -> None:
        """Every producer gets that many further acknowledgements."""
        before = self.acked()
        deadline = time.monotonic() + GOES_ON_TIMEOUT
        while late := [name for name, number in self.acked().items() if number < before[name] + more]:
            assert time.monotonic() < deadline, f"{late} does not go on"
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture(loop_scope="session")
async def cuttable(
    tmp_path: Path,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[Cuttable]:
    hops = {"source": Surgeon(), "client": Surgeon()}
    source_gate = Proxy("source", surgeon=hops["source"])
    client_gate = Proxy("sidecar", surgeon=hops["client"])

    def advertised(node: KafkaNode) -> dict[str, str]:
        source_gate.upstream = ("127.0.0.1", node.port("LINK"))
        return {
            "advertised.listeners": f"PLAINTEXT://{node.address('PLAINTEXT')},LINK://{source_gate.address}"
        }

    async with AsyncExitStack() as stack:
        for gate in (source_gate, client_gate):
            stack.push_async_callback(gate.close)
            await gate.start()
        source = KafkaCluster(
            KafkaClusterSpec(
                name="cut",
                listeners={"PLAINTEXT": "PLAINTEXT", "LINK": "PLAINTEXT"},
                node_properties=lambda node_id: advertised(source.nodes[node_id]),
            ),
            tmp_path,
        )
        await stack.enter_async_context(source)
        sidecar = await start_sidecar(target_cluster.bootstrap, advertised={"PLAINTEXT": client_gate.address})
        host, _, port = sidecar.address("PLAINTEXT").rpartition(":")
        client_gate.upstream = (host, int(port))
        topic = SourceTopic(unique_topic("orders"), 2, SourceFiller.history, live=True)
        scene = Scene(source, target_cluster, sidecar, [topic])
        filler = SourceFiller(source.bootstrap, scale=0.02)
        await asyncio.to_thread(filler.create, scene.topics, 1)
        await asyncio.to_thread(filler.fill, scene.topics)
        await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source_gate.address)
        await sidecar.linker("mirror", "create", topic.name, "--link", LINK, "--replication-factor", "2")
        await scene.wait_active()
        for kind in (Impatient, AiokafkaProducer, KafkaPythonProducer):
            producer: LiveProducer = kind(kind.__name__, topic.name, topic.partitions, RATE, scene.history)
            scene.producers.append(producer)
            stack.push_async_callback(producer.stop)
            await producer.start(target_cluster.bootstrap)
        yield Cuttable(scene, hops)


def consumed(bootstrap: str, tp: TopicPartition) -> PartitionLog:
    """The partition as an ordinary consumer gets it, from its start to where it ends now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge"}, logger=CLIENT_LOG)
    partition = KafkaPartition(tp.topic, tp.partition, 0)
    try:
        start, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([KafkaPartition(tp.topic, tp.partition, start)])
        records, at = [], start
        while at < end:
            message = consumer.poll(20)
            assert message is not None, f"{tp}: it gets no further than {at} of {end}"
            assert message.error() is None, message.error()
            offset = message.offset() or 0
            at = offset + 1
            identity = parse_identity(message.value())
            if identity is not None:
                records.append(LogRecord(offset, *identity))
        return PartitionLog(start, end, records)
    finally:
        consumer.close()


async def judged(cuttable: Cuttable) -> int:
    """Stop the writers; how many records were acknowledged, each of which is there once, in order."""
    scene = cuttable.scene
    for producer in scene.producers:
        await producer.stop()
    logs = {tp: await asyncio.to_thread(consumed, scene.source.bootstrap, tp) for tp in scene.tps}
    verdict = check(scene.history, logs)
    assert not verdict.client_errors, verdict.client_errors[:5]
    assert_sound(verdict)
    assert (verdict.unknown, verdict.failed) == (0, 0)
    assert verdict.acked == sum(len(log.records) for log in logs.values())
    through = {tp: await asyncio.to_thread(consumed, scene.target.bootstrap, tp) for tp in scene.tps}
    assert {tp: log.records for tp, log in through.items()} == {tp: log.records for tp, log in logs.items()}
    return verdict.acked


@pytest.mark.parametrize("hop", [pytest.param("client", marks=pytest.mark.slow), "source"])
async def test_cut_at_any_byte(cuttable: Cuttable, hop: str) -> None:
    await cuttable.goes_on()
    for side in Side:
        for where in POSITIONS.values():
            await cuttable.hops[hop].strike(Cut(side, where), STRIKE_TIMEOUT)
            await cuttable.goes_on()
    acked = await judged(cuttable)
    print(f"{hop}: {2 * len(POSITIONS)} cuts, {acked} acknowledged")


@pytest.mark.parametrize("hop", ["client", pytest.param("source", marks=pytest.mark.slow)])
async def test_stands_still_in_the_middle(cuttable: Cuttable, hop: str) -> None:
    """Half a request, half an answer, nothing at all: for longer than a client waits, and then it is cut."""
    await cuttable.goes_on()
    for side in Side:
        for name in ("before the first byte", "in the middle"):
            await cuttable.hops[hop].strike(Cut(side, POSITIONS[name], STALL), STRIKE_TIMEOUT)
            await cuttable.goes_on()
    acked = await judged(cuttable)
    print(f"{hop}: 4 stalls of {STALL:.1f} s, {acked} acknowledged")
