"""Small ranges whose sides are sorted in one task: which those are, and how many a task takes."""

from __future__ import annotations

from validator.compare.small_ranges import MOST_ROWS, make_small_tasks, rows_of_range, split_small
from validator.read.ranges import TASK_BYTES, TASK_SPANS, PartitionBounds, Range, ReplicaBounds, make_ranges


def ranges_of(count: int, offsets: int, *, bytes_per_offset: float = 1.0) -> list[Range]:
    """One of each of so many partitions, with three replicas each."""
    replicas = tuple(ReplicaBounds(slot, slot, 0, 0, offsets) for slot in (1, 2, 3))
    bounds = [
        PartitionBounds("t", index, 0, offsets, replicas, bytes_per_offset, compacted=True)
        for index in range(count)
    ]
    return make_ranges(bounds)


def test_a_range_is_small_if_a_batch_for_each_offset_of_each_side_fits_into_a_task():
    [fits] = ranges_of(1, MOST_ROWS // 4 - 1)
    [larger] = ranges_of(1, MOST_ROWS // 4)
    assert (rows_of_range(fits), rows_of_range(larger)) == (MOST_ROWS, MOST_ROWS + 4)
    assert split_small([fits, larger]) == ([fits], [larger])


def test_no_task_holds_more_than_its_rows():
    ranges = ranges_of(40, MOST_ROWS // 40)
    tasks = make_small_tasks(ranges, workers=1)
    assert [one for task in tasks for one in task.ranges] == ranges
    assert max(task.rows for task in tasks) <= MOST_ROWS
    assert len(tasks) == 5


def test_each_worker_gets_a_task():
    ranges = ranges_of(7, 10)
    assert [len(task.ranges) for task in make_small_tasks(ranges, workers=3)] == [3, 3, 1]
    assert [len(task.ranges) for task in make_small_tasks(ranges[:2], workers=8)] == [1, 1]
    assert make_small_tasks([], workers=8) == []


def test_what_is_read_again_if_a_task_fails_is_bounded():
    assert max(len(task.ranges) for task in make_small_tasks(ranges_of(600, 1), workers=1)) == TASK_SPANS
    large = ranges_of(4, 10, bytes_per_offset=TASK_BYTES / 20)
    assert [len(task.ranges) for task in make_small_tasks(large, workers=1)] == [2, 2]
