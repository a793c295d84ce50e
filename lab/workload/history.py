"""The clients' acts and observations: the only input of the checker besides the final logs.

Every record of a live producer says who wrote it and as which number of that producer (its *sequence*: the
order in which the application handed it to the client, over all partitions, never re-used). Outcomes are ok,
fail and unknown; a record without an outcome is unknown. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import NamedTuple

from wire.frames.types import TopicPartition

MAGIC = b"live"


class Outcome(Enum):
    """How a send ended that did not end with an acknowledgement."""

    FAIL = "fail"  # certainly not written: it never left the client
    UNKNOWN = "unknown"  # the client gave up; it may be in the log or not


class Ack(NamedTuple):
    """An acknowledged record; offset None if the broker only said that it had it already."""

    producer: str
    sequence: int
    partition: TopicPartition
    offset: int | None
    time: float


class Unacked(NamedTuple):
    """A send that the client reported as failed."""

    producer: str
    sequence: int
    partition: TopicPartition
    outcome: Outcome
    error: str
    time: float


class ClientError(NamedTuple):
    """Any other error that reached an application."""

    client: str
    error: str
    time: float


class Read(NamedTuple):
    """A record as a consumer got it; producer None if it is not one of a live producer."""

    consumer: str
    run: int  # counts the consumer's starts: positions only have to advance within one
    partition: TopicPartition
    offset: int
    producer: str | None
    sequence: int
    time: float


class Mark(NamedTuple):
    """A moment worth naming."""

    name: str
    time: float


@dataclass
class History:
    """Filled by clients of several threads: every method is one list append."""

    clock: Callable[[], float] = monotonic
    sends: dict[str, list[TopicPartition]] = field(default_factory=dict)  # producer -> partition by sequence
    acks: list[Ack] = field(default_factory=list)
    unacked: list[Unacked] = field(default_factory=list)
    errors: list[ClientError] = field(default_factory=list)
    notices: list[ClientError] = field(default_factory=list)  # told to the application for its information
    reads: list[Read] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def next_sequence(self, producer: str, partition: TopicPartition) -> int:
        """Note that the producer is about to send to the partition; the number of that record."""
        sends = self.sends.setdefault(producer, [])
        sends.append(partition)
        return len(sends) - 1

    def ack(self, producer: str, sequence: int, partition: TopicPartition, offset: int | None) -> None:
        known = offset if offset is not None and offset >= 0 else None
        self.acks.append(Ack(producer, sequence, partition, known, self.clock()))

    def not_acked(
        self, producer: str, sequence: int, partition: TopicPartition, outcome: Outcome, error: str
    ) -> None:
        self.unacked.append(Unacked(producer, sequence, partition, outcome, error, self.clock()))

    def error(self, client: str, error: str) -> None:
        self.errors.append(ClientError(client, error, self.clock()))

    def notice(self, client: str, text: str) -> None:
        self.notices.append(ClientError(client, text, self.clock()))

    def read(
        self, consumer: str, run: int, partition: TopicPartition, offset: int, value: bytes | None
    ) -> None:
        producer, sequence = parse_identity(value) or (None, -1)
        self.reads.append(Read(consumer, run, partition, offset, producer, sequence, self.clock()))

    def mark(self, name: str) -> float:
        mark = Mark(name, self.clock())
        self.marks.append(mark)
        return mark.time

    def pending(self) -> int:
        """Sends without an outcome so far."""
        return sum(map(len, self.sends.values())) - len(self.acks) - len(self.unacked)


def make_value(producer: str, sequence: int, filler: bytes = b"") -> bytes:
    """The value of a live producer's record."""
    return b"%s|%s|%d|%s" % (MAGIC, producer.encode(), sequence, filler)


def parse_identity(value: bytes | memoryview | None) -> tuple[str, int] | None:
    """The writer of a value and its number there; None if no live producer wrote it."""
    if value is None or bytes(value[: len(MAGIC)]) != MAGIC:
        return None
    parts = bytes(value[:300]).split(b"|", 3)
    if len(parts) != 4 or not parts[2].isdigit():
        return None
    return parts[1].decode(errors="replace"), int(parts[2])


class LogRecord(NamedTuple):
    """One record of a final log that a live producer wrote."""

    offset: int
    producer: str
    sequence: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The final log of one partition as far as live producers are concerned."""

    start: int  # log start offset: what lies below is lawfully gone
    end: int  # log end offset
    records: Sequence[LogRecord]  # in log order
