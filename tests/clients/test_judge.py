"""The judges: each rule with a history that breaks it and one that nearly does."""

from __future__ import annotations

import pytest

from lab.workload.history import Ack, LogRecord, PartitionLog
from tests.clients.judge import (
    GroupRead,
    Window,
    by_event,
    differences,
    judge_group,
    judge_output,
    largest_gap,
    longest_waits,
)
from wire.frames.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def log(*offsets: int, start: int = 0) -> PartitionLog:
    return PartitionLog(start, max(offsets, default=-1) + 1, [LogRecord(o, "w", 100 + o) for o in offsets])


def read(
    offset: int,
    time: float,
    cluster: str = "source",
    *,
    member: str = "m1",
    partition: TopicPartition = P0,
    number: int | None = None,
    producer: str | None = "w",
) -> GroupRead:
    return GroupRead(
        member, cluster, 1, partition, offset, producer, 100 + offset if number is None else number, time
    )


CLEAN = [read(0, 1.0), read(1, 2.0), read(2, 4.0, "target"), read(3, 4.5, "target")]


def test_clean_move() -> None:
    verdict = judge_group(CLEAN, {P0: log(0, 1, 2, 3)}, opened=3.5)
    assert verdict.moved_cleanly
    assert verdict.records == 4
    assert not verdict.repeated_at_source
    assert verdict.longest_pause_ms == 2000.0
    assert verdict.opening_ms == 500.0


def test_missed_in_the_middle_and_at_the_end() -> None:
    verdict = judge_group(CLEAN[:2] + CLEAN[3:], {P0: log(0, 1, 2, 3, 4)}, opened=3.5)
    assert [finding.offset for finding in verdict.missed] == [2, 4]
    assert not verdict.moved_cleanly


def test_partition_that_nobody_read_is_missed() -> None:
    assert [f.partition for f in judge_group(CLEAN, {P0: log(0, 1, 2, 3), P1: log(0)}).missed] == [P1]


def test_gap_of_offsets_is_not_missed() -> None:
    assert judge_group([read(0, 1.0), read(5, 2.0)], {P0: log(0, 5)}).moved_cleanly  # control records between


def test_read_at_the_wrong_partition_does_not_count() -> None:
    verdict = judge_group([read(0, 1.0, partition=P1)], {P0: log(0), P1: log(0)})
    assert [finding.partition for finding in verdict.missed] == [P0]


def test_repeated_across_and_how_far_back() -> None:
    again = [read(0, 1.0), read(1, 2.0), read(2, 2.4), read(1, 4.0, "target"), read(2, 4.0, "target")]
    verdict = judge_group(again, {P0: log(0, 1, 2)}, opened=3.5)
    assert [finding.offset for finding in verdict.repeated_across] == [1, 2]
    assert verdict.repeated_back_ms == pytest.approx(400.0)
    assert not verdict.moved_cleanly
    assert not verdict.missed


def test_repeated_at_the_source_is_the_librarys_own() -> None:
    twice = [*CLEAN[:2], read(1, 2.5, member="m2"), *CLEAN[2:]]
    verdict = judge_group(twice, {P0: log(0, 1, 2, 3)}, opened=3.5)
    assert [finding.offset for finding in verdict.repeated_at_source] == [1]
    assert verdict.moved_cleanly


def test_repeated_at_the_target() -> None:
    verdict = judge_group([*CLEAN, read(3, 5.0, "target", member="m2")], {P0: log(0, 1, 2, 3)}, opened=3.5)
    assert [finding.offset for finding in verdict.repeated_at_target] == [3]
    assert not verdict.moved_cleanly


def test_same_offset_of_another_partition_is_no_repeat() -> None:
    assert judge_group([read(0, 1.0), read(0, 1.1, partition=P1)], {P0: log(0), P1: log(0)}).moved_cleanly


def test_target_read_first_and_then_source_is_across() -> None:
    verdict = judge_group([read(0, 1.0, "target"), read(0, 2.0)], {P0: log(0)})
    assert len(verdict.repeated_across) == 1


def test_early_by_a_moment_and_just_in_time() -> None:
    assert [f.offset for f in judge_group(CLEAN, {P0: log(0, 1, 2, 3)}, opened=4.2).early] == [2]
    assert not judge_group(CLEAN, {P0: log(0, 1, 2, 3)}, opened=4.0).early


def test_early_is_between_a_demote_and_the_next_opening_too() -> None:
    again = [*CLEAN, read(4, 6.0), read(5, 9.0, "target")]
    whole = {P0: log(0, 1, 2, 3, 4, 5)}
    verdict = judge_group(again, whole, opened=3.5, returned=Window(5.0, 8.5))
    assert verdict.moved_cleanly
    assert (verdict.opening_ms, verdict.reopening_ms) == (500.0, 500.0)
    late = judge_group(again, whole, opened=3.5, returned=Window(5.0, 9.5))
    assert [finding.offset for finding in late.early] == [5]


