"""Real consumers of a gated group, each a library in a thread or task of its own, that note what they were given first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import confluent_kafka
import confluent_kafka.admin
import kafka as kafka_python
from aiokafka import AIOKafkaConsumer

from controller.codec import decode_gate, encode_gate
from controller.groups import GateKind, GateRecord
from groups.gates.base import Gate, OffsetAndMetadata
from groups.gates.coordinators import Coordinators
from groups.gates.factory import make_gate, plan_gate
from tests.real.kafka_admin import kafka_admin
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition


class Reader:
    """One member of the group. `first`: partition -> (offset, time.monotonic()) of the first record it was given."""

    def __init__(
        self, library: str, bootstrap: str, group: str, topics: list[str], *, session: float = 10.0
    ) -> None:
        """`session`: seconds, of aiokafka's members."""
        self.library = library
        self._session = session
        self.first: dict[TopicPartition, tuple[int, float]] = {}
        self.error: BaseException | None = None
        self._bootstrap = bootstrap
        self._group = group
        self._topics = topics
        self._stop = threading.Event()
        run = {
            "confluent classic": lambda: self._confluent("classic"),
            "confluent consumer": lambda: self._confluent("consumer"),
            "kafka-python": self._kafka_python,
            "aiokafka": lambda: asyncio.run(self._aiokafka()),
        }[library]
        self._thread = threading.Thread(
            target=self._run, args=(run,), name=f"{library} of {group}", daemon=True
        )
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.error = error

    def _given(self, topic: str, partition: int, offset: int) -> None:
        self.first.setdefault(TopicPartition(topic, partition), (offset, time.monotonic()))

    def _confluent(self, protocol: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 2000,
                "client.id": f"app-{protocol}",
            }
        )
        consumer.subscribe(self._topics)
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._given(message.topic(), message.partition(), message.offset())
        consumer.close()

    def _kafka_python(self) -> None:
        consumer = kafka_python.KafkaConsumer(
            *self._topics,
            bootstrap_servers=self._bootstrap.split(","),
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            client_id="app-kafka-python",
        )
        while not self._stop.is_set():
            try:
                batches = consumer.poll(timeout_ms=100).values()
            except kafka_python.errors.KafkaConnectionError:
                continue  # it asked a broker that other tests had stopped; the next one it asks is there
            for batch in batches:
                for record in batch:
                    self._given(record.topic, record.partition, record.offset)
        consumer.close()

    async def _aiokafka(self) -> None:
        consumer = AIOKafkaConsumer(
            *self._topics,
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            client_id="app-aiokafka",
            session_timeout_ms=int(self._session * 1000),
        )
        starting = asyncio.get_running_loop().create_task(consumer.start())
        try:
            while not starting.done() and not self._stop.is_set():
                await asyncio.sleep(0.05)
            if not starting.done():
                return
            await starting
            while not self._stop.is_set():
                for batch in (await consumer.getmany(timeout_ms=100)).values():
                    for record in batch:
                        self._given(record.topic, record.partition, record.offset)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await consumer.stop()

    async def wait_first(self, count: int, timeout: float) -> None:
        """Until it was given something of that many partitions; AssertionError names what there is."""
        deadline = time.monotonic() + timeout
        while len(self.first) < count and time.monotonic() < deadline:
            if self.error is not None:
                raise self.error
            await asyncio.sleep(0.02)
        assert len(self.first) >= count, f"{self.library} was given {self.first} within {timeout:g} s"

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 20.0)


class Side:
    """One sidecar's view of the target: connections and gates of its own. What it saves, the next one finds."""

    def __init__(self, cluster: Cluster, stored: dict[str, object]) -> None:
        self.cluster = cluster
        self.coordinators = Coordinators(cluster)
        self._stored = stored

    async def save(self, record: GateRecord) -> None:
        self._stored[record.group] = encode_gate(record)

    def plan(self, group: str, kind: GateKind) -> Gate:
        return make_gate(plan_gate("link", group, kind), self.coordinators, self.save, stored=False)

    def resume(self, group: str) -> Gate:
        record = decode_gate(group, self._stored[group])  # type: ignore[arg-type]
        return make_gate(record, self.coordinators, self.save, stored=True)


@asynccontextmanager
async def sidecar(bootstrap: str, stored: dict[str, object]) -> AsyncIterator[Side]:
    cluster = Cluster("target", parse_bootstrap_servers(bootstrap), ClientSecurity.plaintext(), "sidecar")
    await cluster.connect()
    side = Side(cluster, stored)
    try:
        yield side
    finally:
        await side.coordinators.close()
        await cluster.close()


async def filled_topic(bootstrap: str, name: str, partitions: int, records: int) -> None:
    """A topic with the same number of records in each partition."""
    admin = await asyncio.to_thread(kafka_admin, bootstrap)
    made = admin.create_topics([confluent_kafka.admin.NewTopic(name, partitions, 1)])
    await asyncio.to_thread(made[name].result, 30)
    await asyncio.to_thread(_fill, bootstrap, name, range(partitions), records)


async def add_partitions(bootstrap: str, name: str, total: int, new: range, records: int) -> None:
    admin = await asyncio.to_thread(kafka_admin, bootstrap)
    made = admin.create_partitions([confluent_kafka.admin.NewPartitions(name, total)])
    await asyncio.to_thread(made[name].result, 30)
    await asyncio.to_thread(_fill, bootstrap, name, new, records)


def _fill(bootstrap: str, name: str, partitions: range, records: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    refused: list[object] = []
    deadline = time.monotonic() + 30
    while not set(partitions) <= producer.list_topics(name, timeout=10).topics[name].partitions.keys():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the producer does not see all partitions of topic {name}")
        time.sleep(0.05)

    def delivered(error: object, _record: object) -> None:
        if error is not None:
            refused.append(error)

    for number in range(records):
        for partition in partitions:
            producer.produce(name, b"%d" % number, partition=partition, on_delivery=delivered)
        producer.poll(0)
    if producer.flush(30) or refused:
        raise TimeoutError(f"topic {name} could not be filled: {refused[:1]}")


async def renew_for(gates: Mapping[str, Gate], seconds: float) -> None:
    """What the manager does: renew whatever is due."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for gate in gates.values():
            if gate.due() <= time.monotonic():
                await gate.renew()
        await asyncio.sleep(0.1)


def offsets(topic: str, base: int, count: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, i): OffsetAndMetadata(base + i, "synced") for i in range(count)}


def at(topic: str, base: int, count: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, i): base + i for i in range(count)}
