"""A fast copy that is no copy is worth nothing: the benchmark's own topics, compared after they were measured.

The comparison is the demonstration's: every batch of every replica against the source's leader, byte for byte but
for the leader epoch, with offsets, CRCs and order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from lab.bench.cluster import BenchCluster
from lab.bench.stage import Stage
from lab.workload.log_compare import compare_replica
from lab.workload.replica_log import open_replica
from wire.frames.batch import Record
from wire.frames.types import TopicPartition

SOURCE_LEADER = 1


async def compare(
    on: Stage, topic: str, partitions: int, brokers: Sequence[int]
) -> tuple[dict[str, int], list[str]]:
    """Counts of what was compared, and every difference; nobody may be writing to the topic."""
    return await asyncio.to_thread(_compare, on, topic, partitions, brokers)


def _compare(
    on: Stage, topic: str, partitions: int, brokers: Sequence[int]
) -> tuple[dict[str, int], list[str]]:
    problems = []
    replicas = batches = size = 0
    for index in range(partitions):
        tp = TopicPartition(topic, index)
        original = open_replica(on.source.log_dir(SOURCE_LEADER), tp)
        for broker in brokers:
            found = compare_replica(original, open_replica(on.target.log_dir(broker), tp), tp, broker)
            replicas, batches, size = replicas + 1, batches + found.batches, size + found.compared_bytes
            if not found.identical:
                problems.append(f"{tp} on broker {broker} differs from the source: {found.difference}")
    return {"replicas": replicas, "batches": batches, "bytes": size}, problems


def source_records(source: BenchCluster, tp: TopicPartition) -> Iterator[Record]:
    """The records of a partition as its leader at the source holds them."""
    for batch in open_replica(source.log_dir(SOURCE_LEADER), tp).batches():
        if not batch.header.is_control:
            yield from batch.records()
