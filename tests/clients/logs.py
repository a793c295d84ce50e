"""What a topic holds in the end, as a reader of committed records gets it."""

from __future__ import annotations

import logging
import time

import confluent_kafka

from lab.workload.history import LogRecord, PartitionLog, parse_identity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

TIMEOUT = 60.0
log = logging.getLogger(__name__)


class LogError(LinkerError):
    """A topic could not be read to its end."""


def committed_logs(bootstrap: str, topic: str, partitions: int) -> dict[TopicPartition, PartitionLog]:
    """Live producers' records of every partition; aborted ones are not in it. Blocking."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "final-logs",  # never used: nothing is subscribed or committed
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        },
        logger=log,
    )
    try:
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING)
                for p in range(partitions)
            ]
        )
        records: dict[int, list[LogRecord]] = {p: [] for p in range(partitions)}
        ends: dict[int, int] = {}
        deadline = time.monotonic() + TIMEOUT
        while len(ends) < partitions:
            if time.monotonic() > deadline:
                raise LogError(f"{topic} could not be read to its end within {TIMEOUT:.0f} s")
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    identity = parse_identity(message.value())
                    if identity is not None:
                        records[message.partition()].append(LogRecord(message.offset(), *identity))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends[message.partition()] = message.offset()
                elif not error.retriable():
                    raise LogError(f"{topic}-{message.partition()}: {error}")
        starts = {
            p: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, p))[0] for p in ends
        }
    finally:
        consumer.close()
    return {TopicPartition(topic, p): PartitionLog(starts[p], ends[p], records[p]) for p in ends}
