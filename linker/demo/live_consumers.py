"""Consumers that run all the time, of several libraries; what they read goes into one history."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka

from linker.demo.history import History
from linker.demo.live_producers import CLIENT_LOG, START_TIMEOUT, STOP_TIMEOUT, LiveClientError
from wire.types import TopicPartition


class LiveConsumer(ABC):
    """One application that reads topics as a group of its own, and goes on where it was after a move.

    It seeks to its own next offsets when it is assigned partitions: the offsets of both clusters are the
    same, which is the point, while its group's commits stay in the cluster where they were made.
    """

    library: str

    def __init__(self, name: str, topics: Sequence[str], history: History) -> None:
        self.name = name
        self.history = history
        self.positions: dict[TopicPartition, int] = {}
        self._topics = list(topics)
        self._run = 0

    @abstractmethod
    async def start(self, bootstrap: str) -> None:
        """Subscribe and begin to read."""

    @abstractmethod
    async def stop(self) -> None:
        """Leave the group and close."""

    async def move(self, bootstrap: str) -> None:
        """Stop, and start at the other cluster."""
        await self.stop()
        await self.start(bootstrap)

    async def read_up_to(self, ends: Mapping[TopicPartition, int], timeout: float) -> bool:
        """Wait until everything below these offsets was read; False if it was not in time."""
        deadline = time.monotonic() + timeout
        while any(self.positions.get(tp, 0) < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    def _got(self, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        self.history.read(self.name, self._run, partition, offset, value)
        self.positions[partition] = offset + 1


class AiokafkaConsumer(LiveConsumer):
    """aiokafka, on the event loop, classic group protocol."""

    library = "aiokafka"

    def __init__(self, name: str, topics: Sequence[str], history: History) -> None:
        super().__init__(name, topics, history)
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self, bootstrap: str) -> None:
        self._run += 1
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=self.name,
            group_id=self.name,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
        )
        self._consumer.subscribe(self._topics, listener=_Seek(self))
        async with asyncio.timeout(START_TIMEOUT):
            await self._consumer.start()
        self._stopping = False
        self._task = asyncio.create_task(self._poll(self._consumer), name=self.name)

    async def stop(self) -> None:
        if self._task is None:
            return
        self._stopping = True
        task, self._task = self._task, None
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await task
                await self._consumer.stop()
        except TimeoutError:
            raise LiveClientError(f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s") from None

    async def _poll(self, consumer: Any) -> None:
        while not self._stopping:
            try:
                polled = await consumer.getmany(timeout_ms=200, max_records=2000)
            except aiokafka.errors.KafkaError as error:
                self.history.error(self.name, repr(error))
                await asyncio.sleep(0.5)
                continue
            for source, records in polled.items():
                partition = TopicPartition(source.topic, source.partition)
                for record in records:
                    self._got(partition, record.offset, record.value)

    def seek_all(self, assigned: Sequence[Any]) -> None:
        """Go on at the own next offset of each partition."""
        for assigned_partition in assigned:
            position = self.positions.get(
                TopicPartition(assigned_partition.topic, assigned_partition.partition)
            )
            if position is not None:
                self._consumer.seek(assigned_partition, position)


class _Seek(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    def __init__(self, consumer: AiokafkaConsumer) -> None:
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.seek_all(list(assigned))


class LibrdkafkaConsumer(LiveConsumer):
    """confluent-kafka, that is librdkafka, in a thread."""

    library = "librdkafka"

    def __init__(self, name: str, topics: Sequence[str], history: History) -> None:
        super().__init__(name, topics, history)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    async def start(self, bootstrap: str) -> None:
        self._run += 1
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": "10000",
                "fetch.wait.max.ms": "100",
                "error_cb": lambda error: self.history.notice(self.name, str(error)),
            },
            logger=CLIENT_LOG,
        )
        self._stopping.clear()
        self._thread = threading.Thread(target=self._main, args=(consumer,), name=self.name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        if self._thread is None:
            return
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)
        if self._thread.is_alive():
            raise LiveClientError(f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s")
        self._thread = None
        if self._failure is not None:
            raise LiveClientError(f"{self.name} broke: {self._failure!r}") from self._failure

    def _main(self, consumer: Any) -> None:
        try:
            consumer.subscribe(self._topics, on_assign=self._assigned)
            while not self._stopping.is_set():
                for message in consumer.consume(1000, 0.1):
                    error = message.error()
                    if error is not None:
                        self.history.error(self.name, str(error))
                        continue
                    partition = TopicPartition(message.topic(), message.partition())
                    self._got(partition, message.offset(), message.value())
        except Exception as error:
            self.history.error(self.name, repr(error))
            self._failure = error
        finally:
            consumer.close()

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        for assigned in partitions:
            position = self.positions.get(TopicPartition(assigned.topic, assigned.partition))
            if position is not None:
                assigned.offset = position
        consumer.assign(partitions)
