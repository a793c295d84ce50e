"""Fetch v4 to v18: reads, divergence by LastFetchedEpoch, long poll, and incremental sessions (KIP-227)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request
    from tests.fakes.cluster import FakePartition, FakeTopic

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
UNKNOWN_TOPIC_ID = 100
FETCH_SESSION_TOPIC_ID_ERROR = 106

Key = tuple[Any, int]  # topic name, or id bytes from v13; partition


@dataclass
class Session:
    id: int
    epoch: int
    uses_ids: bool
    partitions: dict[Key, Any] = field(default_factory=dict)
    #: What was last said of a partition: (high watermark, last stable offset, log start).
    told: dict[Key, tuple[int, int, int]] = field(default_factory=dict)


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    if request.forced_error in (
        FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR,
    ):
        return {"error_code": request.forced_error, "session_id": 0, "responses": ()}
    if request.version < 7:
        return await _fetch(broker, request, _wanted(request), None)
    entity = request.entity
    sessions: dict[int, Session] = broker.state.setdefault("fetch_sessions", {})
    if entity.session_epoch in (0, -1):
        sessions.pop(entity.session_id, None)
        session = None
        if entity.session_epoch == 0:
            session = Session(random.randint(1, 2**31 - 1), 0, request.version >= 13, _wanted(request))
            sessions[session.id] = session
        return await _fetch(broker, request, _wanted(request), session)
    known = sessions.get(entity.session_id)
    error = 0
    if known is None:
        error = FETCH_SESSION_ID_NOT_FOUND
    elif known.uses_ids != (request.version >= 13):
        error = FETCH_SESSION_TOPIC_ID_ERROR
    elif entity.session_epoch != known.epoch:
        error = INVALID_FETCH_SESSION_EPOCH
    if error or known is None:
        return {"error_code": error, "session_id": 0, "responses": ()}
    for topic in entity.forgotten_topics_data:
        for index in topic.partitions:
            known.partitions.pop((_topic_key(topic, request.version), index), None)
            known.told.pop((_topic_key(topic, request.version), index), None)
    for key, partition in _wanted(request).items():
        # a re-sent partition keeps its place; Kafka moves it to the end only when it returned data
        known.partitions[key] = partition
    return await _fetch(broker, request, known.partitions, known)


def _topic_key(topic: Any, version: int) -> Any:
    if version >= 13:
        return topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
    return topic.topic


def _wanted(request: Request) -> dict[Key, Any]:
    return {
        (_topic_key(topic, request.version), partition.partition): partition
        for topic in request.entity.topics
        for partition in topic.partitions
    }


async def _fetch(
    broker: FakeBroker, request: Request, wanted: Mapping[Key, Any], session: Session | None
) -> Mapping[str, object]:
    entity = request.entity
    incremental = session is not None and session.epoch > 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + entity.max_wait.total_seconds()
    while True:
        answers, size, urgent = _read_all(broker, request, wanted)
        left = deadline - loop.time()
        if urgent or size >= entity.min_bytes or left <= 0 or not wanted:
            break
        await broker.cluster.wait_changed(left)
    if session is not None:
        session.epoch = session.epoch + 1 if session.epoch < 2**31 - 1 else 1
        answers = {k: a for k, a in answers.items() if _worth_telling(session, k, a) or not incremental}
    responses: dict[Any, list[Mapping[str, object]]] = {}
    for (topic, _), answer in answers.items():
        responses.setdefault(topic, []).append(answer)
    name = "topic_id" if request.version >= 13 else "topic"
    moved = any("current_leader" in answer for answer in answers.values())
    return {
        "session_id": session.id if session is not None else 0,
        "responses": [{name: topic, "partitions": parts} for topic, parts in responses.items()],
        "node_endpoints": [
            {"node_id": node.id, "host": node.host, "port": node.port}
            for node in broker.cluster.brokers.values()
        ]
        if moved
        else (),
    }


def _worth_telling(session: Session, key: Key, answer: Mapping[str, Any]) -> bool:
    state = (answer["high_watermark"], answer["last_stable_offset"], answer["log_start_offset"])
    news = (
        session.told.get(key) != state
        or answer["error_code"] != 0
        or bool(answer["records"])
        or "diverging_epoch" in answer
        or answer.get("preferred_read_replica", -1) >= 0
    )
    session.told[key] = state
    if answer["error_code"]:
        session.told.pop(key)
    return news


def _read_all(
    broker: FakeBroker, request: Request, wanted: Mapping[Key, Any]
) -> tuple[dict[Key, dict[str, Any]], int, bool]:
    """(answers, bytes of records, whether there is no reason to wait)."""
    left = request.entity.max_bytes
    answers: dict[Key, dict[str, Any]] = {}
    total = 0
    urgent = False
    for key, ask in wanted.items():
        topic = (
            broker.cluster.topic_by_id(key[0]) if request.version >= 13 else broker.cluster.topics.get(key[0])
        )
        partition = broker.cluster.find(topic, key[1])
        answer = _read(broker, request, topic, partition, ask, max(left, 0), whole_first=total == 0)
        answers[key] = answer
        size = len(answer["records"])
        total += size
        left -= size
        if (
            answer["error_code"]
            or "diverging_epoch" in answer
            or answer.get("preferred_read_replica", -1) >= 0
        ):
            urgent = True
    return answers, total, urgent


def _read(
    broker: FakeBroker,
    request: Request,
    topic: FakeTopic | None,
    partition: FakePartition | None,
    ask: Any,
    left: int,
    *,
    whole_first: bool,
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "partition_index": ask.partition,
        "error_code": 0,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": b"",
    }
    error = request.forced_error or _refusal(broker, request, topic, partition, ask)
    if error or partition is None:
        if error in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH) and partition is not None:
            answer["current_leader"] = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
        return {**answer, "error_code": error}
    log = partition.log_at(broker.id)
    replica_id = _replica_id(request)
    answer["high_watermark"] = log.high_watermark
    answer["last_stable_offset"] = log.last_stable_offset
    answer["log_start_offset"] = log.log_start_offset
    preferred = _preferred(broker, request, partition) if replica_id < 0 else -1
    if preferred >= 0:
        return {**answer, "preferred_read_replica": preferred}
    last_epoch = getattr(ask, "last_fetched_epoch", -1)
    if last_epoch >= 0:
        epoch, end = log.epoch_end(last_epoch, partition.leader_epoch)
        if epoch < 0:
            return {**answer, "error_code": OFFSET_OUT_OF_RANGE}
        if epoch < last_epoch or end < ask.fetch_offset:
            return {**answer, "diverging_epoch": {"epoch": epoch, "end_offset": end}}
    if not log.log_start_offset <= ask.fetch_offset <= log.log_end_offset:
        return {**answer, "error_code": OFFSET_OUT_OF_RANGE}
    until = log.high_watermark
    if replica_id >= 0:
        until = log.log_end_offset
    elif request.entity.isolation_level == 1:
        until = log.last_stable_offset
        answer["aborted_transactions"] = [
            {"producer_id": producer, "first_offset": first}
            for producer, first, last in log.aborted
            if last >= ask.fetch_offset
        ]
    limit = min(ask.partition_max_bytes, left)
    if limit > 0 or whole_first:
        answer["records"] = log.read(ask.fetch_offset, limit, until=until, whole_first=whole_first)
    return answer


def _refusal(
    broker: FakeBroker, request: Request, topic: FakeTopic | None, partition: FakePartition | None, ask: Any
) -> int:
    if topic is None and request.version >= 13:
        return UNKNOWN_TOPIC_ID
    if partition is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    follower_read = _replica_id(request) < 0 and request.version >= 11 and broker.id in partition.replicas
    if partition.leader != broker.id and not follower_read:
        return NOT_LEADER_OR_FOLLOWER
    current = getattr(ask, "current_leader_epoch", -1)
    if current >= 0 and current < partition.leader_epoch:
        return FENCED_LEADER_EPOCH
    if current > partition.leader_epoch:
        return UNKNOWN_LEADER_EPOCH
    return 0


def _replica_id(request: Request) -> int:
    if request.version >= 15:
        return int(request.entity.replica_state.replica_id)
    return int(request.entity.replica_id)


def _preferred(broker: FakeBroker, request: Request, partition: FakePartition) -> int:
    cluster = broker.cluster
    rack = getattr(request.entity, "rack_id", "")
    if not cluster.follower_fetching or not rack or broker.id != partition.leader:
        return -1
    if cluster.racks.get(broker.id) == rack:
        return -1
    same = [n for n in partition.isr if cluster.racks.get(n) == rack and cluster.brokers[n].running]
    return same[0] if same else -1
