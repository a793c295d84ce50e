"""ListOffsets: latest, earliest, by timestamp; the debugging replica (-2) and followers see the log's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request

UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
DEBUGGING_REPLICA_ID = -2


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_answer(broker, request, topic.name, ask) for ask in topic.partitions],
            }
            for topic in request.entity.topics
        ]
    }


def _answer(broker: FakeBroker, request: Request, name: str, ask: Any) -> Mapping[str, object]:
    base: dict[str, object] = {
        "partition_index": ask.partition_index,
        "error_code": 0,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
    partition = broker.cluster.find(broker.cluster.topics.get(name), ask.partition_index)
    if request.forced_error:
        return {**base, "error_code": request.forced_error}
    if partition is None:
        return {**base, "error_code": UNKNOWN_TOPIC_OR_PARTITION}
    debugging = request.entity.replica_id == DEBUGGING_REPLICA_ID and broker.id in partition.replicas
    if partition.leader != broker.id and not debugging:
        return {**base, "error_code": NOT_LEADER_OR_FOLLOWER}
    current = getattr(ask, "current_leader_epoch", -1)
    if current >= 0 and current != partition.leader_epoch:
        older = current < partition.leader_epoch
        return {**base, "error_code": FENCED_LEADER_EPOCH if older else UNKNOWN_LEADER_EPOCH}
    log = partition.log_at(broker.id)
    if ask.timestamp == LATEST:
        offset = log.high_watermark
        if request.entity.replica_id != -1:
            offset = log.log_end_offset
        elif getattr(request.entity, "isolation_level", 0) == 1:
            offset = log.last_stable_offset
        return {**base, "offset": offset, "leader_epoch": partition.leader_epoch}
    if ask.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return {**base, "offset": log.log_start_offset, "leader_epoch": log.epoch_of(log.log_start_offset)}
    infos = [b.info for b in log.batches if b.info.last_offset >= log.log_start_offset]
    if ask.timestamp == MAX_TIMESTAMP:
        found = max(infos, key=lambda info: info.max_timestamp, default=None)
    else:
        found = next((info for info in infos if info.max_timestamp >= ask.timestamp), None)
    if found is None:
        return base
    # all records of a fake batch carry its timestamp
    return {
        **base,
        "offset": max(found.base_offset, log.log_start_offset),
        "timestamp": found.max_timestamp,
        "leader_epoch": found.leader_epoch,
    }