def test_repeated_after_a_demote_is_across_and_as_old_as_the_source_had_read_by_then() -> None:
    again = [read(0, 1.0), read(0, 2.0, "target"), read(1, 9.0)]
    verdict = judge_group(again, {P0: log(0, 1)}, opened=1.5)
    assert [finding.offset for finding in verdict.repeated_across] == [0]
    assert verdict.repeated_back_ms == 0.0
    back = judge_group([read(0, 1.0, "target"), read(0, 2.0)], {P0: log(0)}, returned=Window(1.5, 3.0))
    assert len(back.repeated_across) == 1


def test_an_error_belongs_to_the_event_before_it() -> None:
    events = {"promote": 9.0, "move": 3.0, "kill": 5.0, "roll": 0.0}  # no roll
    assert by_event([1.0, 3.0, 4.9, 5.0, 99.0], events) == {"before": 1, "move": 2, "kill": 1, "promote": 1}
    assert by_event([], events) == {}


def test_misread_even_though_the_offset_was_read() -> None:
    verdict = judge_group([read(0, 1.0, number=7)], {P0: log(0)})
    assert [finding.offset for finding in verdict.misread] == [0]
    assert not verdict.missed
    assert not verdict.moved_cleanly


def test_record_of_nobody_and_record_below_the_log_start_are_not_misread() -> None:
    reads = [read(0, 0.5), read(1, 1.0, number=-1, producer=None), read(2, 2.0)]
    assert not judge_group(reads, {P0: log(2, start=1)}).misread


def test_opening_waits_for_the_last_partition() -> None:
    reads = [read(0, 1.0, "target"), read(0, 3.0, "target", partition=P1)]
    assert judge_group(reads, {P0: log(0), P1: log(0)}, opened=0.5).opening_ms == 2500.0


def test_output_missed_and_repeated() -> None:
    doubled = PartitionLog(0, 3, [LogRecord(0, "w", 100), LogRecord(1, "w", 102), LogRecord(2, "w", 102)])
    missed, repeated = judge_output({P0: log(0, 1, 2)}, {P1: doubled})
    assert [finding.offset for finding in missed] == [1]
    assert [finding.offset for finding in repeated] == [2]
    assert judge_output({P0: log(0, 1, 2)}, {P1: log(0, 1, 2)}) == ([], [])


def acks(*times: float) -> list[Ack]:
    return [Ack("w", index, P0, index, time) for index, time in enumerate(times)]


def test_largest_gap_within_and_without() -> None:
    some = acks(0.0, 0.1, 2.1, 2.2, 2.9, 3.0)
    assert largest_gap(some) == 2000.0
    assert largest_gap(some, without=[Window(1.0, 1.5)]) == 700.0
    assert largest_gap(some, within=Window(2.5, 2.5)) == 700.0
    assert largest_gap(some, within=Window(2.15, 2.15)) == 100.0
    assert largest_gap(acks(1.0)) is None


def test_gap_that_touches_a_restart_is_not_counted() -> None:
    assert largest_gap(acks(0.0, 1.0, 1.1), without=[Window(1.0, 1.05)]) is None
    assert largest_gap(acks(0.0, 0.9, 1.1), without=[Window(1.0, 1.05)]) == 900.0


def test_the_longest_wait_of_each_phase() -> None:
    phases = {"there": Window(1.0, 5.0), "back": Window(5.0, 9.0)}
    busy = [0.5, 1.5, 2.0, 4.9, 5.2, 6.0, 8.0, 9.0]
    assert longest_waits([busy], phases, 9.0) == {"there": 2900.0, "back": 2000.0}
    other = [0.0, 1.0, 3.0, 4.0, 4.5, 7.4, 8.9]
    assert longest_waits([busy, other], phases, 9.0) == {"there": 2900.0, "back": 2900.0}


def test_a_partition_that_never_goes_on_waits_until_the_end() -> None:
    phases = {"there": Window(1.0, 5.0), "back": Window(5.0, 9.0)}
    assert longest_waits([[0.5, 1.5]], phases, 9.0) == {"there": 7500.0, "back": 7500.0}
    assert longest_waits([[8.0, 9.5]], phases, 9.0) == {"there": None, "back": 1500.0}
    assert longest_waits([], phases, 9.0) == {"there": None, "back": None}


def test_both_clusters_hold_the_same_records() -> None:
    assert differences({P0: log(0, 1)}, {P0: log(0, 1)}) == []
    other = PartitionLog(0, 2, [LogRecord(0, "w", 100), LogRecord(1, "w", 7)])
    assert [found.offset for found in differences({P0: log(0, 1)}, {P0: other})] == [1]
    assert [found.offset for found in differences({P0: log(0, 1, 2)}, {P0: log(0, 1)})] == [2]
    assert [found.offset for found in differences({P0: log(0, 1)}, {P0: log(0, 1, 2)})] == [2]
    assert [found.offset for found in differences({P0: log(0, 1)}, {})] == [0, 1]
