"""Which records of compacted partitions are settled: their transaction was committed, or they never had one.

Only such a record supersedes or deletes others of its key: a log cleaner leaves aborted ones out of its map and goes no
further than the last stable offset (Cleaner.buildOffsetMapForSegment, LogCleanerManager.cleanableOffsets).
"""

from __future__ import annotations

from collections.abc import Mapping

from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import PartitionBounds
from validator.read.survey import CALL_TIMEOUT, fetch_each
from validator.records.frames import SOURCE
from wire.errors import BrokerError, WireError
from wire.frames.list_offsets import LATEST
from wire.frames.types import TopicPartition

COMMITTED = {"kafka.isolation.level": "read_committed", "kafkaConsumer.pollTimeoutMs": "10000"}
"""The connector's options for settled records alone. Only below a stable end: beyond it a reader waits in vain."""

StableEnds = Mapping[tuple[TopicPartition, int], int]
"""(partition, slot) -> its last stable offset; the slot is SOURCE or a broker's id."""


async def stable_ends(
    source: ClusterEndpoint, target: ClusterEndpoint, bounds: Mapping[TopicPartition, PartitionBounds]
) -> dict[tuple[TopicPartition, int], int]:
    """Asked of the source's leaders and of each replica itself. Raises SideFailed."""
    found: dict[tuple[TopicPartition, int], int] = {}
    if not bounds:
        return found
    async with source.cluster() as cluster:
        try:
            answers = await cluster.list_offsets(
                dict.fromkeys(bounds, LATEST), isolation_level=1, timeout=CALL_TIMEOUT
            )
        except WireError as error:
            raise source.failed(error) from error
        for tp, answer in answers.items():
            if answer.error:
                raise source.failed(BrokerError(answer.error, api="list_offsets", topic_partition=tp))
            found[tp, SOURCE] = answer.offset
    asked: dict[int, dict[TopicPartition, int]] = {}
    for tp, one in bounds.items():
        for replica in one.replicas:
            asked.setdefault(replica.broker_id, {})[tp] = replica.high_watermark
    async with target.cluster() as cluster:
        try:
            for broker_id, ends in asked.items():
                async for tp, _, data in fetch_each(cluster, broker_id, ends, 1):
                    if data.error:
                        raise BrokerError(data.error, api="fetch", topic_partition=tp, offset=ends[tp])
                    found[tp, broker_id] = data.last_stable_offset
        except WireError as error:
            raise target.failed(error) from error
    return found


def settled(
    wanted: Mapping[int, Mapping[int, tuple[int, int]]], tps: list[TopicPartition], ends: StableEnds
) -> dict[int, dict[int, tuple[int, int]]]:
    """slot -> part -> [start, end), no further than it is settled."""
    return {
        slot: {
            part: (start, min(end, ends.get((tps[part], slot), start)))
            for part, (start, end) in parts.items()
        }
        for slot, parts in wanted.items()
    }
