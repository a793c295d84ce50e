"""The Spark jobs of one group of ranges.

First every range is read from all sides at once, in one task, and settled there if all sides are alike: nothing leaves the
task but sums. The rest (something differs, the topic is compacted, one side alone has to show something) is sorted by
offset and judged as a stream: in one task, if it is small (`small_ranges`), or by Spark, which brings the rows of
`kafka-batches` together by range (on disk, if memory is short). Either way only verdicts come back to the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from validator.compare.judging import COLUMNS, SORT, judge_sorted
from validator.compare.side_by_side import read_side_by_side
from validator.compare.small_ranges import SmallTask, judge_small, make_small_tasks, split_small
from validator.compare.verdict import RangeSpec, RangeVerdict
from validator.read import source
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import JointTask, Range, make_joint_tasks, make_tasks
from validator.read.shipping import forget_zip_directories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGES_PER_TASK = 4
_VERDICTS = pa.schema([("verdict", pa.string())])


def compare(
    spark: SparkSession,
    clusters: Mapping[str, ClusterEndpoint],
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
) -> dict[int, RangeVerdict]:
    """Verdicts by range id; a range in which nobody holds anything may have none. Raises what Spark raises: with the text of
    a SideFailed in it if that was the reason."""
    plain, rest = split(ranges)
    small, rest = split_small(rest)
    told = _told(spark, clusters, [*_joint_tasks(spark, plain, leaders), *_small_tasks(spark, small)])
    odd_small, odd = split_small(_unsettled(plain, told))
    later = _told(spark, clusters, _small_tasks(spark, odd_small))
    verdicts = {key: verdict for key, verdict in [*told.items(), *later.items()] if verdict is not None}
    if rest := [*rest, *odd, *_unsettled(small, told), *_unsettled(odd_small, later)]:
        verdicts |= _sorted(spark, clusters, rest, leaders)
    return verdicts


def _told(
    spark: SparkSession, clusters: Mapping[str, ClusterEndpoint], tasks: Sequence[JointTask | SmallTask]
) -> dict[int, RangeVerdict | None]:
    """By range id, from one job. None: the task did not settle it; none at all: nobody holds anything."""
    if not tasks:
        return {}
    told = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(_reading(clusters)).collect()
    return {range_id: RangeVerdict.from_json(json.loads(text)) if text else None for range_id, text in told}


def _unsettled(ranges: Sequence[Range], told: Mapping[int, RangeVerdict | None]) -> list[Range]:
    return [one for one in ranges if one.spec.range_id in told and told[one.spec.range_id] is None]


def split(ranges: Sequence[Range]) -> tuple[list[Range], list[Range]]:
    """Those whose sides are probably alike, and the others."""
    plain = [one for one in ranges if one.spec.slots and not one.spec.compacted]
    return plain, [one for one in ranges if not one.spec.slots or one.spec.compacted]


def task_count(spark: SparkSession, ranges: Sequence[Range], leaders: Mapping[tuple[str, int], int]) -> int:
    """Spark tasks that `compare` makes of these ranges, if nothing differs."""
    plain, rest = split(ranges)
    small, rest = split_small(rest)
    count = len(_joint_tasks(spark, plain, leaders)) + len(_small_tasks(spark, small))
    return count + (len(make_tasks(rest, leaders)) + _parts(spark, rest) if rest else 0)


def _joint_tasks(
    spark: SparkSession, ranges: Sequence[Range], leaders: Mapping[tuple[str, int], int]
) -> list[JointTask]:
    return make_joint_tasks(ranges, leaders, workers=spark.sparkContext.defaultParallelism)


def _small_tasks(spark: SparkSession, ranges: Sequence[Range]) -> list[SmallTask]:
    return make_small_tasks(ranges, workers=spark.sparkContext.defaultParallelism)


def _parts(spark: SparkSession, ranges: Sequence[Range]) -> int:
    return max(1, min(len(ranges), spark.sparkContext.defaultParallelism * RANGES_PER_TASK))


def _sorted(
    spark: SparkSession,
    clusters: Mapping[str, ClusterEndpoint],
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
) -> dict[int, RangeVerdict]:
    """Verdicts from all rows of the ranges."""
    source.register(spark, clusters, make_tasks(ranges, leaders))
    rows = spark.read.format(source.FORMAT).schema(source.schema_of(*COLUMNS)).load()
    specs = {one.spec.range_id: one.spec for one in ranges}
    together = rows.repartition(_parts(spark, ranges), "range_id").sortWithinPartitions(*SORT)
    judged = together.mapInArrow(_judging(specs), "verdict string")
    verdicts = (RangeVerdict.from_json(json.loads(row.verdict)) for row in judged.collect())
    return {verdict.range_id: verdict for verdict in verdicts}


# --- in executors -----------------------------------------------------------------------------------------------


def _reading(
    clusters: Mapping[str, ClusterEndpoint],
) -> Callable[[JointTask | SmallTask], list[tuple[int, str | None]]]:
    def read(task: JointTask | SmallTask) -> list[tuple[int, str | None]]:
        try:
            if isinstance(task, SmallTask):
                found = judge_small(clusters, task.ranges)
            else:
                found = read_side_by_side(clusters, task)
        finally:
            forget_zip_directories()
        return [
            (range_id, None if verdict is None else json.dumps(verdict.to_json()))
            for range_id, verdict in found
        ]

    return read


def _judging(
    specs: Mapping[int, RangeSpec],
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for verdict in judge_sorted(batches, specs):
            yield pa.RecordBatch.from_pylist([{"verdict": json.dumps(verdict.to_json())}], _VERDICTS)
        forget_zip_directories()

    return judge
