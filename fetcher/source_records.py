"""The records of a fetch answer as chunks of a window: the leader epoch stamped in place, nothing copied without need.

Not here: whose cursor it is (source_fetcher.py), and what happens when a batch cannot be read (source_errors.py).
"""

from __future__ import annotations

from fetcher.budget import Charge, MemoryBudget
from fetcher.partition_copy import PartitionCursor
from fetcher.window import WindowChunk
from wire.errors import MalformedFrame
from wire.frames.batch import Walk, patch_batches
from wire.frames.fetch import FetchedPartition
from wire.frames.framing import SCRATCH_MAX
from wire.frames.leader_epochs import BatchSpansEnd

_MAX_OFFSET = (1 << 63) - 1


def charge_for(frame: memoryview, budget: MemoryBudget) -> Charge:
    """The price of an answer's bytes. Large frames have a buffer of their own, which may be longer than they are;
    small ones are copied."""
    size = len(frame)
    if size > SCRATCH_MAX:
        size = max(size, memoryview(frame.obj).nbytes)
    return Charge(budget, size)


def take_records(
    cursor: PartitionCursor, part: FetchedPartition, frame: memoryview, charge: Charge, partition_bytes: int
) -> bool:
    """Whether there were some for the cursor's window, which has them now. MalformedFrame if they are no records."""
    mirror = cursor.mirror
    try:
        walk, chunks = _read(cursor, part, frame, charge, partition_bytes)
    except BatchSpansEnd as error:
        mirror.fail(f"the source's log of {mirror.tp} is not the one that was taken over: {error}")
        return False
    if not chunks:
        return False
    segment_bytes = mirror.spec.segment_bytes
    if walk.largest > segment_bytes:
        # A follower that gets it fails the partition without telling anybody, until there is a new leader epoch.
        mirror.fail(
            f"the source has a batch of {walk.largest} bytes in {mirror.tp} after offset {cursor.position}, the target's "
            f"segment.bytes is {segment_bytes}: no follower could append it; mirror resume --restart takes over "
            "the source's present segment.bytes"
        )
        return False
    if walk.largest > mirror.largest_batch:
        mirror.largest_batch = walk.largest
    mirror.add_chunks(cursor, chunks, walk.epochs, part.high_watermark)
    return True


def _read(
    cursor: PartitionCursor, part: FetchedPartition, frame: memoryview, charge: Charge, partition_bytes: int
) -> tuple[Walk, list[WindowChunk]]:
    """The chunks that lie above the cursor's position, and what was seen on the way."""
    spec = cursor.mirror.spec
    start, end = part.records_start, part.records_end
    if len(frame) <= SCRATCH_MAX:
        # A small frame shares its buffer with others: a copy keeps one idle partition from pinning them all.
        frame = memoryview(bytearray(frame[start:end]))
        start, end = 0, len(frame)
    chunk_bytes = min(partition_bytes, spec.segment_bytes)
    walk: Walk
    if spec.taken is None:
        walk = patch_batches(frame, start, end, spec.session_epoch, chunk_bytes, cursor.last_epoch)
    else:
        walk = spec.taken.stamp(frame, start, end, chunk_bytes, cursor.last_epoch)
    if walk.next_offset > _MAX_OFFSET:
        # No fetch request could ask for what follows. A batch's base offset is outside its CRC.
        raise MalformedFrame(
            f"a batch of {cursor.mirror.tp} ends at offset {walk.next_offset - 1}",
            api="fetch",
            offset=cursor.position,
        )
    chunks = [
        WindowChunk(
            base,
            following,
            frame[first:last],
            last - first,
            charge,
            walk.newest if following == walk.next_offset else -1,
        )
        for first, last, base, following in walk.chunks
        if following > cursor.position
    ]
    return walk, chunks
