"""Reads a broker's own log to its very end, whether it is leader or follower, and checks the leader epoch before the offset.

A consumer is answered up to the high watermark only. So the Fetch here names the replica -3, as a broker's own other log
directory does (`FetchIsolation.of`): then the broker answers up to its log's end, and compares the offset and the epoch
before it with its own history, as for a follower (`Partition.readRecords`). Such a Fetch changes nothing at the broker, and
needs only the right to read the topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError, MalformedFrame
from wire.frames.batch import iter_batch_headers
from wire.frames.error_codes import OFFSET_OUT_OF_RANGE
from wire.frames.fetch import FetchPartition, FetchRequest
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.list_offsets import EARLIEST, LATEST, list_at
from wire.frames.types import TopicId, TopicPartition

VERSION: Final = 16  # Kafka 3.7: names topics by id, and a replica with its broker epoch
_FUTURE_REPLICA: Final = -3
_BYTES: Final = 4 << 20
_STEPS: Final = 100  # more than any log has leader epochs in dispute


class LogPlace(NamedTuple):
    """A place in a log: an offset, and the leader epoch of the record before it (-1: not known)."""

    offset: int
    epoch: int


class Batches(NamedTuple):
    """Whole batches from the requested place on; none if that place is the log's end. `after`: the place at their end.
    `epochs`: the (leader epoch, start offset) of each run of batches of one epoch."""

    data: memoryview
    after: LogPlace
    epochs: tuple[tuple[int, int], ...]


class Diverging(NamedTuple):
    """The log does not have the requested place. Its largest epoch that is not above the requested one ends here."""

    epoch: int
    end: int


class LogSpan(NamedTuple):
    """A broker's log: from `start`, up to `end`."""

    start: int
    end: int


def batches_of(frame: memoryview, start: int, end: int, place: LogPlace, tp: TopicPartition) -> Batches:
    """The batches in a Fetch's answer. MalformedFrame if they are damaged, or do not begin at the place."""
    at, size = place, start
    epochs: list[tuple[int, int]] = []
    for header in iter_batch_headers(frame, start, end):
        if header.base_offset < at.offset or not header.crc_ok(frame):
            what = "overlaps what was read" if header.base_offset < at.offset else "is damaged"
            raise MalformedFrame(
                f"the batch {what}", api="fetch", topic_partition=tp, offset=header.base_offset
            )
        if not epochs or epochs[-1][0] != header.leader_epoch:
            epochs.append((header.leader_epoch, header.base_offset))
        at, size = LogPlace(header.next_offset, header.leader_epoch), header.end
    return Batches(frame[start:size], at, tuple(epochs))


class LogTails:
    """Reads the logs of one cluster's brokers."""

    def __init__(self, cluster: Cluster, purpose: str) -> None:
        self._cluster = cluster
        self._purpose = purpose

    async def read(
        self,
        broker: int,
        tp: TopicPartition,
        topic_id: TopicId,
        place: LogPlace,
        *,
        leader_epoch: int = -1,
        max_bytes: int = _BYTES,
        timeout: float,
    ) -> Batches | Diverging:
        """Read from that place on. BrokerError for any refusal. `leader_epoch`: the partition's, which the broker has
        to know."""
        part = FetchPartition(tp.partition, leader_epoch, place.offset, place.epoch, -1, max_bytes)
        request = FetchRequest(
            VERSION,
            replica_id=_FUTURE_REPLICA,
            max_bytes=max_bytes,
            session_epoch=-1,
            topics=[(topic_id, [part])],
        )
        frame, answer = await self._cluster.fetch(broker, request, timeout=timeout, purpose=self._purpose)
        found = next((one for one in answer.partitions if one.index == tp.partition), None)
        code = answer.error if found is None else found.error
        if found is None or code:
            raise BrokerError(
                code, api="fetch", version=VERSION, topic_partition=tp, offset=place.offset, peer=str(broker)
            )
        if found.diverging is not None and found.diverging[1] >= 0:
            return Diverging(*found.diverging)
        return batches_of(frame, found.records_start, found.records_end, place, tp)

    async def span(self, broker: int, tp: TopicPartition, *, timeout: float) -> LogSpan:
        """The log's start and end. BrokerError if the broker does not tell."""
        ends: list[int] = []
        for what in (EARLIEST, LATEST):
            found = await list_at(self._cluster, broker, {tp: what}, timeout=timeout, purpose=self._purpose)
            if found[tp].error:
                raise BrokerError(found[tp].error, api="list_offsets", topic_partition=tp, peer=str(broker))
            ends.append(found[tp].offset)
        return LogSpan(*ends)

    async def agreed(
        self,
        broker: int,
        tp: TopicPartition,
        topic_id: TopicId,
        history: LeaderEpochs,
        *,
        leader_epoch: int = -1,
        timeout: float,
    ) -> int:
        """The offset up to which the broker's log has this history; at most the end of that log."""
        offset = history.end
        for _ in range(_STEPS):
            place = LogPlace(offset, history.epoch_below(offset))
            try:
                found = await self.read(
                    broker, tp, topic_id, place, leader_epoch=leader_epoch, max_bytes=1, timeout=timeout
                )
            except BrokerError as error:
                if error.code != OFFSET_OUT_OF_RANGE:
                    raise
                span = await self.span(broker, tp, timeout=timeout)
                if offset <= span.start:
                    return offset  # nothing to compare: retention has deleted it, or the log is empty
                found = Diverging(place.epoch, span.end)
            if not isinstance(found, Diverging):
                return offset
            before, offset = offset, min(offset, history.agreed(*found))
            if offset >= before:
                break
        raise LinkerError(
            f"{tp}: it is not clear up to which offset broker {broker} has the same log as the other cluster"
        )

    async def count(
        self, broker: int, tp: TopicPartition, topic_id: TopicId, offset: int, left: Callable[[], float]
    ) -> int | None:
        """How many records there are from this offset to the log's end; None if there is no time to read them all."""
        place, records = LogPlace(offset, -1), 0
        while left() > 0:
            found = await self.read(broker, tp, topic_id, place, timeout=max(left(), 0.1))
            if isinstance(found, Diverging) or found.after.offset <= place.offset:
                return records
            records += sum(
                one.record_count
                for one in iter_batch_headers(found.data, 0, len(found.data))
                if not one.is_control
            )
            place = LogPlace(found.after.offset, -1)
        return None
