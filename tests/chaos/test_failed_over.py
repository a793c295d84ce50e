"""What a failover may cost, and what it may not: each with a history that is excused and one next to it that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.workload.history import History, LogRecord, PartitionLog
from tests.chaos.checker import CARRIES, Aftermath, Answer, Judgement, judge
from tests.chaos.failed_over import FailedOver, read_failed_over
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)


def log(*records: tuple[int, str, int]) -> PartitionLog:
    return PartitionLog(0, records[-1][0] + 1, [LogRecord(*one) for one in records])


#: Copied up to offset 2; the source had two more; the target wrote its own there.
SOURCE = log((0, "p", 0), (1, "p", 1), (2, "p", 2), (3, "p", 3))
OWNER = log((0, "p", 0), (1, "p", 1), (2, "q", 0), (3, "q", 1))


def acked(*, until: int = 4, now: float = 0.0) -> History:
    history = History(lambda: now)
    for sequence in range(until):
        history.next_sequence("p", TP)
        history.ack("p", sequence, TP, sequence)
    for sequence in range(2):
        history.next_sequence("q", TP)
        history.ack("q", sequence, TP, 2 + sequence)
    return history


def after(
    over: FailedOver | None, *, source: PartitionLog = SOURCE, answers: list[Answer] | None = None
) -> Aftermath:
    return Aftermath(
        owner={TP: OWNER},
        source={TP: source},
        owned_from={TP: 2},
        handed_over={TP: 100.0},
        answers=answers or [],
        drained=True,
        taken={} if over is None else {TP: over},
    )


def judged(over: FailedOver | None, **more: float) -> Judgement:
    return judge(acked(now=more.get("now", 0.0)), after(over))


@pytest.mark.parametrize("missing", [2, 5, None])
def test_what_lies_beyond_and_is_named_is_a_figure(missing: int | None) -> None:
    judgement = judged(FailedOver(2, missing))
    assert judgement.ok, judgement.findings
    assert (judgement.lost_by_failover, judgement.acked) == (2, 6)


def test_what_is_not_named_is_lost() -> None:
    judgement = judged(FailedOver(2, 1))
    assert set(judgement.findings) >= {"lost"}
    assert judgement.lost_by_failover == 1


def test_what_was_written_to_the_source_itself_need_not_be_named() -> None:
    over = after(FailedOver(2, 0))
    assert "lost" in judge(acked(), over).findings
    moved = judge(acked(now=5.0), replace(over, direct={"p": 6.0}))
    assert moved.ok, moved.findings
    assert moved.lost_by_failover == 2
    assert "lost" in judge(acked(now=7.0), replace(over, direct={"p": 6.0})).findings, (
        "it had been moved by then"
    )


def test_what_lies_below_is_lost_whatever_the_report_says() -> None:
    owner = log((0, "p", 0), (2, "q", 0), (3, "q", 1))
    over = after(FailedOver(2, 2))
    judgement = judge(
        acked(),
        Aftermath(owner={TP: owner}, source=over.source, taken=over.taken, handed_over=over.handed_over),
    )
    assert [line for line in judgement.findings["lost"] if "p record 1" in line]
    assert judgement.lost_by_failover == 2


def test_an_acknowledgement_after_the_take_over_is_not_excused() -> None:
    assert set(judged(FailedOver(2, 2), now=100.5).findings) >= {"lost", "stale_owner"}


def test_a_record_that_the_source_does_not_have_either_is_lost() -> None:
    judgement = judge(acked(), after(FailedOver(2, 2), source=log((0, "p", 0), (1, "p", 1), (2, "p", 2))))
    assert judgement.lost_by_failover == 1
    assert set(judgement.findings) >= {"lost"}


def test_an_acknowledgement_without_an_offset_is_where_the_source_has_it() -> None:
    def duplicate(at_the_source: int) -> History:
        history = acked(until=at_the_source)
        history.next_sequence("p", TP)
        history.ack("p", at_the_source, TP, -1)
        return history

    judgement = judge(duplicate(2), after(FailedOver(2, 1)))
    assert judgement.ok, judgement.findings
    assert judgement.lost_by_failover == 1
    assert "lost" in judge(duplicate(3), after(FailedOver(2, 1))).findings, (
        "the source has it where nobody said so"
    )


def test_without_a_fail_over_nothing_is_excused() -> None:
    assert set(judged(None).findings) >= {"lost", "forks", "stale_owner"}


def read(history: History, *offsets: tuple[int, str, int]) -> History:
    for offset, producer, sequence in offsets:
        history.read("c", 1, TP, offset, b"live|%s|%d|" % (producer.encode(), sequence))
    return history


def test_a_consumer_that_was_ahead_of_the_take_over_is_set_back() -> None:
    history = read(acked(), (0, "p", 0), (1, "p", 1), (2, "p", 2), (2, "q", 0), (3, "q", 1))
    judgement = judge(history, after(FailedOver(2, 2)))
    assert judgement.ok, judgement.findings
    assert judgement.read_beyond == 1


def test_what_no_link_broker_passed_on_may_have_been_read_without_being_named() -> None:
    """Records of transactions, and of a producer that had not been moved yet: the report cannot know of them."""
    nothing_of_it = FailedOver(2, 0)
    history = read(acked(until=2, now=99.0), (0, "p", 0), (1, "p", 1))
    history.read("c", 1, TP, 2, b"of a transaction")
    source = log((0, "p", 0), (1, "p", 1), (3, "p", 3))
    judgement = judge(read(history, (2, "q", 0), (3, "q", 1)), after(nothing_of_it, source=source))
    assert judgement.ok, judgement.findings
    assert judgement.read_beyond == 1
    moved = read(acked(until=2, now=99.0), (0, "p", 0), (1, "p", 1), (2, "p", 2), (2, "q", 0), (3, "q", 1))
    assert judge(moved, replace(after(nothing_of_it), direct={"p": 6.0})).ok
    assert set(judge(moved, after(nothing_of_it)).findings) == {"consumer"}


def test_or_misses_what_was_written_there_and_nothing_more() -> None:
    ahead = [(0, "p", 0), (1, "p", 1), (2, "p", 2)]
    assert judge(read(acked(), *ahead, (3, "q", 1)), after(FailedOver(2, 2))).ok
    assert set(judge(read(acked(), *ahead), after(FailedOver(2, 2))).findings) == {"consumer"}


def test_a_consumer_that_goes_back_below_is_found() -> None:
    history = read(acked(), (0, "p", 0), (1, "p", 1), (0, "p", 0), (1, "p", 1), (2, "q", 0), (3, "q", 1))
    assert set(judge(history, after(FailedOver(2, 2))).findings) == {"consumer"}


def test_a_link_broker_may_have_answered_for_the_source_before_and_for_the_owner_after() -> None:
    early, late = Answer("link broker 900", TP, 2, 99.0), Answer("link broker 900", TP, 2, 100.5)
    assert judge(acked(), after(FailedOver(2, 2), answers=[early])).ok
    assert judge(acked(), after(FailedOver(2, 2), answers=[late])).ok
    only_p = History(lambda: 0.0)
    for sequence in range(4):
        only_p.next_sequence("p", TP)
        only_p.ack("p", sequence, TP, sequence)
    assert "stale_owner" in judge(only_p, after(FailedOver(2, 2), answers=[late])).findings
    long_after = Answer("link broker 900", TP, 2, 100.5 + CARRIES)
    assert set(judge(acked(), after(FailedOver(2, 2), answers=[long_after])).findings) == {"stale_owner"}


def test_a_report_of_the_admin_api() -> None:
    told = {"topic": "orders", "partition": 0, "end": 7, "missing": None}
    aborted = [{"producer_id": 5, "producer_epoch": 0, "start_offset": 3}]
    found = read_failed_over(
        [{**told, "aborted": aborted}, {**told, "partition": 1, "end": None, "aborted": []}]
    )
    assert found == {TP: FailedOver(7, None, ((5, 3),))}
    assert found[TP].has_aborted(5, 3)
    assert not found[TP].has_aborted(5, 2)
    assert not found[TP].has_aborted(6, 3)
