"""Idempotent producers that run all the time, of several libraries, all into one history.

A rolling move is a clean stop and a start with other `bootstrap.servers`; a producer keeps its identity over
it. None retries by itself what its library reported as failed: each sequence is handed to the library once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka

from lab.workload.history import History, Outcome, make_value
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

FILLER = b"the quick brown fox jumps over the lazy dog " * 4
TICK = 0.01
CLIENT_LOG = logging.getLogger("lab.demo.clients")  # what librdkafka would print by itself
STOP_TIMEOUT = 60.0
START_TIMEOUT = 60.0


class LiveClientError(LinkerError):
    """A client could not be started or stopped: a failure of the demonstration, not of a record."""


class LiveProducer(ABC):
    """One application that writes at a steady rate, round robin over the partitions of one topic, or of several with as
    many each."""

    library: str

    def __init__(self, name: str, topic: str, partitions: int, rate: float, history: History) -> None:
        """`topic`: one name, or several with commas between them."""
        self.name = name
        self.history = history
        self._partitions = [
            TopicPartition(one, index) for index in range(partitions) for one in topic.split(",")
        ]
        self._turn = 0
        self._rate = rate

    @abstractmethod
    async def start(self, bootstrap: str) -> None:
        """Connect and begin to write."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop writing, wait for every outcome, close."""

    async def move(self, bootstrap: str) -> None:
        """As a rolling restart does to one instance: only `bootstrap.servers` changes."""
        await self.stop()
        await self.start(bootstrap)

    def _next(self) -> tuple[TopicPartition, int, bytes]:
        partition = self._partitions[self._turn % len(self._partitions)]
        self._turn += 1
        sequence = self.history.next_sequence(self.name, partition)
        return partition, sequence, make_value(self.name, sequence, FILLER)


class AiokafkaProducer(LiveProducer):
    """aiokafka, on the event loop."""

    library = "aiokafka"

    def __init__(self, name: str, topic: str, partitions: int, rate: float, history: History) -> None:
        super().__init__(name, topic, partitions, rate, history)
        self._producer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self, bootstrap: str) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=self.name,
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            compression_type="gzip",
            request_timeout_ms=60_000,
        )
        async with asyncio.timeout(START_TIMEOUT):
            await self._producer.start()
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        if self._task is None:
            return
        self._stopping = True
        task, self._task = self._task, None
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await task
                await self._producer.flush()
                await self._producer.stop()
        except TimeoutError:
            raise LiveClientError(f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s") from None

    async def _run(self) -> None:
        started, sent = time.monotonic(), 0
        while not self._stopping:
            due = int((time.monotonic() - started) * self._rate) - sent
            for _ in range(min(due, 100)):
                await self._send(*self._next())
                sent += 1
            await asyncio.sleep(TICK)

    async def _send(self, partition: TopicPartition, sequence: int, value: bytes) -> None:
        try:
            future = await self._producer.send(
                partition.topic, value, key=b"%d" % sequence, partition=partition.partition
            )
        except aiokafka.errors.KafkaError as error:
            self.history.not_acked(self.name, sequence, partition, Outcome.UNKNOWN, repr(error))
            return
        future.add_done_callback(lambda done: self._done(done, partition, sequence))

    def _done(self, future: Any, partition: TopicPartition, sequence: int) -> None:
        if future.cancelled():
            self.history.not_acked(self.name, sequence, partition, Outcome.UNKNOWN, "cancelled")
        elif future.exception() is not None:
            self.history.not_acked(self.name, sequence, partition, Outcome.UNKNOWN, repr(future.exception()))
        else:
            self.history.ack(self.name, sequence, partition, future.result().offset)


class ThreadedProducer(LiveProducer):
    """A producer whose library blocks: it gets a thread of its own."""

    def __init__(self, name: str, topic: str, partitions: int, rate: float, history: History) -> None:
        super().__init__(name, topic, partitions, rate, history)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    async def start(self, bootstrap: str) -> None:
        await asyncio.to_thread(self._connect, bootstrap)
        self._stopping.clear()
        self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        if self._thread is None:
            return
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)
        if self._thread.is_alive():
            raise LiveClientError(f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s")
        self._thread = None
        await asyncio.to_thread(self._close)
        if self._failure is not None:
            raise LiveClientError(f"{self.name} broke: {self._failure!r}") from self._failure

    def _main(self) -> None:
        try:
            started, sent = time.monotonic(), 0
            while not self._stopping.is_set():
                due = int((time.monotonic() - started) * self._rate) - sent
                for _ in range(min(due, 100)):
                    self._send(*self._next())
                    sent += 1
                self._idle(TICK)
        except Exception as error:
            self.history.error(self.name, repr(error))
            self._failure = error

    @abstractmethod
    def _connect(self, bootstrap: str) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _send(self, partition: TopicPartition, sequence: int, value: bytes) -> None: ...

    def _idle(self, seconds: float) -> None:
        time.sleep(seconds)


class LibrdkafkaProducer(ThreadedProducer):
    """confluent-kafka, that is librdkafka."""

    library = "librdkafka"

    def _connect(self, bootstrap: str) -> None:
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "acks": "all",
                "enable.idempotence": "true",
                "linger.ms": "5",
                "compression.type": "lz4",
                "delivery.timeout.ms": "120000",
                "error_cb": self._told,
            },
            logger=CLIENT_LOG,
        )

    def _told(self, error: Any) -> None:
        # librdkafka calls this "informational" unless it is fatal: it goes on by itself.
        (self.history.error if error.fatal() else self.history.notice)(self.name, str(error))

    def _send(self, partition: TopicPartition, sequence: int, value: bytes) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.history.not_acked(self.name, sequence, partition, Outcome.UNKNOWN, str(error))
            else:
                self.history.ack(self.name, sequence, partition, message.offset())

        while True:
            try:
                self._producer.produce(
                    partition.topic, value, b"%d" % sequence, partition.partition, on_delivery=delivered
                )
            except BufferError:  # its queue is full; not one byte was taken
                self._producer.poll(0.05)
            else:
                break

    def _idle(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def _close(self) -> None:
        left = self._flush()
        if left:
            raise LiveClientError(
                f"{self.name}: {left} records without an outcome after {STOP_TIMEOUT:.0f} s"
            )
        del self._producer

    def _flush(self) -> int:
        """How many records are left without an outcome. With a fatal error that comes meanwhile, confluent-kafka ends the
        call with a SystemError; what it had still to tell it tells at the next one."""
        for _ in range(3):
            with contextlib.suppress(SystemError):
                return int(self._producer.flush(STOP_TIMEOUT))
        return len(self._producer)


class KafkaPythonProducer(ThreadedProducer):
    """kafka-python."""

    library = "kafka-python"

    def _connect(self, bootstrap: str) -> None:
        self._producer: Any = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=self.name,
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            max_block_ms=60_000,
        )

    def _send(self, partition: TopicPartition, sequence: int, value: bytes) -> None:
        def failed(error: BaseException) -> None:
            self.history.not_acked(self.name, sequence, partition, Outcome.UNKNOWN, repr(error))

        def acked(metadata: Any) -> None:
            self.history.ack(self.name, sequence, partition, metadata.offset)

        future = self._producer.send(
            partition.topic, value=value, key=b"%d" % sequence, partition=partition.partition
        )
        future.add_callback(acked)
        future.add_errback(failed)

    def _close(self) -> None:
        self._producer.flush(timeout=STOP_TIMEOUT)
        self._producer.close(timeout=STOP_TIMEOUT)
