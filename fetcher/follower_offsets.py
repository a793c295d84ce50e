"""ListOffsets and OffsetForLeaderEpoch as followers ask them (replica ids from 0 up). Off the hot path,
through the schema codec.

A follower that is out of range asks for LATEST and EARLIEST and truncates by the answers, so LATEST is the
source's high watermark, never less than what is known to be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fetcher.mirror_partition import MirrorPartition
from wire import codec
from wire.error_codes import INVALID_REQUEST
from wire.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST
from wire.server import Exchange

if TYPE_CHECKING:
    from fetcher.follower_answers import FollowerAnswers

_UNDEFINED = -1


class FollowerOffsets:
    def __init__(self, answers: FollowerAnswers) -> None:
        self._answers = answers

    def list_offsets(self, exchange: Exchange) -> None:
        _, request = codec.decode_request(exchange.frame)
        topics = []
        for topic in request.topics:
            partitions = [
                self._list_one(
                    topic.name,
                    asked.partition_index,
                    getattr(asked, "current_leader_epoch", -1),
                    int(asked.timestamp),
                    request.replica_id,
                )
                for asked in topic.partitions
            ]
            topics.append({"name": topic.name, "partitions": partitions})
        _reply(exchange, "list_offsets", {"topics": topics})

    def _list_one(
        self, topic: str, index: int, epoch: int, timestamp: int, replica_id: int
    ) -> Mapping[str, object]:
        answer: dict[str, object] = {
            "partition_index": index,
            "error_code": 0,
            "timestamp": -1,
            "offset": -1,
            "leader_epoch": -1,
        }
        found = self._answers.mirror_for(topic, index, epoch, replica_id)
        if not isinstance(found, MirrorPartition):
            return answer | {"error_code": found.error}
        if timestamp == LATEST:
            offset = found.high_watermark
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            offset = found.log_start_offset
        else:
            return answer | {"error_code": INVALID_REQUEST}
        return answer | {"offset": offset, "leader_epoch": found.spec.session_epoch}

    def offset_for_leader_epoch(self, exchange: Exchange) -> None:
        _, request = codec.decode_request(exchange.frame)
        replica_id = getattr(request, "replica_id", -1)
        topics = []
        for topic in request.topics:
            partitions = [
                self._epoch_end(
                    topic.topic,
                    asked.partition,
                    getattr(asked, "current_leader_epoch", -1),
                    asked.leader_epoch,
                    replica_id,
                )
                for asked in topic.partitions
            ]
            topics.append({"topic": topic.topic, "partitions": partitions})
        _reply(exchange, "offset_for_leader_epoch", {"topics": topics})

    def _epoch_end(
        self, topic: str, index: int, current_epoch: int, epoch: int, replica_id: int
    ) -> Mapping[str, object]:
        answer: dict[str, object] = {
            "error_code": 0,
            "partition": index,
            "leader_epoch": _UNDEFINED,
            "end_offset": _UNDEFINED,
        }
        found = self._answers.mirror_for(topic, index, current_epoch, replica_id)
        if not isinstance(found, MirrorPartition):
            return answer | {"error_code": found.error}
        session_epoch = found.spec.session_epoch
        if epoch == session_epoch:
            end = found.high_watermark
            border = found.untruncated.get(replica_id)
            return answer | {"leader_epoch": epoch, "end_offset": end if border is None else min(end, border)}
        if 0 <= epoch < session_epoch:
            return answer | {"leader_epoch": epoch, "end_offset": found.spec.start_offset}
        return answer


def _reply(exchange: Exchange, api: str, fields: Mapping[str, object]) -> None:
    header = exchange.header
    body = codec.encode_response(api, header.api_version, header.correlation_id, fields)
    exchange.reply([len(body).to_bytes(4, "big"), body])
