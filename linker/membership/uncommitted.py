"""The end of the metadata log that is fetched but not committed. Pure.

The leader sends an observer all that it has appended (`Isolation.UNCOMMITTED`), including records that the next leader may
never have got. A record counts once it is below the high watermark; until then it waits here as bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from wire.errors import LinkerError, MalformedFrame
from wire.frames.batch import iter_batch_headers


class OffsetGap(LinkerError):
    """Batches that do not continue what was fetched before."""


class _Batch(NamedTuple):
    next_offset: int
    epoch: int
    data: bytes


class UncommittedTail:
    """Batches from `committed_offset` on, without a gap."""

    def __init__(self) -> None:
        self.committed_offset = 0  # after the last batch that was taken
        self._committed_epoch = 0
        self._batches: list[_Batch] = []

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def end_offset(self) -> int:
        """The offset to fetch next."""
        return self._batches[-1].next_offset if self._batches else self.committed_offset

    @property
    def last_epoch(self) -> int:
        """Epoch of the last batch before `end_offset`; 0 at the very beginning, as Kafka wants it."""
        return self._batches[-1].epoch if self._batches else self._committed_epoch

    def append(self, data: bytes) -> None:
        """Keep the whole batches that are new. On an error nothing of `data` is kept."""
        expected = self.end_offset
        batches = []
        for header in iter_batch_headers(data, 0, len(data)):
            if header.next_offset <= expected:
                continue  # an answer begins with the batch that holds the fetch offset, maybe before it
            if not header.crc_ok(data):
                raise MalformedFrame(
                    "a metadata batch with a wrong CRC", api="fetch", offset=header.base_offset
                )
            if header.base_offset > expected:
                raise OffsetGap(f"offset {header.base_offset} follows {expected - 1}")
            expected = header.next_offset
            batches.append(_Batch(expected, header.leader_epoch, data[header.position : header.end]))
        self._batches += batches

    def take_committed(self, high_watermark: int) -> bytes:
        """Take the batches below the high watermark out; they count as committed from now on."""
        count = 0
        while count < len(self._batches) and self._batches[count].next_offset <= high_watermark:
            count += 1
        taken, self._batches = self._batches[:count], self._batches[count:]
        if taken:
            self.committed_offset, self._committed_epoch = taken[-1].next_offset, taken[-1].epoch
        return b"".join(batch.data for batch in taken)

    def truncate(self, epoch: int, end_offset: int) -> int:
        """Drop the batches that the leader does not have, whose log has (epoch, end_offset). Returns how many were dropped.

        `RaftLog.truncateToEndOffset`. 0 means that the logs part among committed batches.
        """
        kept = len(self._batches)
        while kept and (
            self._batches[kept - 1].epoch > epoch or self._batches[kept - 1].next_offset > end_offset
        ):
            kept -= 1
        dropped = len(self._batches) - kept
        del self._batches[kept:]
        return dropped

    def reset(self, offset: int, epoch: int) -> None:
        """Start again at `offset`: the records before it are in a snapshot, the last of them of leader epoch `epoch`."""
        self.committed_offset, self._committed_epoch = offset, epoch
        self._batches = []
