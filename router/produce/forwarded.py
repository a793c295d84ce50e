"""Counts the records and bytes that the source has taken of this router, per partition: one small entry each."""

from __future__ import annotations

from dataclasses import dataclass

from wire.frames.batch_fields import read_last_offset_delta
from wire.frames.types import Buffer, TopicPartition


@dataclass(slots=True)
class Forwarded:
    """Since this process began. `end`: one more than the highest offset that was acknowledged."""

    end: int = 0
    offsets: int = 0


class ForwardedBook:
    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, Forwarded] = {}

    def note(self, tp: TopicPartition, base_offset: int, records: Buffer) -> None:
        """The source acknowledged this batch, which it appended at `base_offset`."""
        found = self._by_partition.get(tp)
        if found is None:
            found = self._by_partition[tp] = Forwarded()
        count = read_last_offset_delta(records)[0] + 1
        found.offsets += count
        found.end = max(found.end, base_offset + count)

    def get(self, tp: TopicPartition) -> Forwarded | None:
        """None where nothing was forwarded."""
        return self._by_partition.get(tp)
