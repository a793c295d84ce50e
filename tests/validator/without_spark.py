"""A run over fake brokers with everything but Spark: the same spans are read, sorted and judged in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.log import FakeLog
from tests.validator import logs
from validator import batch_run
from validator.batch_run import BatchRun
from validator.compare.judging import COLUMNS, SORT, judge_sorted
from validator.compare.logs import split
from validator.compare.side_by_side import read_side_by_side
from validator.compare.small_ranges import MOST_ROWS, judge_small, make_small_tasks, split_small
from validator.compare.verdict import RangeVerdict
from validator.messages import (
    Checked,
    Event,
    Failed,
    Finished,
    PartitionPlan,
    ReplicaPlan,
    ReplicaResult,
    Run,
    Side,
)
from validator.read import survey
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import Range, make_joint_tasks, make_tasks
from validator.read.reader import read_arrow

END = logs.BATCHES * logs.RECORDS


def compare_here(
    spark: object,
    clusters: Mapping[str, ClusterEndpoint],
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
    *,
    small: int = MOST_ROWS,
) -> dict[int, RangeVerdict]:
    """compare.compare without Spark. `small`: the most rows that are sorted in one task."""
    verdicts: dict[int, RangeVerdict] = {}
    plain, rest = split(ranges)
    for task in make_joint_tasks(plain, leaders, workers=2):
        verdicts |= {
            key: verdict for key, verdict in read_side_by_side(clusters, task) if verdict is not None
        }
    rest += [one for one in plain if one.spec.range_id not in verdicts]
    few, rest = split_small(rest, small)
    for one in make_small_tasks(few, workers=2, most=small):
        told = dict(judge_small(clusters, one.ranges, most=small))
        verdicts |= {key: verdict for key, verdict in told.items() if verdict is not None}
        rest += [each for each in one.ranges if told.get(each.spec.range_id, each) is None]
    return verdicts | sorted_here(clusters, rest, leaders)


def sorted_here(
    clusters: Mapping[str, ClusterEndpoint],
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
) -> dict[int, RangeVerdict]:
    """The way of ranges whose sides are not simply alike."""
    batches = [
        batch
        for task in make_tasks(ranges, leaders)
        for batch in read_arrow(clusters["source" if task.source else "target"], task.spans, COLUMNS)
    ]
    if not batches:
        return {}
    table = pa.Table.from_batches(batches).sort_by([(name, "ascending") for name in SORT])
    specs = {one.spec.range_id: one.spec for one in ranges}
    return {verdict.range_id: verdict for verdict in judge_sorted(table.to_batches(7), specs)}


class NoSpark:
    """As much of a session as a run touches outside of compare."""

    sparkContext: Any

    def __init__(self) -> None:
        self.sparkContext = self
        self.jobs = 0
        self.job_cancelled = threading.Event()

    def setJobGroup(self, *args: object) -> None:
        self.jobs += 1

    def cancelJobGroup(self, group: str) -> None:
        self.job_cancelled.set()

    def statusTracker(self) -> Any:
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return []


def side(cluster: FakeCluster, name: str) -> Side:
    return Side(name=name, bootstrap=tuple(f"{host}:{port}" for host, port in cluster.bootstrap))


class Runner:
    """Runs over two fake clusters."""

    def __init__(
        self, source: FakeCluster, target: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, small: int
    ) -> None:
        self.source, self.target = source, target
        self.events: list[Event] = []
        self.cancelled = threading.Event()
        self.spark = NoSpark()
        monkeypatch.setattr(survey, "ASK_AGAIN_SECONDS", 0.3)
        monkeypatch.setattr(batch_run, "compare", partial(compare_here, small=small))
        monkeypatch.setattr(batch_run, "task_count", lambda spark, group, leaders: len(group))

    def plan(self, topic: str = "t", partition: int = 0, **fields: Any) -> PartitionPlan:
        replicas = fields.pop("replicas", None) or tuple(
            ReplicaPlan(broker_id=i) for i in self.target.brokers
        )
        return PartitionPlan(topic=topic, partition=partition, replicas=replicas, **fields)

    async def run(self, *plans: PartitionPlan, wait_s: float = 0.0) -> list[ReplicaResult]:
        """The last result of every replica."""
        self.events = []
        run = Run(
            id="r",
            source=side(self.source, "a"),
            target=side(self.target, "b"),
            partitions=plans,
            wait_s=wait_s,
        )
        work = BatchRun(self.spark, run, self.events.append, self.cancelled)  # type: ignore[arg-type]
        await asyncio.to_thread(work.execute)
        last: dict[tuple[str, int, int], ReplicaResult] = {}
        for event in self.events:
            if isinstance(event, Checked):
                last |= {(one.topic, one.partition, one.broker_id): one for one in event.results}
        return [last[key] for key in sorted(last)]

    @property
    def end(self) -> Finished | Failed:
        """How the run ended; exactly one of the two, and the last event."""
        ends = [event for event in self.events if isinstance(event, Finished | Failed)]
        assert len(ends) == 1 and self.events[-1] is ends[0]
        return ends[0]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end


def found(result: ReplicaResult) -> list[tuple[str, int]]:
    return [(one.kind.value, one.offset) for one in result.findings]


def damage(runner: Runner, edit: Callable[[FakeLog], object], node: int = 2) -> FakeLog:
    """Give one broker of the target a log of its own."""
    partition = runner.target.partition("t")
    log = partition.replica_logs[node] = logs.copy_log(runner.source.partition("t").log)
    edit(log)
    return log


def as_plan(result: ReplicaResult) -> ReplicaPlan:
    names = ("broker_id", "through", "start", "digest", "source_digest", "batches", "records", "bytes")
    return ReplicaPlan(**{name: getattr(result, name) for name in names})
