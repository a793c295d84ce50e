"""One task that reads all sides of small ranges, sorts what they hold in memory, and judges it.

For ranges whose sides are not simply alike (a compacted topic, a difference). Spark's own way for these, a data source and a
shuffle, starts several Python processes in turn, which takes longer than such a range does.

Runs in executors; knows sockets by way of reader.py, and no Spark.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from validator.compare.judging import COLUMNS, SORT, judge_sorted
from validator.compare.verdict import RangeVerdict
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import TASK_BYTES, TASK_SPANS, Range, make_tasks
from validator.read.reader import read_arrow
from validator.read.spans import Span

MOST_ROWS = 65_536
"""Batches of all sides that a task holds, about 130 bytes each, twice while they are sorted."""


@dataclass(slots=True)
class SmallTask:
    """Ranges that are read and sorted together."""

    ranges: list[Range] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


def split_small(ranges: Sequence[Range], most: int = MOST_ROWS) -> tuple[list[Range], list[Range]]:
    """Those that fit into a task, and the others."""
    small = [one for one in ranges if rows_of_range(one) <= most]
    return small, [one for one in ranges if rows_of_range(one) > most]


def rows_of_range(one: Range) -> int:
    """The most batches that all sides may show for it: a batch has an offset at least, and one may have begun before."""
    return (one.spec.end - one.spec.start + 1) * one.sides


def make_small_tasks(ranges: Sequence[Range], *, workers: int, most: int = MOST_ROWS) -> list[SmallTask]:
    """Tasks over these ranges, each of which fits into one; at least one for each of so many workers."""
    share = max(1, -(-len(ranges) // workers))
    tasks: list[SmallTask] = []
    for one in ranges:
        rows = rows_of_range(one)
        task = tasks[-1] if tasks else None
        if (
            task is None
            or len(task.ranges) >= min(share, TASK_SPANS)
            or task.rows + rows > most
            or task.bytes + one.bytes > TASK_BYTES
        ):
            task = SmallTask()
            tasks.append(task)
        task.ranges.append(one)
        task.rows += rows
        task.bytes += one.bytes
    return tasks


def judge_small(
    clusters: Mapping[str, ClusterEndpoint], ranges: Sequence[Range], *, most: int = MOST_ROWS
) -> list[tuple[int, RangeVerdict | None]]:
    """A verdict per range id; none where nobody holds anything. None for all of them if there are more batches than offsets
    (some lie there twice), and more than twice `most`: they are not sorted in memory. Raises SideFailed."""
    batches: list[pa.RecordBatch] = []
    rows = 0
    for task in make_tasks(ranges, {}):
        with closing(_read(clusters["source" if task.source else "target"], task.spans)) as read:
            for batch in read:
                rows += batch.num_rows
                if rows > 2 * most:
                    return [(one.spec.range_id, None) for one in ranges]
                batches.append(batch)
    if not batches:
        return []
    table = pa.Table.from_batches(batches).sort_by([(name, "ascending") for name in SORT])
    specs = {one.spec.range_id: one.spec for one in ranges}
    return [(verdict.range_id, verdict) for verdict in judge_sorted(table.to_batches(), specs)]


def _read(endpoint: ClusterEndpoint, spans: Sequence[Span]) -> Generator[pa.RecordBatch]:
    yield from read_arrow(endpoint, spans, COLUMNS)
