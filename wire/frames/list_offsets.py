"""ListOffsets over a cluster: split by leader, sent to all at once, repeated while leadership moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from wire.backoff import Backoff
from wire.client.cluster_metadata import TopicMetadata
from wire.client.connection import Connection
from wire.client.retry import NodeKind, passing
from wire.errors import AuthenticationFailed, ClusterUnreachable, ConnectionLost, MalformedFrame, WireError
from wire.frames.error_codes import (
    LEADER_NOT_AVAILABLE,
    NETWORK_EXCEPTION,
    UNSUPPORTED_VERSION,
)
from wire.frames.types import Node, TopicPartition
from wire.task_group import TaskGroup

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def unsupported(timestamp: int, version: int) -> bool:
    """Whether a broker answers UNSUPPORTED_VERSION to this timestamp in that version: it is negative and has no meaning
    there (ReplicaManager.isListOffsetsTimestampUnsupported, 4.3). An old broker would take it for a time and answer with
    the first offset, which is wrong, so it is not asked.
    """
    return timestamp < 0 and version < _SINCE.get(timestamp, version + 1)


DEBUGGING_REPLICA_ID: Final = -2
"""ListOffsetsRequest.DEBUGGING_REPLICA_ID: followers answer it too (ReplicaManager.fetchOffset), with the log end instead of
the high watermark."""

_PAUSE = 0.1


class OffsetResult(NamedTuple):
    """One partition's answer. Offset -1 with error 0: no record is as young as the timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int
    error: int


class Leaders(Protocol):
    """The leaders of partitions and connections to them (cluster.Cluster)."""

    @property
    def topics(self) -> Mapping[str, TopicMetadata]: ...

    def leader(self, tp: TopicPartition) -> Node | None: ...

    def leader_epoch(self, tp: TopicPartition) -> int: ...

    async def connection(self, node_id: int) -> Connection: ...

    async def refresh(self, topics: Iterable[str], *, timeout: float) -> None: ...

    async def call(
        self, api: str, body: Mapping[str, Any], *, node_id: int, timeout: float, purpose: str
    ) -> Any: ...


async def list_offsets(
    cluster: Leaders,
    tps: Mapping[TopicPartition, int],
    *,
    replica_id: int,
    isolation_level: int,
    timeout: float,
) -> dict[TopicPartition, OffsetResult]:
    """A result for every partition; the last retriable error if its leader could not be asked in time."""
    deadline = time.monotonic() + timeout
    results: dict[TopicPartition, OffsetResult] = {}
    left = dict(tps)
    backoff = Backoff(_PAUSE, _PAUSE)
    stale = any(cluster.leader(tp) is None for tp in left)
    while left:
        if stale:
            await _refresh(cluster, left, deadline)
        answers = await _round(cluster, left, replica_id, isolation_level, deadline)
        results.update(answers)
        left = {tp: ts for tp, ts in left.items() if passing(NodeKind.LEADER, results[tp].error)}
        if not left or backoff.over(time.monotonic(), deadline):
            break
        stale = True
        await asyncio.sleep(backoff.next())
    return results


async def list_at(
    cluster: Leaders,
    node_id: int,
    asked: Mapping[TopicPartition, int],
    *,
    timeout: float,
    purpose: str = "default",
) -> dict[TopicPartition, OffsetResult]:
    """Offsets by timestamp of this broker's own logs, leader or not; a refusal is in the result. Raises WireError."""
    topics: dict[str, list[dict[str, int]]] = {}
    for tp, timestamp in asked.items():
        topics.setdefault(tp.topic, []).append(
            {"partition_index": tp.partition, "current_leader_epoch": -1, "timestamp": timestamp}
        )
    answer = await cluster.call(
        "list_offsets",
        {
            "replica_id": DEBUGGING_REPLICA_ID,
            "isolation_level": 0,
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        },
        node_id=node_id,
        timeout=timeout,
        purpose=purpose,
    )
    return {
        tp: OffsetResult(item.offset, item.timestamp, getattr(item, "leader_epoch", -1), int(item.error_code))
        for topic in answer.topics
        for item in topic.partitions
        if (tp := TopicPartition(topic.name, item.partition_index)) in asked
    }


