"""Whether the source still has the batch that a cursor read last, where its cache of leader epochs cannot tell.

A broker whose log has epochs that went back (its cluster lost its metadata and kept the logs) knows nothing of the epochs
before that place: it refuses a fetch with such a LastFetchedEpoch, or answers that a smaller epoch goes further. The batch
itself tells more: an offset and the epoch that it was written under belong to one batch only. Of a compacted log that batch
may be gone; then the last one before it that is left is asked, and nothing speaks against a copy of which nothing is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fetcher.epochs import EpochHistory
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.batch import BatchHeader, iter_batch_headers
from wire.frames.fetch import FetchPartition, FetchRequest
from wire.frames.fetch_response import FetchedPartition
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_VERSION = 12  # the newest that names topics
_BYTES = 64 << 10  # one batch comes whatever its size
_TIMEOUT = 10.0


class Doubt(NamedTuple):
    """Whether the source has the batch before `position`, which a cursor read as one of `epoch`."""

    epoch: int
    position: int
    epochs: tuple[tuple[int, int], ...]  # of the copies, as EpochHistory has them


async def source_joins(
    cluster: Cluster, node_id: int, tp: TopicPartition, earliest: int, doubt: Doubt
) -> str | None:
    """None if the copies up to the position are what the source has there, else why they are not. LinkerError if the source
    cannot be asked. earliest: its log start offset."""
    epoch, position, epochs = doubt
    if position <= earliest:
        return None  # it has nothing before it that could differ
    header = await _batch_at(cluster, node_id, tp, position - 1)
    if header.base_offset >= position:
        # Its cleaner took the batch: then the last one that it left tells.
        left = await _last_before(cluster, node_id, tp, earliest, position)
        if left is None:
            return None
        epoch = EpochHistory(epochs).before(left.next_offset)
        if epoch in (-1, left.leader_epoch):
            return None
        header = left
    elif header.next_offset == position and header.leader_epoch == epoch:
        return None
    return (
        f"its batch there has offsets {header.base_offset} to {header.last_offset} and leader epoch "
        f"{header.leader_epoch}"
    )


async def _last_before(
    cluster: Cluster, node_id: int, tp: TopicPartition, earliest: int, position: int
) -> BatchHeader | None:
    """The last batch that begins before a position; None if the cleaner has left none. A few requests: a fetch gives the
    batch with its offset or the next one, so that places can be halved."""
    gone, reach = position - 1, 1  # nothing is left from `gone` up to the position
    while True:
        at = max(earliest, position - 1 - reach)
        found = await _batch_at(cluster, node_id, tp, at)
        if found.base_offset < position:
            break
        if at == earliest:
            return None
        gone, reach = at, reach * 2
    while found.next_offset < gone:
        at = (found.next_offset + gone) // 2
        header = await _batch_at(cluster, node_id, tp, at)
        if header.base_offset < position:
            found = header
        else:
            gone = at
    return found


async def _batch_at(cluster: Cluster, node_id: int, tp: TopicPartition, offset: int) -> BatchHeader:
    """The source's batch with an offset; if its cleaner took that, the next one."""
    frame, parts = await _fetched(cluster, node_id, tp, offset)
    for part in parts:
        for header in iter_batch_headers(frame, part.records_start, part.records_end):
            return header
    raise LinkerError(f"the source answered nothing at offset {offset} of {tp}")


async def high_watermark_at(cluster: Cluster, node_id: int, tp: TopicPartition, offset: int) -> int:
    """The high watermark of a source broker, as it tells it to a fetch from an offset."""
    for part in (await _fetched(cluster, node_id, tp, offset))[1]:
        return part.high_watermark
    raise LinkerError(f"the source answered nothing at offset {offset} of {tp}")


async def _fetched(
    cluster: Cluster, node_id: int, tp: TopicPartition, offset: int
) -> tuple[memoryview, Sequence[FetchedPartition]]:
    request = FetchRequest(
        version=_VERSION,
        max_bytes=_BYTES,
        session_epoch=-1,
        topics=[(tp.topic, [FetchPartition(tp.partition, -1, offset, -1, -1, _BYTES)])],
    )
    frame, answer = await cluster.fetch(node_id, request, timeout=_TIMEOUT, purpose="epochs")
    if answer.error:
        raise BrokerError(answer.error, api="fetch", version=_VERSION)
    for part in answer.partitions:
        if part.error:
            raise BrokerError(part.error, api="fetch", version=_VERSION, topic_partition=tp, offset=offset)
    return frame, answer.partitions


def settle(
    mirror: PartitionCopy, earliest: int, latest: int, looked_up: Iterable[tuple[int, int, str | None]]
) -> None:
    """The source said that a fetch offset of ours is out of range, and now where its log begins and ends."""
    mirror.note_offsets(mirror.high_watermark, mirror.last_stable_offset, earliest)
    mirror.leave_behind_log_start()
    if mirror.cursors and max(cursor.position for cursor in mirror.cursors) > latest:
        mirror.truncate(max(latest, mirror.log_start_offset))
        return
    note_looked_up(mirror, looked_up)


def note_looked_up(mirror: PartitionCopy, found: Iterable[tuple[int, int, str | None]]) -> None:
    """Draw the conclusion from (epoch, position, what else the source has there)."""
    for epoch, position, other in found:
        if other is not None:
            mirror.fail(
                f"the source does not know leader epoch {epoch} of {mirror.tp}, under which the mirror has copied up to "
                f"offset {position}, and has replaced what was there: {other}"
            )
            return
        if epoch not in mirror.forgotten_epochs:
            log.warning(
                "%s: the source's leader epochs went back behind offset %d: it does not know epoch %d any more, under which "
                "the batch before that was written, and has that batch",
                mirror.tp,
                position,
                epoch,
            )
        mirror.forgotten_epochs.add(epoch)
        for cursor in mirror.cursors:
            cursor.failures = 0


def refused_in_range(cursor: PartitionCursor) -> str:
    """Why a mirror fails whose source contradicts itself again and again."""
    return (
        f"the source refuses offset {cursor.position} of {cursor.mirror.tp} as out of range although its log has it; the "
        f"mirror's last source leader epoch is {cursor.last_epoch}"
    )
