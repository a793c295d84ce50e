"""Replicas that end below the offset where their comparison would begin: no range lies there, and none of them is equal."""

from __future__ import annotations

import pytest

from tests.fakes.log import FakeLog
from tests.validator.without_spark import END, Runner, as_plan, damage, found
from validator.compare.facts import Missing
from validator.messages import ReplicaPlan
from validator.read.ranges import ReplicaBounds


async def test_a_paused_mirror_that_retention_at_the_source_has_overtaken_is_not_equal(runner: Runner):
    for node in (1, 2, 3):
        damage(runner, lambda log: setattr(log, "high_watermark", 30), node)
    before = await runner.run(runner.plan(), wait_s=0.1)
    assert [found(one) for one in before] == [[("short", 30)]] * 3
    runner.source.partition("t").log.delete_until(50)
    known = tuple(as_plan(one) for one in before)
    for plan in (runner.plan(), runner.plan(replicas=known)):
        results = await runner.run(plan, wait_s=0.1)
        through = plan.replicas[0].through or 0
        assert [(one.through, one.source_end, one.replica_end) for one in results] == [(through, END, 30)] * 3
        assert [found(one) for one in results] == [[("short", through)]] * 3
        assert runner.failed.side == "target"
        assert "broker 1's replica of t-0 ends at offset 30, below offset 50" in runner.failed.reason
        assert runner.failed.reason.endswith("(and 2 more)")


async def test_replicas_that_are_lost_after_they_were_proved_to_the_end_are_not_equal(runner: Runner):
    proved = tuple(as_plan(one) for one in await runner.run(runner.plan(end=END)))
    for node in (1, 2, 3):
        runner.target.partition("t").replica_logs[node] = FakeLog()
    for end in (END, None):
        results = await runner.run(runner.plan(end=end, replicas=proved), wait_s=0.1)
        assert [(found(one), one.replica_end) for one in results] == [([("short", END)], 0)] * 3
        assert [as_plan(one) for one in results] == list(proved), "it stays known what was proved once"
        assert runner.failed.side == "target"
        assert f"ends at offset 0, below offset {END}" in runner.failed.reason


async def test_one_lost_replica_leaves_the_others_and_other_partitions_judged(runner: Runner):
    for cluster in (runner.source, runner.target):
        cluster.add_topic("other").partitions[0].add(5)
    proved = tuple(as_plan(one) for one in await runner.run(runner.plan(end=END)))
    runner.target.partition("t").replica_logs[2] = FakeLog()
    results = await runner.run(runner.plan(end=END, replicas=proved), runner.plan("other"), wait_s=0.1)
    assert [(one.topic, one.broker_id, one.through) for one in results] == [
        *(("other", node, 5) for node in (1, 2, 3)),
        *(("t", node, END) for node in (1, 2, 3)),
    ]
    assert [found(one) for one in results] == [[]] * 4 + [[("short", END)], []]
    assert runner.failed.side == "target" and "broker 2's replica of t-0" in runner.failed.reason


async def test_what_it_lacked_before_its_start_stays_known(runner: Runner):
    lacks = Missing(start=0, end=30, batches=6, records=30, why="a disk was lost")
    known = ReplicaPlan(broker_id=1, through=END, start=0, missing=lacks)
    runner.target.partition("t").replica_logs[1] = FakeLog()
    [result] = await runner.run(runner.plan(replicas=(known,)), wait_s=0.1)
    assert (found(result), result.missing) == ([("short", END)], lacks)


async def test_a_source_that_has_dropped_all_up_to_the_exact_end_leaves_nothing_to_compare(runner: Runner):
    """It was written to after the hand-over, and has expired: the replicas end where they have to."""
    log = runner.source.partition("t").log
    for _ in range(20):
        log.add(5)
    log.delete_until(END + 20)
    results = await runner.run(runner.plan(end=END))
    assert [found(one) for one in results] == [[]] * 3
    assert runner.finished.mismatches == 0


@pytest.mark.parametrize(
    ("begin", "high_watermark", "end", "expected"),
    [
        (50, 49, 100, True),
        (50, 50, 100, False),
        (100, 0, 100, True),
        (100, 100, 100, False),
        (200, 100, 100, False),  # nothing below the end is left at the source
        (200, 99, 100, True),
        (0, 0, 100, False),
        (0, 0, 0, False),
    ],
)
def test_the_end_that_a_replica_needs_for_a_comparison(
    begin: int, high_watermark: int, end: int, expected: bool
):
    assert ReplicaBounds(1, 1, begin, 0, high_watermark).ends_before_begin(end) is expected
