"""The Spark job of one group of ranges: read every side's batches, bring each range together, judge it.

Rows of a range are brought to one task by its id, sorted by offset (on disk, if memory is short), and judged as a stream:
what a task holds is a few Arrow batches, however large the range. Only verdicts come back to the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from validator import source
from validator.endpoint import Endpoint
from validator.judging import COLUMNS, SORT, judge_sorted
from validator.ranges import Range, make_tasks
from validator.verdict import RangeSpec, RangeVerdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGES_PER_TASK = 4
_VERDICTS = pa.schema([("verdict", pa.string())])


def compare(
    spark: SparkSession,
    clusters: Mapping[str, Endpoint],
    ranges: Sequence[Range],
    leaders: Mapping[tuple[str, int], int],
) -> dict[int, RangeVerdict]:
    """Verdicts by range id; a range in which nobody holds anything has none. Raises what Spark raises: with the text of a
    SideFailed in it if that was the reason."""
    tasks = make_tasks(ranges, leaders)
    source.register(spark, clusters, tasks)
    rows = spark.read.format(source.FORMAT).schema(source.schema_of(*COLUMNS)).load()
    specs = {one.spec.range_id: one.spec for one in ranges}
    parts = max(1, min(len(ranges), spark.sparkContext.defaultParallelism * RANGES_PER_TASK))
    together = rows.repartition(parts, "range_id").sortWithinPartitions(*SORT)
    judged = together.mapInArrow(_judging(specs), "verdict string")
    verdicts = (RangeVerdict.from_json(json.loads(row.verdict)) for row in judged.collect())
    return {verdict.range_id: verdict for verdict in verdicts}


def task_count(spark: SparkSession, ranges: Sequence[Range], leaders: Mapping[tuple[str, int], int]) -> int:
    """Spark tasks that `compare` makes of these ranges."""
    parts = max(1, min(len(ranges), spark.sparkContext.defaultParallelism * RANGES_PER_TASK))
    return len(make_tasks(ranges, leaders)) + parts


def _judging(
    specs: Mapping[int, RangeSpec],
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """What runs in the executors."""

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for verdict in judge_sorted(batches, specs):
            yield pa.RecordBatch.from_pylist([{"verdict": json.dumps(verdict.to_json())}], _VERDICTS)

    return judge
