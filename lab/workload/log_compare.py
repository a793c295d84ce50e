"""Whether a target replica holds the source's log: batch by batch, or by records where logs are compacted.

Bytes have to be identical but for the leader epoch; where segments begin and end is each broker's own
business. A target that starts later than the source lacks what the source has before: a difference. In a
compacted topic each cluster's cleaner lawfully rewrites closed segments, so there the records that both
still hold have to be equal, and the last value of every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from lab.workload.replica_log import CONTROL_ABORT, Batch, ReplicaLog
from wire.frames.types import TopicPartition


class Comparison(StrEnum):
    """How two logs were compared."""

    BYTES = "bytes"
    RECORDS = "records"  # compacted topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaComparison:
    """The result for one replica."""

    partition: TopicPartition
    broker: int
    comparison: Comparison
    start: int  # first offset compared
    end: int  # first offset not compared: the source's log end offset unless another was given
    batches: int
    compared_bytes: int
    offsets_identical: bool
    identical: bool  # bytes or, in a compacted topic, records
    difference: str | None  # the first one


class _Content(NamedTuple):
    """A record apart from its offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def compare_replica(
    source: ReplicaLog,
    target: ReplicaLog,
    partition: TopicPartition,
    broker: int,
    *,
    compacted: bool = False,
    end: int | None = None,
    began: int = 0,
) -> ReplicaComparison:
    """Compare up to the source's end; the target may have gone on by itself after a promote.

    `began`: where the mirror began; nothing before it is expected.
    `end`: up to there and no further, where the source may have gone on by itself too.
    """
    end = source.end() if end is None else end
    start = max(source.start, target.start)
    compare = _compare_records if compacted else _compare_bytes
    batches, size, offsets_differ, differ = compare(source, target, start, end)
    late = _late(source, max(source.start, began), min(target.start, end))
    offsets_differ, differ = late or offsets_differ, late or differ
    if end > start and not batches and not compacted:
        differ = differ or "nothing was compared"
    return ReplicaComparison(
        partition=partition,
        broker=broker,
        comparison=Comparison.RECORDS if compacted else Comparison.BYTES,
        start=start,
        end=end,
        batches=batches,
        compared_bytes=size,
        offsets_identical=offsets_differ is None,
        identical=differ is None,
        difference=offsets_differ or differ,
    )


def _late(source: ReplicaLog, start: int, target_start: int) -> str | None:
    """The source's batches before the target's start, in words."""
    gone = [batch.header for batch in _range(source, start, target_start)]
    if not gone:
        return None
    records = sum(header.record_count for header in gone)
    return (
        f"the target starts at offset {target_start}, the source at {start}: {records} records are not there"
    )


_Result = tuple[int, int, str | None, str | None]  # batches, bytes, difference of offsets, of anything


def _compare_bytes(source: ReplicaLog, target: ReplicaLog, start: int, end: int) -> _Result:
    ours = _range(source, start, end)
    theirs = _range(target, start, end)
    batches = size = 0
    while True:
        left, right = next(ours, None), next(theirs, None)
        if left is None and right is None:
            return batches, size, None, None
        if left is None or right is None:
            which = "source" if left is None else "target"
            extra = right or left
            where = (
                "" if extra is None else f": the other has offset {extra.header.base_offset} ({extra.path})"
            )
            difference = f"the {which} ends after {batches} batches{where}"
            return batches, size, difference, difference
        if _extent(left) != _extent(right):
            difference = (
                f"source batch {_extent(left)} in {left.path}, target {_extent(right)} in {right.path}"
            )
            return batches, size, difference, difference
        if left.before_epoch != right.before_epoch or left.after_epoch != right.after_epoch:
            difference = (
                f"batch at offset {left.header.base_offset}: {left.path} byte {left.header.position} "
                f"and {right.path} byte {right.header.position} differ"
            )
            return batches, size, None, difference
        batches += 1
        size += left.header.size


def _range(log: ReplicaLog, start: int, end: int) -> Iterator[Batch]:
    """Batches with an offset in [start, end); one that straddles the start may be gone at one side only."""
    for batch in log.batches():
        if batch.header.base_offset >= end:
            return
        if batch.header.base_offset >= start:
            yield batch


def _extent(batch: Batch) -> tuple[int, int, int]:
    """Base offset, last offset, number of records."""
    header = batch.header
    return header.base_offset, header.last_offset, header.record_count


def _compare_records(source: ReplicaLog, target: ReplicaLog, start: int, end: int) -> _Result:
    ours, our_values, batches, size = _read_records(source, start, end)
    theirs, their_values, _, _ = _read_records(target, start, end)
    for offset in sorted(ours.keys() & theirs.keys()):
        if ours[offset] != theirs[offset]:
            return batches, size, None, f"the records at offset {offset} differ ({source.directory})"
    for key in our_values.keys() | their_values.keys():
        left, right = our_values.get(key), their_values.get(key)
        # A tombstone that was cleaned away means the same as one that is still there.
        if (left[1] if left else None) != (right[1] if right else None):
            difference = (
                f"last value of key {key[:80]!r}: at the source {_place(left)}, at the target {_place(right)}"
            )
            return batches, size, None, difference
        if left and right and left[0] != right[0]:
            difference = f"last value of key {key[:80]!r} is at offset {left[0]}, at the target at {right[0]}"
            return batches, size, difference, difference
    return batches, size, None, None


def _place(value: tuple[int, bytes | None] | None) -> str:
    if value is None:
        return "gone"
    return f"{'a tombstone' if value[1] is None else f'{len(value[1])} bytes'} at offset {value[0]}"


def _read_records(
    log: ReplicaLog, start: int, end: int
) -> tuple[dict[int, _Content], dict[bytes, tuple[int, bytes | None]], int, int]:
    """Records by offset, and the last (offset, value) of every key, aborted transactions left out.

    A transaction without a marker counts as committed: a cleaner drops the marker of an aborted one only
    after its records, but keeps the records of a committed one.
    """
    records: dict[int, _Content] = {}
    aborted: set[int] = set()
    open_transactions: dict[int, list[int]] = {}
    batches = size = 0
    for batch in _range(log, start, end):
        header = batch.header
        batches += 1
        size += header.size
        if header.is_control:
            pending = open_transactions.pop(header.producer_id, [])
            for marker in batch.records():
                if marker.key is not None and int.from_bytes(marker.key[2:4], "big") == CONTROL_ABORT:
                    aborted.update(pending)
            continue
        for record in batch.records():
            records[record.offset] = _Content(
                record.timestamp,
                _copy(record.key),
                _copy(record.value),
                tuple((name, _copy(value)) for name, value in record.headers),
            )
            if header.is_transactional:
                open_transactions.setdefault(header.producer_id, []).append(record.offset)
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, content in records.items():
        if content.key is not None and offset not in aborted:
            last[content.key] = (offset, content.value)
    return records, last, batches, size


def _copy(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)
