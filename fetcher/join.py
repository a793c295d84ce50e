"""Whether the source still has the batch that a lane read last, where its cache of leader epochs cannot tell.

A broker whose log has epochs that went back (its cluster lost its metadata and kept the logs) knows nothing of the epochs
before that place: it refuses a fetch with such a LastFetchedEpoch, or answers that a smaller epoch goes further. The batch
itself tells more: an offset and the epoch that it was written under belong to one batch only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fetcher.lane import Lane
from fetcher.mirror_partition import MirrorPartition
from wire.batch import iter_batch_headers
from wire.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.fetch import FetchPartition, FetchRequest
from wire.types import TopicPartition

log = logging.getLogger(__name__)

_VERSION = 12  # the newest that names topics
_BYTES = 64 << 10  # one batch comes whatever its size
_TIMEOUT = 10.0


async def source_joins(
    cluster: Cluster, node_id: int, tp: TopicPartition, position: int, epoch: int
) -> str | None:
    """None if the batch before `position` is one of `epoch` that ends there, else why it is not. LinkerError if the source
    cannot be asked."""
    request = FetchRequest(
        version=_VERSION,
        max_bytes=_BYTES,
        session_epoch=-1,
        topics=[(tp.topic, [FetchPartition(tp.partition, -1, position - 1, -1, -1, _BYTES)])],
    )
    frame, answer = await cluster.fetch(node_id, request, timeout=_TIMEOUT, purpose="epochs")
    if answer.error:
        raise BrokerError(answer.error, api="fetch", version=_VERSION)
    for part in answer.partitions:
        if part.error:
            raise BrokerError(part.error, api="fetch", version=_VERSION, topic_partition=tp)
        try:
            header = next(iter(iter_batch_headers(frame, part.records_start, part.records_end)))
        except StopIteration:
            break
        if header.next_offset == position and header.leader_epoch == epoch:
            return None
        return (
            f"its batch there has offsets {header.base_offset} to {header.last_offset} and leader epoch "
            f"{header.leader_epoch}"
        )
    raise LinkerError(f"the source answered nothing at offset {position - 1} of {tp}")


def note_looked_up(mirror: MirrorPartition, found: Iterable[tuple[int, int, str | None]]) -> None:
    """What follows from (epoch, position, what else the source has there)."""
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
        for lane in mirror.lanes:
            lane.failures = 0


def refused_in_range(lane: Lane) -> str:
    """Why a mirror fails whose source contradicts itself again and again."""
    return (
        f"the source refuses offset {lane.position} of {lane.mirror.tp} as out of range although its log has it; the "
        f"mirror's last source leader epoch is {lane.last_epoch}"
    )
