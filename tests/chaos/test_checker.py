"""Each rule with a history that breaks it, and one that looks as if and is lawful."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lab.workload.history import History, LogRecord, Outcome, PartitionLog
from lab.workload.log_compare import Comparison, ReplicaComparison
from tests.chaos.checker import CARRIES, RULES, Aftermath, Answer, Judgement, judge
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)


def acked(*offsets: int | None) -> History:
    """Producer p's records 0, 1, ... acknowledged at these offsets; None: the outcome is unknown."""
    history = History(lambda: 0.0)
    for sequence, offset in enumerate(offsets):
        history.next_sequence("p", TP)
        if offset is None:
            history.not_acked("p", sequence, TP, Outcome.UNKNOWN, "timed out")
        else:
            history.ack("p", sequence, TP, offset)
    return history


def log(*records: tuple[int, int], start: int = 0, end: int | None = None) -> PartitionLog:
    """A log of (offset, sequence) by p."""
    last = records[-1][0] + 1 if records else start
    return PartitionLog(start, last if end is None else end, [LogRecord(o, "p", s) for o, s in records])


def broken(judgement: Judgement) -> set[str]:
    assert set(judgement.findings) <= set(RULES)
    return set(judgement.findings)


def after(owner: PartitionLog, source: PartitionLog | None = None, owned: int | None = None) -> Aftermath:
    return Aftermath(
        owner={TP: owner},
        source={} if source is None else {TP: source},
        owned_from={} if owned is None else {TP: owned},
    )


def compared(*, identical: bool, offsets: bool = True) -> ReplicaComparison:
    return ReplicaComparison(
        partition=TP,
        broker=2,
        comparison=Comparison.BYTES,
        start=0,
        end=9,
        batches=3,
        compared_bytes=100,
        offsets_identical=offsets,
        identical=identical,
        difference=None if identical and offsets else "batch at offset 4",
    )


def read(history: History, offsets: Iterable[int], *, run: int = 1) -> History:
    for offset in offsets:
        history.read("c", run, TP, offset, b"live|p|%d|" % offset)
    return history


# --- what the demo's checker decides, on the owner's log


def test_a_clean_run_is_clean() -> None:
    judgement = judge(acked(0, 1, 2), after(log((0, 0), (1, 1), (2, 2)), source=log((0, 0), (1, 1)), owned=2))
    assert judgement.ok
    assert (judgement.acked, judgement.unknown) == (3, 0)


def test_lost_means_lost_at_the_owner() -> None:
    assert broken(judge(acked(0, 1), after(log((0, 0))))) == {"lost"}


def test_a_record_of_unknown_outcome_may_be_anywhere_or_nowhere() -> None:
    assert judge(acked(0, None), after(log((0, 0)))).ok
    assert judge(acked(0, None), after(log((0, 0), (1, 1)))).ok


def test_a_record_twice_at_the_owner_is_duplicated() -> None:
    assert broken(judge(acked(0, None), after(log((0, 0), (1, 1), (2, 1))))) == {"duplicated"}


def test_a_record_once_in_the_sources_log_and_once_at_the_owner_is_not() -> None:
    """A forward that was let go after the hand-over, not acknowledged, and tried again at the owner."""
    history = acked(0, 3)
    judgement = judge(history, after(log((0, 0), (3, 1)), source=log((0, 0), (2, 1)), owned=2))
    assert judgement.ok, judgement.findings


def test_a_record_elsewhere_than_told_is_misplaced() -> None:
    assert broken(judge(acked(0, 1), after(log((0, 0), (2, 1))))) == {"misplaced"}


def test_offsets_may_have_gaps() -> None:
    assert judge(acked(0, 7), after(log((0, 0), (7, 1)))).ok


def test_order_is_per_producer() -> None:
    assert broken(judge(acked(1, 0), after(log((0, 1), (1, 0))))) == {"reordered"}
    history = acked(1)
    history.next_sequence("q", TP)
    history.ack("q", 0, TP, 0)
    mixed = PartitionLog(0, 2, [LogRecord(0, "q", 0), LogRecord(1, "p", 0)])
    assert judge(history, after(mixed)).ok


def test_a_record_that_nobody_sent_is_a_phantom() -> None:
    assert broken(judge(acked(0), after(log((0, 0), (1, 5))))) == {"phantom"}


def test_a_consumer_that_skips_is_found_and_one_that_starts_again_is_not() -> None:
    owner = log((0, 0), (1, 1), (2, 2))
    assert broken(judge(read(acked(0, 1, 2), [0, 2]), after(owner))) == {"consumer"}
    assert broken(judge(read(acked(0, 1, 2), [0, 1, 1, 2]), after(owner))) == {"consumer"}
    again = read(read(acked(0, 1, 2), [0, 1]), [1, 2], run=2)
    assert judge(again, after(owner)).ok


def test_what_nobody_read_counts_only_where_there_was_time() -> None:
    history, logs = read(acked(0, 1), [0]), {TP: log((0, 0), (1, 1))}
    assert broken(judge(history, Aftermath(owner=logs, drained=True))) == {"consumer"}
    assert judge(history, Aftermath(owner=logs, drained=False)).ok


# --- forks


def test_logs_that_differ_below_the_hand_over_are_a_fork() -> None:
    judgement = judge(acked(0, None, None), after(log((0, 0), (1, 2)), source=log((0, 0), (1, 1)), owned=2))
    assert broken(judgement) == {"forks"}
    assert judgement.findings["forks"] == [
        "orders-0 offset 1: the source holds p record 1, the owner p record 2"
    ]


