"""Data of the source cluster before anything is linked: one topic for each thing that real topics hold.

Every compression codec, headers, null keys and values, an empty partition, a record of 900 kB, committed and
aborted transactions that overlap, and compaction gaps. Clients that go on writing are in live_producers.py.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lab.workload.replica_log import cleaned_until, open_replica
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE_RECORD_BYTES = 900_000
SMALLEST_SEGMENT = 1 << 20  # Kafka 4 allows no smaller one
TIMEOUT = 60.0
YEAR_MS = 365 * 86_400_000

log = logging.getLogger(__name__)


class SourceDataError(LinkerError):
    """The source could not be filled."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic to be created at the source."""

    name: str
    partitions: int
    fill: Callable[[SourceFiller, SourceTopic], None]
    configs: Mapping[str, str] = field(default_factory=dict)
    live: bool = False  # clients go on writing to it

    @property
    def compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, index) for index in range(self.partitions)]


class SourceFiller:
    """Creates and fills topics; blocking, to be run in a thread."""

    def __init__(self, bootstrap: str, *, scale: float = 1.0) -> None:
        self._client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
        self._scale = scale
        self._random = random.Random(1)
        self._errors: list[str] = []
        self._producers: dict[str, Any] = {}

    def create(self, topics: Sequence[SourceTopic], replication_factor: int) -> None:
        """Create all topics at once and wait until each partition has a leader."""
        new = [NewTopic(t.name, t.partitions, replication_factor, config=dict(t.configs)) for t in topics]
        # A client that was told of a broker that has just gone, as the one to send this to, waits for that one.
        for again in (True, False):
            admin = AdminClient(self._client, logger=log)
            errors: dict[str, KafkaException] = {}
            created = admin.create_topics(new, operation_timeout=TIMEOUT / 2, request_timeout=TIMEOUT / 2)
            for name, future in created.items():
                try:
                    future.result(TIMEOUT)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or again:
                        errors[name] = error
            if {one.args[0].name() for one in errors.values()} != {"_TIMED_OUT"}:
                break
        for name, failure in errors.items():
            raise SourceDataError(f"cannot create topic {name} at the source: {failure}") from failure
        deadline = time.monotonic() + TIMEOUT
        wanted = {tp for topic in topics for tp in topic.topic_partitions()}
        while wanted:
            seen = admin.list_topics(timeout=10).topics
            wanted = {
                tp
                for tp in wanted
                if tp.topic not in seen
                or tp.partition not in seen[tp.topic].partitions
                or seen[tp.topic].partitions[tp.partition].leader < 0
            }
            if wanted and time.monotonic() > deadline:
                raise SourceDataError(f"partitions without a leader at the source: {sorted(wanted)[:5]}")
            time.sleep(0.05 if wanted else 0)

    def fill(self, topics: Sequence[SourceTopic], progress: Callable[[str], None] | None = None) -> None:
        """Write what each topic is to hold."""
        for topic in topics:
            topic.fill(self, topic)
            if self._errors:
                raise SourceDataError(f"writing to {topic.name} at the source failed: {self._errors[0]}")
            if progress:
                progress(topic.name)
        self._producers.clear()

    # Fillings of a topic; see TOPICS.

    def mixed(self, topic: SourceTopic) -> None:
        """One codec per partition; headers, null keys and values in between; the last one stays empty."""
        for partition, codec in zip(range(topic.partitions - 1), cycle(CODECS), strict=False):
            producer = self._shared(codec)
            for number in range(self._count(1500)):
                key = None if number % 7 == 0 else b"key-%d" % (number % 100)
                value = None if number % 11 == 0 else self._text(number, 40 + number % 400)
                headers = (
                    [("trace", b"%d" % number), ("empty", b""), ("null", None)] if number % 3 == 0 else None
                )
                self._send(producer, topic.name, partition, key, value, headers)
        self._flush_all()

    def history(self, topic: SourceTopic) -> None:
        """Something that was there before the live clients came, a third of it since last year."""
        old, count = last_year(), self._count(300)
        for partition, codec in zip(range(topic.partitions), cycle(CODECS), strict=False):
            producer = self._shared(codec)
            for number in range(count):
                at = old + number if number < count // 3 else 0
                self._send(
                    producer, topic.name, partition, b"key-%d" % number, self._text(number, 120), None, at
                )
        self._flush_all()

    def archive(self, topic: SourceTopic) -> None:
        """All of it of last year: what a cluster that keeps for a week deletes wholly."""
        producer, old = self._shared("zstd"), last_year()
        for partition in range(topic.partitions):
            for number in range(self._count(500)):
                self._send(
                    producer,
                    topic.name,
                    partition,
                    b"%d" % number,
                    self._text(number, 100),
                    None,
                    old + number,
                )
        self._flush_all()

    def large(self, topic: SourceTopic) -> None:
        """A record that is nearly as large as a broker takes, in the middle of small ones."""
        producer = self._producer("none", {"message.max.bytes": "1000000"})
        for partition in range(topic.partitions):
            for number in range(5):
                self._send(producer, topic.name, partition, b"small", self._text(number, 100), None)
            if partition == 0:
                self._flush(producer)
                self._send(
                    producer,
                    topic.name,
                    partition,
                    b"large",
                    self._random.randbytes(LARGE_RECORD_BYTES),
                    None,
                )
                self._flush(producer)
                self._send(producer, topic.name, partition, b"after", b"the large one", None)
        self._flush(producer)

    def transactions(self, topic: SourceTopic) -> None:
        """Transactions of two producers that overlap; one in three is aborted; plain records between them."""
        plain = self._shared("lz4")
        pair = [
            self._producer("zstd" if index else "none", {"transactional.id": f"{topic.name}-{index}"})
            for index in range(2)
        ]
        for producer in pair:
            producer.init_transactions(TIMEOUT)
        for number in range(self._count(20)):
            for producer in pair:
                producer.begin_transaction()
            for record in range(8):
                partition = (number + record) % topic.partitions
                for index, producer in enumerate(pair):
                    value = b"transaction %d of %d record %d" % (number, index, record)
                    self._send(producer, topic.name, partition, b"key", value, None)
                self._send(plain, topic.name, partition, None, b"plain %d" % record, None)
            self._flush(plain)
            for index, producer in enumerate(pair):
                if (number + index) % 3 == 0:
                    producer.flush(TIMEOUT)  # else nothing of it would reach the log
                    producer.abort_transaction(TIMEOUT)
                else:
                    producer.commit_transaction(TIMEOUT)

    def compacted(self, topic: SourceTopic) -> None:
        """So many versions of few keys that segments roll and the cleaner leaves gaps; some are deleted."""
        producer = self._shared("none")
        per_partition = 3 * SMALLEST_SEGMENT // 1000
        for number in range(per_partition):
            for partition in range(topic.partitions):
                key = b"account-%d" % self._random.randrange(50)
                value = None if number % 97 == 0 else self._random.randbytes(1000)
                self._send(producer, topic.name, partition, key, value, None)
        self._flush(producer)

    def wait_compacted(
        self, topic: SourceTopic, log_dirs: Mapping[int, Path], timeout: float = TIMEOUT
    ) -> int:
        """Wait until the leader's cleaner left gaps in each partition; how many offsets are gone."""
        metadata = (
            AdminClient(self._client, logger=log).list_topics(topic.name, timeout=10).topics[topic.name]
        )
        deadline = time.monotonic() + timeout
        gone = 0
        for partition in topic.topic_partitions():
            log_dir = log_dirs[metadata.partitions[partition.partition].leader]
            while cleaned_until(log_dir, partition) == 0:
                if time.monotonic() > deadline:
                    raise SourceDataError(f"the cleaner did not get to {partition} within {timeout:.0f} s")
                time.sleep(0.1)
            replica = open_replica(log_dir, partition)
            held = sum(batch.header.record_count for batch in replica.batches())
            gone += replica.end() - replica.start - held
        return gone

    def _producer(self, codec: str, more: Mapping[str, str] | None = None) -> Any:
        return Producer(
            {
                **self._client,
                "acks": "all",
                "enable.idempotence": "true",
                "compression.type": codec,
                "linger.ms": "5",
                "batch.num.messages": "200",
                **(more or {}),
            },
            logger=log,
        )

    def _shared(self, codec: str) -> Any:
        """One producer per codec: each costs half a second until it has its producer id."""
        if codec not in self._producers:
            self._producers[codec] = self._producer(codec)
        return self._producers[codec]

    def _flush_all(self) -> None:
        for producer in self._producers.values():
            self._flush(producer)

    def _send(
        self,
        producer: Any,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        timestamp: int = 0,
    ) -> None:
        """`timestamp`: ms since 1970; 0: now."""
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=self._delivered,
                    timestamp=timestamp,
                    headers=headers or [],
                )
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        # An abort purges what is still queued; everything else is a failure.
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:  # noqa: SLF001 - that is its public name
            self._errors.append(str(error))

    def _flush(self, producer: Any) -> None:
        left = producer.flush(TIMEOUT)
        if left:
            raise SourceDataError(
                f"{left} records were not acknowledged by the source within {TIMEOUT:.0f} s"
            )

    def _count(self, records: int) -> int:
        return max(3, int(records * self._scale))

    def _text(self, number: int, size: int) -> bytes:
        words = b"%d the quick brown fox jumps over the lazy dog " % number
        return (words * (size // len(words) + 1))[:size]


def last_year() -> int:
    """A moment a year ago, in ms since 1970."""
    return int(time.time() * 1000) - YEAR_MS


LIVE_TOPICS = (
    SourceTopic("orders", 6, SourceFiller.history, live=True),
    SourceTopic("payments", 12, SourceFiller.history, live=True),
    SourceTopic("audit", 3, SourceFiller.history, live=True),
)
TOPICS = (
    *LIVE_TOPICS,
    SourceTopic("events", 6, SourceFiller.mixed),
    SourceTopic("ledger", 4, SourceFiller.transactions),
    SourceTopic("documents", 3, SourceFiller.large),
    SourceTopic("archive", 3, SourceFiller.archive),
    SourceTopic(
        "accounts",
        3,
        SourceFiller.compacted,
        {
            "cleanup.policy": "compact",
            "segment.bytes": str(SMALLEST_SEGMENT),
            "min.cleanable.dirty.ratio": "0.01",
            "min.compaction.lag.ms": "0",
        },
    ),
)
