"""A replica as it lies on a broker's disk: its `.log` segments as batches, records and log start offset.

Reads only, from files that a running broker may be appending to: a batch that is not whole yet is left out.
Comparing replicas is log_compare.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wire.errors import LinkerError
from wire.frames.batch import BatchHeader, Record, iter_batch_headers, iter_records
from wire.frames.types import TopicPartition

CONTROL_ABORT = 0
LEADER_EPOCH = slice(12, 16)  # within a batch; the only bytes that a mirror changes


class ReplicaError(LinkerError):
    """A replica's files are not what a broker would have written."""


class Batch(NamedTuple):
    """One batch and the bytes of the segment that it lies in."""

    header: BatchHeader
    segment: bytes
    path: Path

    @property
    def before_epoch(self) -> bytes:
        """Base offset and length."""
        return self.segment[self.header.position : self.header.position + LEADER_EPOCH.start]

    @property
    def after_epoch(self) -> memoryview:
        """Everything that its CRC covers, magic and CRC: all that has to be identical."""
        return memoryview(self.segment)[self.header.position + LEADER_EPOCH.stop : self.header.end]

    def records(self) -> Iterator[Record]:
        """The records, decompressed."""
        return iter_records(self.segment, self.header)


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The segments of one replica."""

    directory: Path
    start: int  # log start offset
    segments: tuple[Path, ...]

    def batches(self) -> Iterator[Batch]:
        """Batches in log order, those below the log start left out, CRCs checked."""
        expected = -1
        for path in self.segments:
            data = path.read_bytes()
            for header in iter_batch_headers(data, 0, len(data)):
                if header.base_offset < expected:
                    raise ReplicaError(
                        f"{path} byte {header.position}: offset {header.base_offset} after {expected - 1}"
                    )
                if not header.crc_ok(data):
                    raise ReplicaError(
                        f"{path} byte {header.position}: CRC of offset {header.base_offset} is wrong"
                    )
                expected = header.next_offset
                if header.last_offset >= self.start:
                    yield Batch(header, data, path)

    def end(self) -> int:
        """Log end offset."""
        end = self.start
        for batch in self.batches():
            end = batch.header.next_offset
        return end


def open_replica(log_dir: Path, partition: TopicPartition) -> ReplicaLog:
    """The replica of a partition in a broker's log directory."""
    directory = log_dir / f"{partition.topic}-{partition.partition}"
    if not directory.is_dir():
        raise ReplicaError(f"{log_dir} holds no replica of {partition.topic}-{partition.partition}")
    segments = tuple(sorted(directory.glob("*.log")))  # names are zero-padded base offsets
    if not segments:
        raise ReplicaError(f"{directory} holds no segment")
    start = max(int(segments[0].stem), _checkpoint(log_dir / "log-start-offset-checkpoint").get(partition, 0))
    return ReplicaLog(directory, start, segments)


def cleaned_until(log_dir: Path, partition: TopicPartition) -> int:
    """How far the log cleaner has come, 0 if it never ran."""
    return _checkpoint(log_dir / "cleaner-offset-checkpoint").get(partition, 0)


def _checkpoint(path: Path) -> dict[TopicPartition, int]:
    """A broker's checkpoint file: version, number of entries, then `topic partition offset` lines."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split()
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets
