"""Applications that write in transactions, and one that reads what was committed, beside the live clients of a run.

Their records are marked otherwise than those of the live producers, so that the rules about single records do not see
them: what counts here is the transaction. An application begins at the source, is moved before the promote, is told to
try again by the target until then, and goes on after it with the same instance of its library.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import confluent_kafka

from lab.workload.history import History
from lab.workload.live_producers import CLIENT_LOG, FILLER, STOP_TIMEOUT, LiveClientError
from wire.frames.types import TopicPartition

MAGIC = b"txn"
SLICE = 1.0  # of calls that block, so that a thread can be told to give up
TRANSACTION_TIMEOUT_MS = (
    240_000  # longer than any run holds one: what is tested is not the coordinator's patience
)
PAUSE = 0.05


class End(StrEnum):
    """How a transaction ended, as far as its application knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"  # or certainly never asked to be committed
    UNKNOWN = "unknown"  # a commit was asked for, and how that ended nobody told


class Sent(NamedTuple):
    sequence: int
    partition: TopicPartition


@dataclass(slots=True)
class Transaction:
    """One transaction of one application. `offsets` by sequence, as the library was told."""

    producer: str
    records: list[Sent] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    end: End = End.OPEN
    ended: float | None = None


@dataclass(slots=True)
class CommittedRead:
    """A record of a transaction as a reader of committed ones got it."""

    partition: TopicPartition
    offset: int
    producer: str
    sequence: int
    time: float


def make_value(producer: str, sequence: int) -> bytes:
    return b"%s|%s|%d|%s" % (MAGIC, producer.encode(), sequence, FILLER[:60])


def parse(value: bytes | memoryview | None) -> tuple[str, int] | None:
    """Whose record of a transaction it is, and its number; None if it is none."""
    parts = bytes(value or b"")[:300].split(b"|", 3)
    if len(parts) != 4 or parts[0] != MAGIC or not parts[2].isdigit():
        return None
    return parts[1].decode(errors="replace"), int(parts[2])


class _Abandoned(Exception):
    """The application was told to leave its library where it is."""


