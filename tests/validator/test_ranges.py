"""Cutting partitions into ranges, tasks and groups."""

from __future__ import annotations

import random
from itertools import pairwise

from validator.read.ranges import PartitionBounds, Range, ReplicaBounds, make_groups, make_ranges, make_tasks
from validator.read.spans import LEADER, SOURCE

MB = 1 << 20


def bounds(
    partition: int = 0, end: int = 1000, *replicas: ReplicaBounds, **fields: object
) -> PartitionBounds:
    replicas = replicas or tuple(ReplicaBounds(slot, slot, 0, 0, end) for slot in (1, 2, 3))
    return PartitionBounds("t", partition, 0, end, replicas, **fields)  # type: ignore[arg-type]


def stretches(ranges: list[Range]) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(one.spec.start, one.spec.end, one.spec.slots) for one in ranges]


def test_a_huge_partition_is_many_ranges_of_equal_size():
    ranges = make_ranges([bounds(end=16_000_000, bytes_per_offset=64.0)], range_bytes=64 * MB)
    assert len(ranges) == 16
    assert {one.bytes for one in ranges} == {64_000_000}
    assert [one.spec.range_id for one in ranges] == list(range(16))
    assert [one.first for one in ranges] == [True] + [False] * 15
    assert ranges[0].spec.start == 0 and ranges[-1].spec.end == 16_000_000
    assert all(a.spec.end == b.spec.start for a, b in pairwise(ranges))


def test_what_each_side_is_asked_for():
    spans = [span for one in make_ranges([bounds(end=100)], range_bytes=50 * 1024) for span in one.spans()]
    assert [(span.slot, span.node, span.start, span.end, span.read_from) for span in spans] == [
        (SOURCE, LEADER, 0, 50, 0),
        (1, 1, 0, 50, 0),
        (2, 2, 0, 50, 0),
        (3, 3, 0, 50, 0),
        (SOURCE, LEADER, 50, 100, 49),
        (1, 1, 50, 100, 49),
        (2, 2, 50, 100, 49),
        (3, 3, 50, 100, 49),
    ]


def test_replicas_with_watermarks_starts_and_ends_of_their_own():
    found = bounds(
        0,
        100,
        ReplicaBounds(1, 1, 90, 0, 100),  # validated below 90
        ReplicaBounds(2, 2, 0, 20, 100),  # starts late
        ReplicaBounds(3, 3, 0, 0, 50),  # ends early
    )
    assert stretches(make_ranges([found])) == [
        (0, 20, (3,)),
        (20, 50, (2, 3)),
        (50, 51, (2,)),
        (51, 90, (2,)),
        (90, 100, (1, 2)),
    ]


def test_the_source_alone_is_read_where_only_it_can_explain():
    late = ReplicaBounds(1, 1, 0, 60, 100)
    assert stretches(make_ranges([bounds(0, 100, late)])) == [(0, 60, ()), (60, 100, (1,))]
    short = ReplicaBounds(1, 1, 0, 0, 60)
    assert stretches(make_ranges([bounds(0, 100, short)])) == [(0, 60, (1,)), (60, 61, ())]
    empty = ReplicaBounds(1, 1, 0, 0, 0)
    assert stretches(make_ranges([bounds(0, 100, empty)])) == [(0, 1, ())]
    beyond = ReplicaBounds(1, 1, 0, 500, 500)
    assert stretches(make_ranges([bounds(0, 100, beyond)])) == [(0, 100, ())]


def test_nothing_to_do_is_no_range():
    done = ReplicaBounds(1, 1, 100, 0, 100)
    ahead = ReplicaBounds(1, 1, 120, 0, 130)  # the source's high watermark went back after a failover
    assert make_ranges([bounds(0, 100, done), bounds(0, 0), bounds(0, 100, ahead)]) == []


def test_a_batch_that_the_first_range_begins_inside_of_is_its_own_whatever_lies_before():
    late = ReplicaBounds(1, 1, 0, 60, 100)
    assert [one.first for one in make_ranges([bounds(0, 100, late)], range_bytes=20 * 1024)] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_small_partitions_share_tasks():
    ranges = make_ranges([bounds(index, 10) for index in range(1000)])
    tasks = make_tasks(ranges, {("t", index): index % 3 for index in range(1000)})
    assert len(tasks) == 3 * 4 + 3 * 2  # 1,000 spans of each replica, 334 of each of the source's brokers
    assert sum(len(task.spans) for task in tasks) == 4000
    for task in tasks:
        assert len({span.node for span in task.spans}) == 1
        assert {span.slot == SOURCE for span in task.spans} == {task.source}


def test_large_ranges_are_tasks_of_their_own():
    ranges = make_ranges([bounds(end=16_000_000, bytes_per_offset=64.0)], range_bytes=64 * MB)
    tasks = make_tasks(ranges, {}, task_bytes=64 * MB)
    assert [len(task.spans) for task in tasks] == [1] * 64


def test_groups_are_bounded_and_in_order():
    ranges = make_ranges([bounds(end=16_000_000, bytes_per_offset=64.0)], range_bytes=64 * MB)
    groups = make_groups(ranges, group_bytes=1024 * MB)
    assert [len(group) for group in groups] == [4] * 4
    assert [one for group in groups for one in group] == ranges
    assert make_groups([]) == []


def test_random_bounds_cover_just_what_each_replica_has_to_hold():
    for seed in range(300):
        dice = random.Random(seed)
        end = dice.randint(0, 60)
        replicas = tuple(
            ReplicaBounds(
                slot, slot, dice.randint(0, 70), start := dice.randint(0, 40), dice.randint(start, 80)
            )
            for slot in range(1, dice.randint(2, 4))
        )
        ranges = make_ranges([bounds(0, end, *replicas)], range_bytes=dice.choice([1024, 7 * 1024, MB]))
        for replica in replicas:
            covered = [
                offset
                for one in ranges
                if replica.slot in one.spec.slots
                for offset in range(one.spec.start, one.spec.end)
            ]
            needed = range(max(replica.begin, replica.log_start), min(replica.high_watermark, end))
            assert covered == list(needed), seed
        starts = [one.spec.start for one in ranges]
        assert starts == sorted(set(starts)), seed