async def _refresh(cluster: Leaders, left: Mapping[TopicPartition, int], deadline: float) -> None:
    remaining = max(deadline - time.monotonic(), 0.01)
    try:
        await cluster.refresh({tp.topic for tp in left}, timeout=remaining)
    except (ConnectionLost, ClusterUnreachable):
        # the answers below say it per partition; when time is up, it is said to the caller as it is
        if deadline - time.monotonic() <= _PAUSE:
            raise


async def _round(
    cluster: Leaders,
    left: Mapping[TopicPartition, int],
    replica_id: int,
    isolation_level: int,
    deadline: float,
) -> dict[TopicPartition, OffsetResult]:
    by_leader: dict[int, dict[str, dict[int, int]]] = {}
    results: dict[TopicPartition, OffsetResult] = {}
    for tp, timestamp in left.items():
        leader = cluster.leader(tp)
        if leader is None:
            topic = cluster.topics.get(tp.topic)
            error = topic.error if topic is not None and topic.error else LEADER_NOT_AVAILABLE
            results[tp] = OffsetResult(-1, -1, -1, error)
        else:
            by_leader.setdefault(leader.id, {}).setdefault(tp.topic, {})[tp.partition] = timestamp
    fatal: list[WireError] = []

    async def ask(node_id: int, wanted: dict[str, dict[int, int]]) -> None:
        try:
            connection = await _connection(cluster, node_id, deadline)
            wanted = _asked(connection.pick_version("list_offsets"), wanted, results)
            if not wanted:
                return
            answer = await _ask(connection, cluster, wanted, replica_id, isolation_level, deadline)
        except (ConnectionLost, ClusterUnreachable):
            for topic, partitions in wanted.items():
                for index in partitions:
                    results[TopicPartition(topic, index)] = OffsetResult(-1, -1, -1, NETWORK_EXCEPTION)
            return
        except WireError as error:
            fatal.append(error)
            return
        _collect(answer, wanted, results, fatal)

    async with TaskGroup() as group:
        for node_id, wanted in by_leader.items():
            group.create_task(ask(node_id, wanted))
    if fatal:
        # an error that cannot be a partition's: no rights, no common version, a peer that talks nonsense
        raise min(fatal, key=lambda error: not isinstance(error, AuthenticationFailed))
    return results


async def _connection(cluster: Leaders, node_id: int, deadline: float) -> Connection:
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.01)):
            return await cluster.connection(node_id)
    except TimeoutError:
        raise ConnectionLost("no connection in time", sent=False, api="list_offsets") from None


def _asked(
    version: int, wanted: Mapping[str, Mapping[int, int]], results: dict[TopicPartition, OffsetResult]
) -> dict[str, dict[int, int]]:
    """The partitions that the broker can be asked for; the others get their result here."""
    left: dict[str, dict[int, int]] = {}
    for topic, partitions in wanted.items():
        for index, timestamp in partitions.items():
            if unsupported(timestamp, version):
                results[TopicPartition(topic, index)] = OffsetResult(-1, -1, -1, UNSUPPORTED_VERSION)
            else:
                left.setdefault(topic, {})[index] = timestamp
    return left


async def _ask(
    connection: Connection,
    cluster: Leaders,
    wanted: Mapping[str, Mapping[int, int]],
    replica_id: int,
    isolation_level: int,
    deadline: float,
) -> Any:
    remaining = max(deadline - time.monotonic(), 0.01)
    return await connection.call(
        "list_offsets",
        {
            "replica_id": replica_id,
            "isolation_level": isolation_level,
            "timeout_ms": int(remaining * 1000),
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": index,
                            # A broker that has lost its leadership and does not know it is found out (KIP-320).
                            "current_leader_epoch": cluster.leader_epoch(TopicPartition(topic, index)),
                            "timestamp": timestamp,
                        }
                        for index, timestamp in partitions.items()
                    ],
                }
                for topic, partitions in wanted.items()
            ],
        },
        timeout=remaining,
    )


def _collect(
    answer: Any,
    wanted: Mapping[str, Mapping[int, int]],
    results: dict[TopicPartition, OffsetResult],
    fatal: list[WireError],
) -> None:
    for topic in answer.topics:
        for item in topic.partitions:
            results[TopicPartition(topic.name, item.partition_index)] = OffsetResult(
                item.offset, item.timestamp, getattr(item, "leader_epoch", -1), int(item.error_code)
            )
    for name, partitions in wanted.items():
        for index in partitions:
            tp = TopicPartition(name, index)
            if tp not in results:
                fatal.append(MalformedFrame("a partition is missing", api="list_offsets", topic_partition=tp))