def test_a_record_that_only_the_owner_has_below_the_hand_over_is_a_fork() -> None:
    judgement = judge(acked(0, 1), after(log((0, 0), (1, 1)), source=log((0, 0), end=2), owned=2))
    assert broken(judgement) == {"forks"}


def test_logs_that_differ_above_the_hand_over_are_none() -> None:
    owner = log((0, 0), (1, 1), (2, 2))
    assert judge(acked(0, 1, 2), after(owner, source=log((0, 0), (1, 2)), owned=1)).ok


def test_a_source_that_ends_before_the_hand_over_is_a_fork() -> None:
    judgement = judge(acked(0), after(log((0, 0), end=5), source=log((0, 0), end=4), owned=5))
    assert broken(judgement) == {"forks"}


def test_a_source_that_begins_later_is_none() -> None:
    judgement = judge(acked(0, 1), after(log((0, 0), (1, 1)), source=log((1, 1), start=1, end=2), owned=2))
    assert judgement.ok


def test_replicas_that_differ_are_a_fork() -> None:
    different = Aftermath(owner={TP: log((0, 0))}, replicas=[compared(identical=False)])
    assert broken(judge(acked(0), different)) == {"forks"}
    displaced = Aftermath(owner={TP: log((0, 0))}, replicas=[compared(identical=True, offsets=False)])
    assert broken(judge(acked(0), displaced)) == {"forks"}
    same = Aftermath(owner={TP: log((0, 0))}, replicas=[compared(identical=True)])
    assert judge(acked(0), same).ok


def test_one_offset_promised_to_two_records_is_a_fork() -> None:
    judgement = judge(acked(0, 0), after(log((0, 0), (1, 1))))
    assert broken(judgement) == {"forks", "misplaced"}


def test_one_offset_in_two_partitions_is_none() -> None:
    history = acked(0)
    other = TopicPartition("orders", 1)
    history.next_sequence("p", other)
    history.ack("p", 1, other, 0)
    owner = {TP: log((0, 0)), other: PartitionLog(0, 1, [LogRecord(0, "p", 1)])}
    assert judge(history, Aftermath(owner=owner)).ok


def test_one_offset_promised_twice_to_the_same_record_is_none() -> None:
    history = acked(0)
    history.ack("p", 0, TP, 0)
    assert judge(history, after(log((0, 0)))).ok


# --- stale owners


def test_an_acknowledged_record_that_only_the_source_has_names_a_stale_owner() -> None:
    judgement = judge(acked(0, 1), after(log((0, 0)), source=log((0, 0), (1, 1)), owned=1))
    assert broken(judgement) == {"lost", "stale_owner"}


def test_an_acknowledged_record_that_nobody_has_does_not() -> None:
    judgement = judge(acked(0, 1), after(log((0, 0)), source=log((0, 0)), owned=1))
    assert broken(judgement) == {"lost"}


def test_an_unacknowledged_one_that_only_the_source_has_is_lawful() -> None:
    assert judge(acked(0, None), after(log((0, 0)), source=log((0, 0), (1, 1)), owned=1)).ok


def answered(base_offset: int, asked: float) -> Aftermath:
    owner = log((0, 0), (1, 1), (2, 2), (3, 3))
    return Aftermath(
        owner={TP: owner},
        source={TP: log((0, 0), (1, 1))},
        owned_from={TP: 2},
        handed_over={TP: 100.0},
        answers=[Answer("link broker 900", TP, base_offset, asked)],
    )


def test_a_link_broker_may_tell_what_the_owner_has_said() -> None:
    """It carries for a moment after the hand-over."""
    assert judge(acked(0, 1, 2, 3), answered(2, asked=99.0)).ok
    assert judge(acked(0, 1, 2, 3), answered(2, asked=100.5)).ok
    assert judge(acked(0, 1, 2, 3), answered(1, asked=100.5)).ok  # again, and the owner knows it
    assert judge(acked(0, 1, None, 3), answered(2, asked=100.5)).ok  # whoever it was told to is gone


def test_a_link_broker_that_acknowledges_what_the_owner_has_not_is_stale() -> None:
    beyond = replace(answered(4, asked=99.0), source={TP: log((0, 0), (1, 1), (4, 9))})
    assert broken(judge(acked(0, 1, 2, 3), beyond)) == {"stale_owner"}
    of_the_source = replace(answered(2, asked=99.0), source={TP: log((0, 0), (1, 1), (2, 9))})
    assert broken(judge(acked(0, 1, None, 3), of_the_source)) == {"stale_owner"}


def test_a_link_broker_that_takes_a_produce_long_after_the_hand_over_is_stale() -> None:
    for base_offset in (1, 2, -1):
        late = answered(base_offset, asked=100.5 + CARRIES)
        assert broken(judge(acked(0, 1, 2, 3), late)) == {"stale_owner"}


def test_one_that_was_asked_before_and_is_heard_later_is_not() -> None:
    """What counts is the offset: below the hand-over the owner has it too."""
    assert judge(acked(0, 1, 2, 3), answered(1, asked=99.9)).ok


def test_an_answer_for_a_partition_that_was_never_handed_over_is_lawful() -> None:
    after_all = Aftermath(owner={TP: log((0, 0))}, answers=[Answer("link broker 900", TP, 0, 500.0)])
    assert judge(acked(0), after_all).ok


def test_what_clients_were_told_is_counted_and_not_judged() -> None:
    judgement = judge(acked(0, None), after(log((0, 0))))
    assert judgement.ok
    assert judgement.client_errors == ["p record 1: timed out"]
