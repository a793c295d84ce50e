"""Produce: leadership, batch checks, and the idempotent producer's sequence check (in log.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.broker import NoAnswer

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.cluster import FakePartition, FakeTopic

UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
UNKNOWN_TOPIC_ID = 100


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    cluster = broker.cluster
    responses = []
    moved = False
    for data in request.entity.topic_data:
        topic_id = getattr(data, "topic_id", None)
        if request.version >= 13:
            topic = cluster.topic_by_id(topic_id.bytes) if topic_id is not None else None
        else:
            topic = cluster.topics.get(data.name)
        answers = []
        for item in data.partition_data:
            answer = _append(broker, request, topic, cluster.find(topic, item.index), item)
            moved = moved or "current_leader" in answer
            answers.append(answer)
        key = {"topic_id": topic_id} if request.version >= 13 else {"name": data.name}
        responses.append({**key, "partition_responses": answers})
    cluster.notify()
    if request.entity.acks == 0:
        raise NoAnswer
    endpoints = [
        {"node_id": node.id, "host": node.host, "port": node.port, "rack": cluster.racks.get(node.id)}
        for node in cluster.brokers.values()
    ]
    return {"responses": responses, "node_endpoints": endpoints if moved else ()}


def _append(
    broker: FakeBroker, request: Request, topic: FakeTopic | None, partition: FakePartition | None, item: Any
) -> dict[str, object]:
    answer: dict[str, object] = {
        "index": item.index,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
    }
    if request.forced_error:
        return {**answer, "error_code": request.forced_error}
    if topic is None or partition is None:
        by_id = request.version >= 13 and topic is None
        return {**answer, "error_code": UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION}
    if partition.leader != broker.id:
        leader = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
        return {**answer, "error_code": NOT_LEADER_OR_FOLLOWER, "current_leader": leader}
    result = partition.log.append(bytes(item.records or b""), partition.leader_epoch)
    answer["error_code"] = result.error
    if result.error == 0:
        answer["base_offset"] = result.base_offset
        answer["log_start_offset"] = partition.log.log_start_offset
    return answer
