"""A topic that was switched: the fields of the report, and that nothing that is off ends as a success."""

from __future__ import annotations

import dataclasses

import pytest

from lab.demo.switch_report import Switch, Unrestarted, judge_unrestarted
from lab.demo.switching import can_join
from lab.workload.history import Ack, ClientError, History, LogRecord, Outcome, PartitionLog, Read
from lab.workload.log_compare import Comparison, ReplicaComparison
from wire.frames.types import TopicPartition

TP = TopicPartition("returns", 0)
OTHER = "moves"  # a producer that is not judged here, and whose records the groups have to read all the same
SWITCHES = (Switch("there", (2.0, 4.0), {"FENCED": 30}), Switch("back", (6.0, 8.0), {"FENCED": 40}))
REPLICA = ReplicaComparison(
    partition=TP,
    broker=1,
    comparison=Comparison.BYTES,
    start=0,
    end=11,
    batches=3,
    compared_bytes=300,
    offsets_identical=True,
    identical=True,
    difference=None,
)


@pytest.fixture
def history() -> History:
    """One record a second from 0 to 9, but for the second switch, at 7; the other's is the last."""
    found = History(clock=lambda: 0.0)
    for number in range(10):
        found.next_sequence("stays", TP)
        found.acks.append(Ack("stays", number, TP, number, 7.9 if number == 7 else float(number)))
    found.next_sequence(OTHER, TP)
    found.acks.append(Ack(OTHER, 0, TP, 10, 9.5))
    for offset in range(10):
        found.reads.append(Read("reader", 1, TP, offset, "stays", offset, offset + 0.1))
    found.reads.append(Read("reader", 1, TP, 10, OTHER, 0, 9.6))
    return found


def log(*offsets: int) -> PartitionLog:
    kept = offsets or range(10)
    records = [LogRecord(offset, "stays", sequence) for offset, sequence in enumerate(kept)]
    return PartitionLog(0, 11, [*records, LogRecord(10, OTHER, 0)])


def judged(history: History, kept: PartitionLog | None = None) -> Unrestarted:
    return judge_unrestarted(
        history,
        {TP: kept or log()},
        SWITCHES,
        [REPLICA],
        producers={"stays"},
        consumers={"reader": "readers"},
    )


def test_the_fields_of_the_report(history: History) -> None:
    found = judged(history)
    assert found.problems == []
    assert found.as_json() == {
        "switches": [
            {"direction": "there", "pause_ms": 1000.0, "phases_ms": {"FENCED": 30}},
            {"direction": "back", "pause_ms": 1900.0, "phases_ms": {"FENCED": 40}},
        ],
        "unrestarted": {
            "acked": 10,
            "lost": 0,
            "duplicated": 0,
            "reordered": 0,
            "client_errors": 0,
            "missed": 0,
            "repeated": 0,
        },
        "source_bytes_identical_after": True,
    }


def counted(found: Unrestarted) -> dict[str, int]:
    """What is not 0, and is a problem."""
    told = found.as_json()["unrestarted"]
    wrong = {rule: count for rule, count in told.items() if rule != "acked" and count}
    assert bool(wrong) == bool(found.problems), found.problems
    return wrong


def test_an_acknowledged_record_that_is_in_no_log_is_lost(history: History) -> None:
    found = judged(history, PartitionLog(0, 11, [one for one in log().records if one.offset != 4]))
    assert counted(found) == {"lost": 1}
    assert found.problems[0].startswith("never restarted: lost: 1, first returns-0")


def test_a_record_that_is_there_twice(history: History) -> None:
    twice = PartitionLog(0, 12, [*log().records, LogRecord(11, "stays", 9)])
    assert counted(judged(history, twice)) == {"duplicated": 1, "missed": 1}  # nobody read the second one


def test_an_order_that_was_not_kept(history: History) -> None:
    history.acks[3], history.acks[4] = (
        history.acks[3]._replace(offset=4),
        history.acks[4]._replace(offset=3),
    )
    assert counted(judged(history, log(0, 1, 2, 4, 3, 5, 6, 7, 8, 9))) == {"reordered": 1}


def test_errors_are_those_of_the_clients_that_stayed(history: History) -> None:
    history.errors.append(ClientError(OTHER, "no", 1.0))
    assert counted(judged(history)) == {}
    history.errors += [ClientError("stays", "no", 1.0), ClientError("reader", "no", 1.0)]
    assert counted(judged(history)) == {"client_errors": 2}


def test_a_record_without_an_outcome_is_a_problem(history: History) -> None:
    history.next_sequence("stays", TP)
    assert judged(history).problems == ["never restarted: unknown: 1 records without an outcome"]
    history.not_acked("stays", 10, TP, Outcome.UNKNOWN, "timed out")
    assert counted(judged(history)) == {"client_errors": 1}


def test_groups_read_the_records_of_all(history: History) -> None:
    last = history.reads.pop()
    assert counted(judged(history)) == {"missed": 1}
    history.reads += [last, last]
    assert counted(judged(history)) == {"repeated": 1}


def test_no_acknowledgement_around_a_switch_is_a_problem(history: History) -> None:
    history.acks = [one for one in history.acks if one.time < 5]
    history.sends["stays"] = history.sends["stays"][:5]
    found = judged(history, log(*range(5)))
    assert "never restarted: switch 2, back: no acknowledgement before and after it" in found.problems


def test_a_replica_that_differs_or_none_at_all(history: History) -> None:
    good = judged(history)
    bad = dataclasses.replace(REPLICA, identical=False, difference="batch at offset 4")
    for found in (
        dataclasses.replace(good, comparisons=[REPLICA, bad]),
        dataclasses.replace(good, comparisons=[dataclasses.replace(REPLICA, offsets_identical=False)]),
        dataclasses.replace(good, comparisons=[]),
    ):
        assert found.as_json()["source_bytes_identical_after"] is False
        assert len(found.problems) == 1


def test_sources_that_cannot_be_joined() -> None:
    assert [can_join(version) for version in ("3.8.1", "3.9.1", "4.0.0", "4.3.1")] == [
        False,
        True,
        True,
        True,
    ]
