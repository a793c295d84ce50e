"""Whole runs over fake brokers: what they catch, what they let pass, how they end and go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.log import FakeLog
from tests.validator import logs
from tests.validator.without_spark import END, Runner, as_plan, damage, found
from validator import batch_run
from validator.messages import Checked, Progress
from validator.read import ranges, survey


async def test_equal_replicas_are_through_to_the_end(runner: Runner):
    results = await runner.run(runner.plan())
    assert [(one.broker_id, one.through, one.findings_count) for one in results] == [
        (1, END, 0),
        (2, END, 0),
        (3, END, 0),
    ]
    assert all(one.digest == one.source_digest for one in results)
    assert results[0].digest == results[2].digest
    assert runner.finished.mismatches == 0
    assert runner.finished.batches == 3 * logs.BATCHES
    assert runner.finished.replicas == 3


FAULTS: list[tuple[str, Callable[[FakeLog], object], list[tuple[str, int]]]] = [
    ("bit", lambda log: logs.change(log, 50, logs.flip_bit), [("corrupt", 50)]),
    ("crc fixed", lambda log: logs.change(log, 50, logs.flip_bit, fix_crc=True), [("differing", 50)]),
    ("missing", lambda log: logs.drop(log, 50), [("missing", 50)]),
    ("doubled", lambda log: logs.double(log, 50), [("overlapping", 50)]),
    ("swapped", lambda log: logs.swap(log, 50), [("reordered", 50)]),
    ("one record short", logs.cut_record, [("differing", END - 5), ("short", END - 1)]),
    ("no batch", lambda log: logs.change(log, 50, logs.break_length), [("corrupt", 50)]),
]


@pytest.mark.parametrize("range_bytes", [64, 700, 1 << 20])
@pytest.mark.parametrize(("edit", "expected"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
async def test_planted_faults_are_found_on_the_replica_that_has_them(
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    edit: Callable[[FakeLog], object],
    expected: list[tuple[str, int]],
    range_bytes: int,
):
    monkeypatch.setattr(
        batch_run, "make_ranges", lambda p: ranges.make_ranges(p, range_bytes=range_bytes * 40)
    )
    damage(runner, edit)
    good, bad, other = await runner.run(runner.plan())
    first = min(offset for _, offset in expected)
    if range_bytes == 64 and expected == [("reordered", 50)]:
        # the seam between two ranges runs between the two: what lies on the wrong side of it is missing there
        assert bad.findings[0].offset == 50
    elif expected == [("corrupt", 50)]:
        # a range that begins inside of bytes that are no batch cannot be read either
        assert found(bad)[0] == ("corrupt", 50)
        assert all(kind == "corrupt" and 50 <= offset < 55 for kind, offset in found(bad))
    else:
        assert found(bad) == expected
    assert bad.through == first
    assert (good.through, other.through) == (END, END)
    assert good.findings_count == other.findings_count == 0
    assert runner.finished.mismatches == 1


async def test_a_log_that_starts_too_late_is_a_finding_with_the_batch_that_is_missing(runner: Runner):
    damage(runner, lambda log: log.delete_until(30))
    _, late, _ = await runner.run(runner.plan())
    assert found(late) == [("late_start", 0)]
    assert late.findings[0].source is not None and late.findings[0].source.base_offset == 0
    assert (late.start, late.through, late.records) == (30, END, END - 30)
    assert late.digest == late.source_digest  # of what it does hold
    assert late.missing is not None
    assert (late.missing.start, late.missing.end) == (0, 30)
    assert (late.missing.batches, late.missing.records, late.missing.exact) == (6, 30, True)
    assert runner.finished.mismatches == 1


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"retention_ms": 1000}, "older than the target topic's retention.ms=1000"),
        ({"retention_bytes": 100}, "retention.bytes=100 may have taken them"),
        ({"retention_ms": 10 * 365 * 86_400_000 * 10}, "does not explain it"),
        ({}, "retention.ms=unlimited"),
    ],
)
async def test_no_retention_of_the_target_makes_a_late_start_equal(
    runner: Runner, limits: dict[str, int], why: str
):
    damage(runner, lambda log: log.delete_until(30))
    _, late, _ = await runner.run(runner.plan(**limits))
    assert found(late) == [("late_start", 0)]
    assert why in late.findings[0].detail
    assert "from offset 0 on the source has 30 records" in late.findings[0].detail


async def test_a_start_inside_a_batch_counts_the_records_before_it_only(runner: Runner):
    damage(runner, lambda log: log.delete_until(32))
    _, late, _ = await runner.run(runner.plan())
    assert late.missing is not None
    assert (late.missing.end, late.missing.records) == (32, 32)
    assert late.through == END


async def test_what_was_proved_and_is_gone_since_is_missed_though_it_lies_below_the_watermark(runner: Runner):
    first = [as_plan(one) for one in await runner.run(runner.plan())]
    damage(runner, lambda log: log.delete_until(30))
    plan = runner.plan().model_copy(update={"replicas": tuple(first)})
    _, late, _ = await runner.run(plan)
    assert late.missing is not None and late.missing.records == 30
    assert (late.start, late.through, late.records) == (0, END, END)
    # The same is not read again: a count that nobody could find comes back as it is.
    counted = late.missing.model_copy(update={"records": 777})
    known = first[1].model_copy(update={"missing": counted})
    plan = plan.model_copy(update={"replicas": (first[0], known, first[2])})
    _, once_more, _ = await runner.run(plan)
    assert (once_more.missing, found(once_more)) == (counted, [("late_start", 0)])
    damage(runner, lambda log: log.delete_until(35))
    _, more, _ = await runner.run(plan)
    assert more.missing is not None and (more.missing.end, more.missing.records) == (35, 35)


@pytest.mark.parametrize(
    ("lost", "limits", "why"),
    [
        (50, {"min_compaction_lag_ms": 100 * 365 * 86_400_000}, "younger than min.compaction.lag.ms"),
        (
            50,
            {"segment_bytes": 1 << 30, "segment_ms": 7 * 86_400_000},
            "never had enough for a second segment",
        ),
    ],
)
async def test_a_batch_that_no_cleaner_can_have_taken_is_missing_on_a_compacted_topic_too(
    runner: Runner, lost: int, limits: dict[str, int], why: str
):
    damage(runner, lambda log: log.batches.pop(logs.index_of(log, lost)))
    good, bad, _ = await runner.run(runner.plan(compacted=True, **limits))
    assert found(good) == []
    assert found(bad) == [("missing", lost)]
    assert why in bad.findings[0].detail
    assert bad.through == lost


async def test_a_batch_that_a_cleaner_may_have_taken_is_counted(runner: Runner):
    damage(runner, lambda log: log.batches.pop(logs.index_of(log, 50)))
    for limits in (
        {},
        {"min_compaction_lag_ms": 1000},
        {"segment_bytes": 1000, "segment_ms": 7 * 86_400_000},  # it may have rolled by size
        {"segment_bytes": 1 << 30, "segment_ms": 20},  # or by time
    ):
        _, bad, _ = await runner.run(runner.plan(compacted=True, **limits))
        assert (found(bad), bad.lawful) == ([], {"compacted_on_replica": 1})
        assert bad.through == END


async def test_retention_at_the_source_is_lawful_and_so_is_a_start_inside_a_batch(runner: Runner):
    runner.source.partition("t").log.delete_until(32)
    damage(runner, lambda log: log.delete_until(32))
    results = await runner.run(runner.plan())
    assert [found(one) for one in results] == [[], [], []]
    assert [(one.start, one.through) for one in results] == [(32, END)] * 3
    assert results[0].batches == results[1].batches == 14  # the batch that 32 lies in is compared too


async def test_a_mirror_that_began_later_is_compared_from_there(runner: Runner):
    runner.target.partition("t").log.delete_until(40)
    results = await runner.run(runner.plan(start=40))
    assert [(one.start, one.through, one.records) for one in results] == [(40, END, END - 40)] * 3
    assert runner.finished.mismatches == 0


async def test_a_topic_created_again_at_the_source_or_with_other_partitions(runner: Runner):
    old = runner.source.topics["t"].topic_id.hex()
    plan = runner.plan(source_topic_id=old, source_partitions=1)
    assert all(not found(one) for one in await runner.run(plan))
    runner.source.recreate_topic("t")
    assert [found(one) for one in await runner.run(plan)] == [[("recreated", 0)]] * 3
    assert runner.finished.mismatches == 3
    runner.source.delete_topic("t")
    assert await runner.run(plan) == [], "it may come back"
    assert runner.failed.side == "source"
    assert "UNKNOWN_TOPIC_OR_PARTITION: topic t" in runner.failed.reason
    runner.source.add_topic("t", 2)
    plan = runner.plan(source_partitions=1)
    assert [found(one) for one in await runner.run(plan)] == [[("partition_count", 0)]] * 3


async def test_a_replica_that_lags_is_waited_for_and_then_called_short(runner: Runner):
    log = damage(runner, lambda log: setattr(log, "high_watermark", 60))
    began = time.monotonic()
    _, short, _ = await runner.run(runner.plan(), wait_s=0.5)
    assert time.monotonic() - began >= 0.5
    assert found(short) == [("short", 60)]
    assert short.findings[0].source is not None and short.findings[0].source.base_offset == 60
    assert (short.through, short.replica_end, short.records) == (60, 60, 60)

    async def catch_up() -> None:
        await asyncio.sleep(0.5)
        log.hold_high_watermark = False

    _, [_, caught, _] = await asyncio.gather(catch_up(), runner.run(runner.plan(), wait_s=20))
    assert caught.through == END and not caught.findings


async def test_running_producers_raise_nothing(runner: Runner):
    async def produce() -> None:
        while True:
            for log in (runner.source.partition("t").log, runner.target.partition("t").log):
                log.add([f"{log.log_end_offset}".encode()])
            await asyncio.sleep(0.001)

    producing = asyncio.create_task(produce())
    try:
        through = 0
        plan = runner.plan()
        for _ in range(3):
            results = await runner.run(plan, wait_s=5)
            assert runner.finished.mismatches == 0
            assert min(one.through for one in results) > through
            through = max(one.through for one in results)
            plan = runner.plan(replicas=tuple(as_plan(one) for one in results))
    finally:
        producing.cancel()


async def test_runs_go_on_from_the_watermark_and_add_up(runner: Runner):
    whole = (await runner.run(runner.plan()))[0]
    first = (await runner.run(runner.plan(end=35)))[0]
    assert (first.through, first.batches, first.source_end) == (35, 7, 35)
    runner.source.requests.clear()
    second = (await runner.run(runner.plan(replicas=(as_plan(first),))))[0]
    names = ("start", "through", "batches", "records", "bytes", "digest", "source_digest")
    assert [getattr(second, name) for name in names] == [getattr(whole, name) for name in names]
    asked = [
        partition.fetch_offset
        for request in runner.source.received("fetch")
        for topic in request.entity.topics
        for partition in topic.partitions
    ]
    assert min(asked) == 34, "only the seam is looked at again"
    assert runner.finished.batches == 13


async def test_an_exact_end_has_to_be_there_on_both_sides(runner: Runner):
    await runner.run(runner.plan(end=END + 10))
    assert runner.failed.side == "source" and f"ends at offset {END}" in runner.failed.reason
    runner.source.partition("t").add(5)
    results = await runner.run(runner.plan(end=END + 5))
    assert [found(one) for one in results] == [[("short", END)]] * 3


async def test_a_log_start_that_moves_under_the_run_is_planned_anew(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    real = batch_run.compare
    moves = iter([lambda: runner.source.partition("t").log.delete_until(50)])

    def compare(*args: Any) -> Any:
        next(moves, lambda: None)()
        return real(*args)

    monkeypatch.setattr(batch_run, "compare", compare)
    results = await runner.run(runner.plan())
    assert [(found(one), one.through) for one in results] == [([], END)] * 3
    assert results[0].lawful["expired_at_source_offsets"] == 50


async def test_what_differs_lawfully_is_summed_over_the_rounds_of_a_run(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    """Told to somebody who adds the increases only, a sum that began again would be lost."""
    log = damage(runner, lambda log: logs.drop(log, 10))
    logs.drop(log, 80)
    real = batch_run.compare
    moves = iter([lambda: [one.delete_until(50) for one in (runner.source.partition("t").log, log)]])

    def compare(spark: Any, clusters: Any, group: Any, leaders: Any) -> Any:
        if group[0].spec.start > 30:
            next(moves, lambda: None)()
        return real(spark, clusters, group, leaders)

    monkeypatch.setattr(batch_run, "compare", compare)
    monkeypatch.setattr(batch_run, "make_ranges", lambda p: ranges.make_ranges(p, range_bytes=2560))
    monkeypatch.setattr(batch_run, "make_groups", lambda all_: [[one] for one in all_])
    _, compacted, _ = await runner.run(runner.plan(compacted=True))
    assert (found(compacted), compacted.through) == ([], END)
    assert compacted.lawful["compacted_on_replica"] == 2
    told = [
        one.lawful.get("compacted_on_replica", 0)
        for event in runner.events
        if isinstance(event, Checked)
        for one in event.results
        if one.broker_id == 2
    ]
    assert told == sorted(told) and 0 < told.count(1) < len(told)


async def test_control_batches_aborted_transactions_and_gaps_of_compaction_raise_nothing(runner: Runner):
    log = runner.source.partition("t").log
    for commit in (True, False):
        log.add(3, producer_id=7, producer_epoch=0, base_sequence=0 if commit else 3, transactional=True)
        log.end_transaction(7, 0, commit=commit)
    log.add(2, at=log.log_end_offset + 40)
    runner.target.partition("t").log = logs.copy_log(log)
    results = await runner.run(runner.plan())
    assert [(found(one), one.through, one.batches) for one in results] == [
        ([], log.log_end_offset, logs.BATCHES + 5)
    ] * 3


async def test_compaction_on_one_side_is_counted_not_raised(runner: Runner):
    log = damage(runner, lambda log: logs.drop(log, 50))
    logs.clean(log, 60)
    _, compacted, other = await runner.run(runner.plan(compacted=True))
    assert found(compacted) == [] and compacted.through == END
    assert compacted.lawful == {"compacted_on_replica": 1, "rewritten": 1}
    assert other.lawful == {}
    assert found((await runner.run(runner.plan()))[1])[0] == ("missing", 50)


async def test_an_empty_topic(runner: Runner):
    for cluster in (runner.source, runner.target):
        cluster.add_topic("empty")
    results = await runner.run(runner.plan("empty"))
    assert [(one.through, one.batches) for one in results] == [(0, 0)] * 3
    assert runner.spark.jobs == 0, "nothing to read is no Spark job"
    assert runner.finished.partitions == 1


async def test_a_thousand_partitions_are_few_tasks_and_few_requests(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    log = logs.make_log(2)
    for cluster in (runner.source, runner.target):
        for partition in cluster.add_topic("many", 1000).partitions.values():
            partition.log = log
    made: list[int] = []
    real = batch_run.compare

    def compare(spark: Any, clusters: Any, group: Any, leaders: Any) -> Any:
        made.append(len(ranges.make_tasks(group, leaders)))
        return real(spark, clusters, group, leaders)

    monkeypatch.setattr(batch_run, "compare", compare)
    results = await runner.run(*(runner.plan("many", i) for i in range(1000)))
    assert len(results) == 3000 and runner.finished.mismatches == 0
    assert sum(made) <= 20
    assert runner.source.counts["fetch"] + runner.target.counts["fetch"] < 200


@pytest.mark.parametrize("known", [True, False], ids=["it hangs up", "not in the metadata"])
async def test_a_broker_that_is_away_does_not_stop_the_others(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, known: bool
):
    monkeypatch.setattr(survey, "CALL_TIMEOUT", 2.0)  # it is asked again until then
    address = f"127.0.0.1:{runner.target.brokers[2].port}"
    if known:
        runner.target.inject("fetch", node=2, close_after=0, times=None)
        runner.target.inject("list_offsets", node=2, close_after=0, times=None)
    else:
        await runner.target.brokers[2].stop()
    results = await runner.run(runner.plan())
    assert [(one.broker_id, one.through) for one in results] == [(1, END), (3, END)]
    assert runner.failed.side == "target" and "broker 2" in runner.failed.reason
    assert runner.failed.address == (address if known else None)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_cluster_that_is_away_is_named(runner: Runner, side: str):
    cluster: FakeCluster = getattr(runner, side)
    addresses = cluster.bootstrap_servers
    for broker in cluster.brokers.values():
        await broker.stop()
    assert await runner.run(runner.plan()) == []
    assert (runner.failed.side, runner.failed.address) == (side, addresses)
    assert side in runner.failed.reason


async def test_a_cancelled_run_ends_soon_and_says_so(runner: Runner):
    damage(runner, lambda log: setattr(log, "high_watermark", 60))
    running = asyncio.create_task(runner.run(runner.plan(), wait_s=60))
    await asyncio.sleep(0.5)
    runner.cancelled.set()
    await asyncio.wait_for(running, 30)
    assert runner.failed.cancelled


async def test_a_job_that_was_submitted_just_after_the_cancel_is_cancelled_too(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    def compare(*args: Any) -> Any:
        runner.cancelled.set()  # too late for the look before the job, too early for Spark to know of one
        if not runner.spark.job_cancelled.wait(10):
            raise AssertionError("the job runs on")
        raise RuntimeError("Job 3 cancelled part of cancelled job group r")

    monkeypatch.setattr(batch_run, "compare", compare)
    assert await runner.run(runner.plan()) == []
    assert runner.failed.cancelled


async def test_progress_only_grows(runner: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_run, "make_groups", lambda r: [[one] for one in r])
    monkeypatch.setattr(batch_run, "make_ranges", lambda p: ranges.make_ranges(p, range_bytes=20_000))
    await runner.run(runner.plan())
    seen = [event for event in runner.events if isinstance(event, Progress)]
    for name in ("tasks_done", "bytes", "batches", "partitions_done"):
        values = [getattr(one, name) for one in seen]
        assert values == sorted(values)
    assert seen[-1].tasks_done == seen[-1].tasks > 1
    assert seen[-1].bytes == 4 * sum(stored.info.size for stored in runner.source.partition("t").log.batches)
