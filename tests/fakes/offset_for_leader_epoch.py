"""OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.list_offsets import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION,
)

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_answer(broker, request, topic.topic, a) for a in topic.partitions],
            }
            for topic in request.entity.topics
        ]
    }


def _answer(broker: FakeBroker, request: Request, name: str, ask: Any) -> Mapping[str, object]:
    base = {
        "partition": ask.partition,
        "error_code": request.forced_error,
        "leader_epoch": -1,
        "end_offset": -1,
    }
    partition = broker.cluster.find(broker.cluster.topics.get(name), ask.partition)
    if request.forced_error:
        return base
    if partition is None:
        return {**base, "error_code": UNKNOWN_TOPIC_OR_PARTITION}
    if partition.leader != broker.id:
        return {**base, "error_code": NOT_LEADER_OR_FOLLOWER}
    current = ask.current_leader_epoch
    if current >= 0 and current != partition.leader_epoch:
        older = current < partition.leader_epoch
        return {**base, "error_code": FENCED_LEADER_EPOCH if older else UNKNOWN_LEADER_EPOCH}
    epoch, end = partition.log.epoch_end(ask.leader_epoch, partition.leader_epoch)
    return {**base, "leader_epoch": epoch, "end_offset": end}
