"""Each rule of the checker with a history that breaks it and one that nearly does."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from lab.workload.checker import Verdict, check
from lab.workload.history import History, LogRecord, Outcome, PartitionLog, make_value, parse_identity
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sent(count: int, producer: str = "p", partition: TopicPartition = TP) -> History:
    """A producer that sent `count` records to one partition; nothing is acknowledged yet."""
    history = History(Clock())
    for _ in range(count):
        history.next_sequence(producer, partition)
    return history


def acked(count: int, offsets: Iterable[int] | None = None) -> History:
    history = sent(count)
    for sequence, offset in enumerate(offsets if offsets is not None else range(count)):
        history.ack("p", sequence, TP, offset)
    return history


def log(
    *records: tuple[int, int], start: int = 0, end: int | None = None, producer: str = "p"
) -> PartitionLog:
    """A log of (offset, sequence)."""
    last = records[-1][0] + 1 if records else start
    return PartitionLog(
        start,
        last if end is None else end,
        [LogRecord(offset, producer, sequence) for offset, sequence in records],
    )


def broken(verdict: Verdict) -> set[str]:
    return set(verdict.violations)


def test_a_clean_history_is_clean() -> None:
    verdict = check(acked(3), {TP: log((0, 0), (1, 1), (2, 2))})
    assert verdict.ok
    assert (verdict.acked, verdict.unknown, verdict.failed) == (3, 0, 0)


def test_nothing_happened_is_not_a_violation() -> None:
    assert check(History(), {}).ok


# --- lost


def test_an_acknowledged_record_that_is_nowhere_is_lost() -> None:
    verdict = check(acked(3), {TP: log((0, 0), (2, 2))})
    assert broken(verdict) == {"lost"}
    assert str(verdict.lost[0]) == "orders-0 offset 1: p record 1 was acknowledged and is in no log"


def test_the_evidence_names_what_is_there_instead() -> None:
    history = acked(2)
    history.next_sequence("q", TP)
    history.ack("q", 0, TP, 1)
    records = [LogRecord(0, "p", 0), LogRecord(1, "q", 0)]
    verdict = check(history, {TP: PartitionLog(0, 2, records)})
    assert broken(verdict) == {"lost"}
    assert "there is q record 0" in verdict.lost[0].what


def test_a_partition_without_a_log_lost_everything() -> None:
    assert len(check(acked(2), {}).lost) == 2


def test_an_unknown_record_that_is_nowhere_is_not_lost() -> None:
    history = acked(1)
    history.next_sequence("p", TP)
    history.not_acked("p", 1, TP, Outcome.UNKNOWN, "timed out")
    verdict = check(history, {TP: log((0, 0))})
    assert broken(verdict) == {"client_errors"}
    assert verdict.unknown == 1


def test_a_record_without_any_outcome_is_unknown() -> None:
    verdict = check(sent(2), {TP: log((0, 0))})
    assert verdict.ok
    assert verdict.unknown == 2


def test_a_record_below_the_log_start_is_not_lost() -> None:
    assert check(acked(3), {TP: log((2, 2), start=2)}).ok


# --- misplaced


def test_a_record_at_another_offset_than_acknowledged_is_misplaced() -> None:
    verdict = check(acked(1, [5]), {TP: log((6, 0))})
    assert broken(verdict) == {"misplaced"}
    assert "is at orders-0 offset 6" in verdict.misplaced[0].what


def test_offsets_need_not_be_contiguous() -> None:
    assert check(acked(2, [5, 9]), {TP: log((5, 0), (9, 1))}).ok


def test_an_acknowledgement_without_an_offset_may_lie_anywhere_in_its_partition() -> None:
    assert check(acked(1, [-1]), {TP: log((7, 0))}).ok


def test_but_not_in_another_partition() -> None:
    assert broken(check(acked(1, [-1]), {TP: log(), OTHER: log((7, 0))})) == {"misplaced", "phantom"}


# --- duplicated


def test_a_record_that_is_there_twice_is_duplicated() -> None:
    verdict = check(acked(2), {TP: log((0, 0), (1, 1), (2, 0))})
    assert broken(verdict) == {"duplicated"}
    assert verdict.duplicated[0].offset == 2


def test_a_record_in_two_partitions_is_duplicated() -> None:
    assert "duplicated" in broken(check(acked(1), {TP: log((0, 0)), OTHER: log((4, 0))}))


def test_an_unknown_record_that_is_there_twice_is_duplicated_too() -> None:
    assert broken(check(sent(1), {TP: log((0, 0), (1, 0))})) == {"duplicated"}


def test_an_unknown_record_that_is_there_once_is_not() -> None:
    assert check(sent(1), {TP: log((0, 0))}).ok


def test_the_same_sequence_of_two_producers_is_not_a_duplicate() -> None:
    history = acked(1)
    history.next_sequence("q", TP)
    history.ack("q", 0, TP, 1)
    assert check(history, {TP: PartitionLog(0, 2, [LogRecord(0, "p", 0), LogRecord(1, "q", 0)])}).ok


# --- reordered


def test_a_later_record_before_an_earlier_one_is_reordered() -> None:
    verdict = check(acked(3, [0, 2, 1]), {TP: log((0, 0), (1, 2), (2, 1))})
    assert broken(verdict) == {"reordered"}
    assert verdict.reordered[0].offset == 2


def test_order_between_partitions_and_producers_does_not_matter() -> None:
    history = History(Clock())
    for partition in (TP, OTHER, TP):
        history.next_sequence("p", partition)
    history.next_sequence("q", TP)
    logs = {
        TP: PartitionLog(0, 3, [LogRecord(0, "p", 0), LogRecord(1, "p", 2), LogRecord(2, "q", 0)]),
        OTHER: log((0, 1)),
    }
    assert check(history, logs).ok


def test_a_duplicate_at_the_end_is_not_reordered_as_well() -> None:
    assert broken(check(acked(2), {TP: log((0, 0), (1, 1), (2, 0))})) == {"duplicated"}


# --- phantom


@pytest.mark.parametrize("records", [((0, 0), (1, 7)), ((0, 0), (1, 1))])
def test_a_record_that_nobody_sent_is_a_phantom(records: tuple[tuple[int, int], ...]) -> None:
    assert broken(check(acked(1), {TP: log(*records)})) == {"phantom"}


def test_a_record_that_certainly_failed_and_is_there_is_a_phantom() -> None:
    history = sent(1)
    history.not_acked("p", 0, TP, Outcome.FAIL, "too large")
    assert "phantom" in broken(check(history, {TP: log((0, 0))}))


def test_a_record_that_may_have_failed_and_is_there_is_none() -> None:
    history = sent(1)
    history.not_acked("p", 0, TP, Outcome.UNKNOWN, "timed out")
    assert "phantom" not in broken(check(history, {TP: log((0, 0))}))


# --- consumers


def reading(history: History, offsets: Iterable[int], run: int = 1) -> History:
    for offset in offsets:
        history.read("c", run, TP, offset, make_value("p", offset))
    return history


LOG = {TP: log((0, 0), (1, 1), (2, 2))}


def test_a_consumer_that_read_everything_is_fine() -> None:
    verdict = check(reading(acked(3), range(3)), LOG)
    assert verdict.ok
    assert verdict.read == 3


def test_reading_something_else_than_the_log_holds() -> None:
    history = reading(acked(3), [0, 2])
    history.read("d", 1, TP, 1, make_value("p", 2))
    assert broken(check(history, LOG)) == {"misread", "skipped"}


def test_reading_a_record_that_the_log_does_not_hold() -> None:
    history = reading(acked(3), range(3))
    history.read("c", 1, TP, 3, make_value("p", 3))
    assert broken(check(history, LOG)) == {"misread"}


def test_records_of_others_are_nobodys_business() -> None:
    history = acked(1, [1])
    history.read("c", 1, TP, 0, b"was there before")
    history.read("c", 1, TP, 1, make_value("p", 0))
    assert check(history, {TP: log((1, 0))}).ok


def test_going_over_a_record() -> None:
    history = reading(reading(acked(3), [0, 2]), [1], run=2)
    assert broken(check(history, LOG)) == {"skipped"}


def test_going_over_an_offset_without_a_record() -> None:
    history = acked(2, [0, 2])
    history.read("c", 1, TP, 0, make_value("p", 0))
    history.read("c", 1, TP, 2, make_value("p", 1))
    assert check(history, {TP: log((0, 0), (2, 1))}).ok


def test_going_backwards_within_one_run() -> None:
    verdict = check(reading(acked(3), [0, 1, 1, 2]), LOG)
    assert broken(verdict) == {"read_back"}


def test_reading_again_after_a_new_start() -> None:
    verdict = check(reading(reading(acked(3), [0, 1]), [1, 2], run=2), LOG)
    assert verdict.ok
    assert verdict.reread == 1


def test_a_record_that_nobody_read() -> None:
    assert broken(check(reading(acked(3), [0, 1]), LOG)) == {"unread"}
    assert check(reading(acked(3), [0, 1]), LOG, drained=False).ok


# --- errors and pauses


def test_errors_of_clients_are_counted_and_notices_are_not() -> None:
    history = acked(1)
    history.notice("p", "broker is gone, trying the next one")
    assert check(history, {TP: log((0, 0))}).ok
    history.error("c", "no")
    assert check(history, {TP: log((0, 0))}).client_errors == ["c: no"]


def test_the_pause_is_the_longest_gap_of_one_producer_that_overlaps_the_promote() -> None:
    history = History(Clock())
    clock = history.clock
    assert isinstance(clock, Clock)
    for producer, times in {"p": [0.0, 1.0, 5.0, 5.2, 5.9, 6.0], "q": [0.0, 5.1, 5.15, 9.0]}.items():
        for time in times:
            clock.now = time
            history.ack(producer, history.next_sequence(producer, TP), TP, -1)
    verdict = check(history, {}, promote=(5.2, 5.5))
    assert verdict.promote_pause_ms == pytest.approx(3850)
    assert verdict.pauses_ms == {"p": pytest.approx(700), "q": pytest.approx(3850)}
    assert verdict.usual_gap_ms == pytest.approx(5100)
    assert check(history, {}).promote_pause_ms is None


def test_identity_survives_a_value_and_garbage_has_none() -> None:
    assert parse_identity(make_value("a-b", 12, b"x|y|z")) == ("a-b", 12)
    for garbage in (None, b"", b"live", b"live|p", b"live|p|x|", b"live|p|-1|", b"other|p|1|", b"live|p|1"):
        assert parse_identity(garbage) is None


def test_random_histories_against_a_dumb_reckoning() -> None:
    """Drop, repeat and swap records of a good log at random: the checker finds that, nothing else."""
    for seed in range(200):
        rng = random.Random(seed)
        count = rng.randrange(2, 20)
        history = acked(count)
        good = [LogRecord(sequence, "p", sequence) for sequence in range(count)]
        kind = rng.choice(["nothing", "drop", "repeat", "swap"])
        victim = rng.randrange(count - 1)
        records = list(good)
        if kind == "drop":
            del records[victim]
        elif kind == "repeat":
            records.append(LogRecord(count, "p", victim))
        elif kind == "swap":
            first, second = good[victim], good[victim + 1]
            records[victim] = LogRecord(first.offset, "p", second.sequence)
            records[victim + 1] = LogRecord(second.offset, "p", first.sequence)
        expected = {
            "nothing": set(),
            "drop": {"lost"},
            "repeat": {"duplicated"},
            "swap": {"reordered", "misplaced"},
        }[kind]
        assert broken(check(history, {TP: PartitionLog(0, count + 1, records)})) == expected, f"seed {seed}"
