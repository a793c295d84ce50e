"""ListOffsets and OffsetForLeaderEpoch as followers ask them (replica ids from 0 up).

A follower that is out of range asks for LATEST and EARLIEST and truncates by the answers, so LATEST is the
source's high watermark, never less than what is known to be there: the log's end where that is fed beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fetcher.partition_copy import PartitionCopy
from wire.frames.error_codes import INVALID_REQUEST
from wire.frames.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST
from wire.frames.offset_requests import (
    AskedPartition,
    OffsetAnswer,
    OffsetsRequest,
    encode_list_offsets,
    encode_offset_for_leader_epoch,
)
from wire.server.listener import Exchange

if TYPE_CHECKING:
    from fetcher.follower_answers import FollowerAnswers


class FollowerOffsets:
    def __init__(self, answers: FollowerAnswers) -> None:
        self._answers = answers

    def list_offsets(self, exchange: Exchange, request: OffsetsRequest) -> None:
        topics = [
            (name, [self._list_one(name, asked, request.replica_id) for asked in partitions])
            for name, partitions in request.topics
        ]
        header = exchange.header
        exchange.reply([encode_list_offsets(header.api_version, header.correlation_id, topics)])

    def _list_one(self, topic: str, asked: AskedPartition, replica_id: int) -> OffsetAnswer:
        found = self._answers.mirror_for(topic, asked.index, asked.current_leader_epoch, replica_id)
        if not isinstance(found, PartitionCopy):
            return OffsetAnswer(asked.index, found.error)
        if asked.wanted == LATEST:
            offset = found.log_end_offset
        elif asked.wanted in (EARLIEST, EARLIEST_LOCAL):
            offset = found.log_start_offset
        else:
            return OffsetAnswer(asked.index, INVALID_REQUEST)
        taken = found.spec.taken
        epoch = found.spec.session_epoch if taken is None else taken.at(offset)
        return OffsetAnswer(asked.index, 0, -1, offset, epoch)

    def offset_for_leader_epoch(self, exchange: Exchange, request: OffsetsRequest) -> None:
        topics = [
            (name, [self._epoch_end(name, asked, request.replica_id) for asked in partitions])
            for name, partitions in request.topics
        ]
        header = exchange.header
        exchange.reply([encode_offset_for_leader_epoch(header.api_version, header.correlation_id, topics)])

    def _epoch_end(self, topic: str, asked: AskedPartition, replica_id: int) -> OffsetAnswer:
        """Epoch and offset -1: nothing is known of that epoch."""
        found = self._answers.mirror_for(topic, asked.index, asked.current_leader_epoch, replica_id)
        if not isinstance(found, PartitionCopy):
            return OffsetAnswer(asked.index, found.error)
        epoch, session_epoch = asked.wanted, found.spec.session_epoch
        if epoch == session_epoch:
            end = found.log_end_offset
            border = found.untruncated.get(replica_id)
            end = end if border is None else min(end, border)
            return OffsetAnswer(asked.index, 0, -1, end, epoch)
        if 0 <= epoch < session_epoch and found.spec.taken is not None:
            known = found.spec.taken.end_of(epoch, found.high_watermark)
            return (
                OffsetAnswer(asked.index, 0, -1, known[1], known[0]) if known else OffsetAnswer(asked.index)
            )
        if 0 <= epoch < session_epoch:
            return OffsetAnswer(asked.index, 0, -1, found.spec.start_offset, epoch)
        return OffsetAnswer(asked.index)