class TransactionalApplication(ABC):
    """Writes transactions one after the other, over all partitions of a topic; one in so many is aborted on purpose."""

    library: str

    def __init__(
        self, name: str, topic: str, partitions: int, rate: float, history: History, seed: int
    ) -> None:
        self.name = name
        self.history = history
        self.transactions: list[Transaction] = []
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._rate = rate
        self._rng = random.Random(f"{name} {seed}")
        self._next = 0
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self.failure: BaseException | None = None

    async def start(self, bootstrap: str) -> None:
        self._stopping.clear()
        self._abandoned.clear()
        self._thread = threading.Thread(target=self._main, args=(bootstrap,), name=self.name, daemon=True)
        self._thread.start()

    async def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the transaction that is under way, as it was meant to end, and close."""
        self._stopping.set()
        await self._join(timeout)
        if self.failure is not None:
            raise LiveClientError(f"{self.name} broke: {self.failure!r}") from self.failure

    async def abandon(self) -> None:
        """What a crash does: the transaction that is under way is left as it is."""
        self._stopping.set()
        self._abandoned.set()
        await self._join(STOP_TIMEOUT)

    async def move(self, bootstrap: str) -> None:
        await self.stop()
        await self.start(bootstrap)

    async def _join(self, timeout: float) -> None:
        if self._thread is None:
            return
        await asyncio.to_thread(self._thread.join, timeout)
        if self._thread.is_alive():
            raise LiveClientError(f"{self.name} did not stop within {timeout:.0f} s")
        self._thread = None

    def _main(self, bootstrap: str) -> None:
        try:
            while not self._stopping.is_set():
                self._one_instance(bootstrap)
        except _Abandoned:
            pass
        except Exception as error:
            self.failure = error
            self.history.error(self.name, repr(error))
        finally:
            for one in self.transactions:
                if one.end is End.OPEN:
                    one.end = End.ABORTED  # nobody has asked to commit it, and nobody can any more

    def _one_instance(self, bootstrap: str) -> None:
        """Transactions with one instance of the library, until it says that it cannot go on or the application ends."""
        self._connect(bootstrap)
        try:
            while not self._stopping.is_set():
                if not self._one():
                    return
        finally:
            self._close()

    def _one(self) -> bool:
        one = Transaction(self.name)
        wanted = End.ABORTED if self._rng.random() < 0.25 else End.COMMITTED
        self._begin()
        self.transactions.append(one)
        for _ in range(self._rng.randint(2, 3 * len(self._partitions))):
            record = Sent(self._next, self._partitions[self._next % len(self._partitions)])
            self._next += 1
            one.records.append(record)
            self._send(one, record)
            self._check()
            time.sleep(1 / self._rate)
        usable = self._finish(one, wanted)
        one.ended = self.history.clock()
        return usable

    def _check(self) -> None:
        if self._abandoned.is_set():
            raise _Abandoned

    @abstractmethod
    def _connect(self, bootstrap: str) -> None:
        """Until the coordinator has answered."""

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _send(self, one: Transaction, record: Sent) -> None: ...

    @abstractmethod
    def _finish(self, one: Transaction, wanted: End) -> bool:
        """End it, and say in `one.end` how it ended; False if the instance is of no use any more."""

    @abstractmethod
    def _close(self) -> None: ...


class LibrdkafkaTransactions(TransactionalApplication):
    """confluent-kafka, that is librdkafka."""

    library = "librdkafka"

    def _connect(self, bootstrap: str) -> None:
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "transactional.id": self.name,
                "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
                "linger.ms": "5",
                "error_cb": self._told,
            },
            logger=CLIENT_LOG,
        )
        while True:
            try:
                self._producer.init_transactions(SLICE)
                return
            except confluent_kafka.KafkaException as raised:
                self._check()
                if not raised.args[0].retriable():
                    raise

    def _told(self, error: Any) -> None:
        self.history.notice(self.name, str(error))  # each call tells what it means

    def _begin(self) -> None:
        self._producer.begin_transaction()

    def _send(self, one: Transaction, record: Sent) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is None and (message.offset() or 0) >= 0:
                one.offsets[record.sequence] = message.offset()

        try:
            self._producer.produce(
                record.partition.topic,
                make_value(self.name, record.sequence),
                partition=record.partition.partition,
                on_delivery=delivered,
            )
        except confluent_kafka.KafkaException as raised:
            self.history.notice(self.name, str(raised))  # the commit will say so too
        self._producer.poll(0)

    def _finish(self, one: Transaction, wanted: End) -> bool:
        if wanted is End.COMMITTED:
            # From here on the coordinator may commit whatever happens to us.
            one.end = End.UNKNOWN
            error = self._insist(self._producer.commit_transaction)
            if error is None:
                one.end = End.COMMITTED
                return True
            self.history.error(self.name, str(error))
            if not error.txn_requires_abort():
                return False
            aborted = self._insist(self._producer.abort_transaction)
            one.end = End.ABORTED if aborted is None else End.UNKNOWN
            return aborted is None
        one.end = End.ABORTED
        error = self._insist(self._producer.abort_transaction)
        if error is not None:
            self.history.error(self.name, str(error))
        return error is None

    def _insist(self, call: Any) -> Any:
        """Until it is done (None) or cannot be."""
        while True:
            try:
                call(SLICE)
                return None
            except confluent_kafka.KafkaException as raised:
                error = raised.args[0]
                if not error.retriable():
                    return error
            self._check()

    def _close(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        del self._producer


APPLICATIONS: dict[str, type[TransactionalApplication]] = {
    one.library: one for one in (LibrdkafkaTransactions,)
}


class CommittedReader:
    """Reads committed records of all partitions from the start, as long as the run lasts, without a group."""

    def __init__(self, name: str, partitions: Sequence[TopicPartition], history: History) -> None:
        self.name = name
        self.reads: list[CommittedRead] = []
        #: How far it has got, markers and aborted records included.
        self.reached: dict[TopicPartition, int] = {}
        self._partitions = list(partitions)
        self._history = history
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    async def start(self, bootstrap: str) -> None:
        self._thread = threading.Thread(target=self._main, args=(bootstrap,), name=self.name, daemon=True)
        self._thread.start()

    async def read_up_to(self, ends: dict[TopicPartition, int], timeout: float) -> bool:
        """Wait until everything below these offsets was passed; False if it was not in time."""
        deadline = time.monotonic() + timeout
        while any(self.reached.get(tp, 0) < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(PAUSE)
        return True

    async def stop(self) -> None:
        if self._thread is None:
            return
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)
        if self._thread.is_alive():
            raise LiveClientError(f"{self.name} did not stop within {STOP_TIMEOUT:.0f} s")
        self._thread = None

    def _main(self, bootstrap: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "group.id": self.name,
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "100",
                "error_cb": lambda error: self._history.notice(self.name, str(error)),
            },
            logger=CLIENT_LOG,
        )
        try:
            consumer.assign(
                [confluent_kafka.TopicPartition(tp.topic, tp.partition, 0) for tp in self._partitions]
            )
            while not self._stopping.is_set():
                for message in consumer.consume(1000, 0.1):
                    self._take(message)
        except Exception as error:
            self._history.error(self.name, repr(error))
        finally:
            consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        partition = TopicPartition(message.topic(), message.partition())
        if error is not None:
            if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self.reached[partition] = message.offset()
            else:
                self._history.notice(self.name, str(error))
            return
        self.reached[partition] = message.offset() + 1
        whose = parse(message.value())
        if whose is not None:
            self.reads.append(CommittedRead(partition, message.offset(), *whose, self._history.clock()))
