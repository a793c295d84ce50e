"""The logs of one attempt at a group of partitions, both sides', as frames of records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from validator.messages import PartitionPlan, ReplicaPlan
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.kafka_source import ReadRange, client_options, read
from validator.read.ranges import PartitionBounds, ReplicaBounds
from validator.read.survey import Survey, survey
from validator.records import frames as record_frames
from validator.records.commits import COMMITTED, StableEnds, settled, stable_ends
from validator.records.frames import NO_END, SOURCE, Expected
from wire.errors import WireError
from wire.frames.types import TopicPartition


class RecordLogs:
    """Of these partitions, as they were found: which replicas can be read, and their records."""

    def __init__(
        self,
        spark: SparkSession,
        source: ClusterEndpoint,
        target: ClusterEndpoint,
        plans: Sequence[PartitionPlan],
        found: Survey,
        leaders: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> None:
        self.spark, self.source, self.target = spark, source, target
        self.found = found
        self.now_ms = now_ms
        self.plans = {TopicPartition(plan.topic, plan.partition): plan for plan in plans}
        self.tps = list(found.bounds)
        self.failures = list(found.failures)
        self.readable: dict[tuple[int, int], ReplicaBounds] = {}  # (part, broker id)
        for part, tp in enumerate(self.tps):
            bounds = found.bounds[tp]
            brokers = {replica.broker_id for replica in self.plans[tp].replicas}
            leader = leaders.get(tp, -1)
            for one in bounds.replicas:
                if leader in brokers and leader != one.broker_id:
                    self.failures.append(_only_the_leader(tp, one.broker_id, leader))
                else:
                    self.readable[part, one.broker_id] = one

    def rows(self, expected: Sequence[Expected]) -> DataFrame | None:
        """Both sides' records of these stretches; None if there is nothing to read."""
        return self.read(self.stretches(expected))

    @staticmethod
    def stretches(expected: Sequence[Expected]) -> dict[int, dict[int, tuple[int, int]]]:
        wanted: dict[int, dict[int, tuple[int, int]]] = {}
        for one in expected:
            low, high = wanted.setdefault(SOURCE, {}).get(one.part, (NO_END, 0))
            wanted[SOURCE][one.part] = min(low, one.prefix), max(high, one.end)
            wanted.setdefault(one.slot, {})[one.part] = one.start, one.end
        return wanted

    def read(
        self, wanted: Mapping[int, Mapping[int, tuple[int, int]]], more: Mapping[str, str] | None = None
    ) -> DataFrame | None:
        """slot -> part -> [start, end) as `record_frames.sides` makes it."""
        frames = []
        for slot, parts in wanted.items():
            ranges = [
                ReadRange(self.tps[part].topic, self.tps[part].partition, start, end)
                for part, (start, end) in sorted(parts.items())
                if start < end
            ]
            if not ranges:
                continue
            side, replica = (self.source, None) if slot == SOURCE else (self.target, slot)
            options = {**client_options(side, replica=replica), **(more or {})}
            frames.append((slot, read(self.spark, options, ranges, side.topic_prefix)))
        if not frames:
            return None
        return record_frames.sides(self.spark, frames, [(tp.topic, tp.partition) for tp in self.tps])

    # --- compacted logs -------------------------------------------------------------------------------------

    def read_settled(
        self, wanted: Mapping[int, Mapping[int, tuple[int, int]]], ends: StableEnds
    ) -> DataFrame | None:
        """As `read`, committed records alone."""
        return self.read(settled(wanted, self.tps, ends), COMMITTED)

    def stable_ends(self, bounds: Mapping[TopicPartition, PartitionBounds]) -> StableEnds:
        return asyncio.run(stable_ends(self.source, self.target, bounds))

    def bounds_now(self) -> dict[TopicPartition, PartitionBounds]:
        """Log starts and ends of the partitions at this moment."""
        plans = [
            plan.model_copy(
                update={
                    "end": None,
                    "start": 0,
                    "replicas": tuple(ReplicaPlan(broker_id=replica.broker_id) for replica in plan.replicas),
                }
            )
            for tp, plan in self.plans.items()
            if tp in self.found.bounds
        ]
        found, _ = asyncio.run(look(self.source, self.target, plans, 0.0))
        return found.bounds


async def look(
    source: ClusterEndpoint,
    target: ClusterEndpoint,
    plans: Sequence[PartitionPlan],
    wait_s: float,
    topics: set[str] | None = None,
) -> tuple[Survey, dict[TopicPartition, int]]:
    """A survey of the logs, and the leaders at the target."""
    found = await survey(source, target, plans, wait_s=wait_s) if plans else Survey()
    wanted = topics if topics is not None else {tp.topic for tp in found.bounds}
    leaders: dict[TopicPartition, int] = {}
    async with target.cluster() as cluster:
        try:
            await cluster.refresh(wanted)
        except WireError as error:
            raise target.failed(error) from error
        for name in wanted:
            topic = cluster.topics.get(name)
            for index in topic.partitions if topic is not None else ():
                leader = cluster.leader(TopicPartition(name, index))
                leaders[TopicPartition(name, index)] = leader.id if leader is not None else -1
    return found, leaders


def _only_the_leader(tp: TopicPartition, broker_id: int, leader: int) -> SideFailed:
    return SideFailed(
        "target",
        None,
        f"{tp.topic}-{tp.partition}: broker {leader} leads it, and Spark's Kafka connector reads leaders only; the"
        f" replica on broker {broker_id} can be compared by records before the promote, or by batches at any time",
    )
