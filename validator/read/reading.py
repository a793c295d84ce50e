"""A span that is being read: which node is asked, for how much of it, and what an answer brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from validator.read.spans import SpanCursor, Walked
from wire.client.connection import Connection
from wire.frames.fetch import FetchedPartition

LARGEST_BATCH = 64 << 20
"""Above it a batch is fetched alone."""


class SpanReading:
    """A span that is being read, and the node to ask."""

    def __init__(self, cursor: SpanCursor) -> None:
        self.cursor = cursor
        self.node = cursor.span.node
        self.refused = 0
        self.density = 0.0  # bytes per offset of the last answer
        self.asked = 0  # bytes that the answer may have
        self.at_least = 1  # grows while a batch does not fit into an answer

    def limit(self, share: int) -> int:
        """Bytes to ask for: not much more than what is left of the span, which is others' to read."""
        if self.density:
            left = (self.cursor.span.end - self.cursor.position) * self.density * 1.1
            share = min(share, int(left) + (16 << 10))
        self.asked = max(share, self.at_least)
        return self.asked

    def take(self, frame: memoryview, start: int, end: int) -> Walked:
        """Walk an answer's records."""
        before = self.cursor.position
        walked = self.cursor.walk(frame, start, end)
        moved = self.cursor.position - before
        if moved > 0:
            self.density = (end - start) / moved
        elif walked.cut or (end - start >= self.asked and self.asked):
            # a second batch did not fit; alone Kafka sends one whatever its size
            self.cursor.exact = self.at_least > LARGEST_BATCH
            self.at_least = max(2 * (end - start), self.at_least)
        return walked


@dataclass(slots=True)
class ReadAnswer:
    """One response and what was asked."""

    connection: Connection
    frame: memoryview
    partitions: Sequence[FetchedPartition]
    asked: dict[tuple[str, int], SpanReading]

    def take(self) -> list[tuple[SpanReading, Walked]]:
        """Walk the records of every partition that answered well."""
        taken = []
        for part in self.partitions:
            reading = self.asked.get((str(part.key), part.index))
            if reading is None or part.error or reading.cursor.done:
                continue
            taken.append((reading, reading.take(self.frame, part.records_start, part.records_end)))
        return taken
