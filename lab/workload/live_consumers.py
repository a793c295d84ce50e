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

from lab.workload.history import History
from lab.workload.live_producers import CLIENT_LOG, START_TIMEOUT, STOP_TIMEOUT, LiveClientError
from wire.frames.types import TopicPartition

COMMIT_INTERVAL = 1.0
COMMIT_TIMEOUT = 10.0


class LiveConsumer(ABC):
    """One member of a consumer group, which goes on wherever its group's committed offsets say. It commits every second,
    when its partitions are taken, and when it stops: as applications do.
    """

    library: str

    def __init__(self, name: str, topics: Sequence[str], history: History, group: str | None = None) -> None:
        self.name = name
        self.group = group or name
        self.history = history
        self.positions: dict[TopicPartition, int] = {}
        self._topics = list(topics)
        #: How often it was given partitions: only within one assignment do positions have to advance without a gap.
        self.assignments = 0

    @abstractmethod
    async def start(self, bootstrap: str, *, held: bool = False) -> None:
        """Subscribe and begin to read. With `held` do not wait for its partitions: they come when the group is let in."""

    @abstractmethod
    async def stop(self) -> None:
        """Commit, leave the group and close."""

    async def move(self, bootstrap: str, *, held: bool = False) -> None:
        """Stop, and start at the other cluster."""
        await self.stop()
        await self.start(bootstrap, held=held)

    async def read_up_to(self, ends: Mapping[TopicPartition, int], timeout: float) -> bool:
        """Wait until everything below these offsets was read; False if it was not in time."""
        return await read_up_to([self], ends, timeout)

    def _got(self, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        self.history.read(self.name, self.assignments, partition, offset, value)
        self.positions[partition] = offset + 1


async def read_up_to(
    members: Sequence[LiveConsumer], ends: Mapping[TopicPartition, int], timeout: float
) -> bool:
    """The same for all members of a group together."""
    deadline = time.monotonic() + timeout
    while any(max(one.positions.get(tp, 0) for one in members) < end for tp, end in ends.items()):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


class AiokafkaConsumer(LiveConsumer):
    """aiokafka, on the event loop, classic group protocol.

    It commits by itself here. aiokafka's own last commit, inside stop(), never ends if the coordinator refuses it: a
    consumer that is being closed looks for no coordinator any more (GroupCoordinator.ensure_coordinator_known), and its
    commit is tried again for ever (commit_offsets), with GroupCoordinatorNotAvailableError each time.
    """

    library = "aiokafka"

    def __init__(self, name: str, topics: Sequence[str], history: History, group: str | None = None) -> None:
        super().__init__(name, topics, history, group)
        self._task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._stopping = False

    async def start(self, bootstrap: str, *, held: bool = False) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=self.name,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
        )
        consumer.subscribe(self._topics, listener=_Assignments(self, consumer))
        self._stopping = False
        self._started = asyncio.Event()
        self._task = asyncio.create_task(self._main(consumer), name=self.name)
        if not held:
            await self._wait_started(self._task)

    async def _wait_started(self, task: asyncio.Task[None]) -> None:
        started = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait({started, task}, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if task.done():
            task.result()
        if not self._started.is_set():
            raise LiveClientError(f"{self.name} has no partitions after {START_TIMEOUT:.0f} s")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._stopping = True
        task, self._task = self._task, None
        if not self._started.is_set():
            task.cancel()  # it waits to be let into its group
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await asyncio.gather(task, return_exceptions=True)
        except TimeoutError:
            raise LiveClientError(f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s") from None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise LiveClientError(f"{self.name} broke: {error!r}") from error

    async def _main(self, consumer: Any) -> None:
        try:
            await consumer.start()  # returns when the group gave it partitions, maybe none
            self._started.set()
            await self._poll(consumer)
            await self.commit(consumer)
        finally:
            await consumer.stop()

    async def commit(self, consumer: Any) -> None:
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT):
                await consumer.commit()
        except (aiokafka.errors.KafkaError, aiokafka.errors.IllegalOperation, TimeoutError) as error:
            self.history.notice(self.name, f"commit: {error!r}")

    async def _poll(self, consumer: Any) -> None:
        commit_at = time.monotonic()
        while not self._stopping:
            if time.monotonic() >= commit_at:
                commit_at = time.monotonic() + COMMIT_INTERVAL
                await self.commit(consumer)
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

    def assigned(self) -> None:
        self.assignments += 1


class _Assignments(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    def __init__(self, live: AiokafkaConsumer, consumer: Any) -> None:
        self._live = live
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Any) -> None:
        if revoked:
            await self._live.commit(self._consumer)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._live.assigned()


class LibrdkafkaConsumer(LiveConsumer):
    """confluent-kafka, that is librdkafka, in a thread."""

    library = "librdkafka"

    def __init__(self, name: str, topics: Sequence[str], history: History, group: str | None = None) -> None:
        super().__init__(name, topics, history, group)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    async def start(self, bootstrap: str, *, held: bool = False) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": "1000",
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

    def _assigned(self, _consumer: Any, _partitions: Sequence[Any]) -> None:
        self.assignments += 1
