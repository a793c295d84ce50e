"""Missed, repeated and paused: one history that breaks each rule, and one that comes close."""

from __future__ import annotations

from lab.demo.group_moves import GroupMoves, judge_groups
from lab.workload.history import History, LogRecord, PartitionLog, Read
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)
GROUPS = {"a-1": "a", "a-2": "a", "b-1": "b"}


def judged(*reads: tuple[str, int, float], start: int = 0, end: int = 4) -> GroupMoves:
    history = History()
    history.reads += [Read(who, 1, TP, offset, "p", offset, at) for who, offset, at in reads]
    log = PartitionLog(start, end, [LogRecord(offset, "p", offset) for offset in range(start, end)])
    return judge_groups(history, {TP: log}, GROUPS, move=(10.0, 20.0), opened=19.0)


def whole(who: str, first: int = 0, end: int = 4, at: float = 1.0) -> list[tuple[str, int, float]]:
    return [(who, offset, at + offset / 100) for offset in range(first, end)]


def test_a_group_reads_what_any_of_its_members_reads() -> None:
    found = judged(*whole("a-1", 0, 2), *whole("a-2", 2, 4), *whole("b-1"))
    assert not found.problems
    assert found.as_json()["consumer_missed"] == 0


def test_missed_by_one_group_is_missed() -> None:
    found = judged(*whole("a-1"), *whole("b-1", 0, 3))
    assert [str(one) for one in found.missed] == ["t-0 offset 3: b never got p record 3"]
    assert found.problems == ["missed by a group: 1, first t-0 offset 3: b never got p record 3"]


def test_twice_in_one_group_is_repeated_in_two_groups_it_is_not() -> None:
    found = judged(*whole("a-1"), ("a-2", 3, 5.0), *whole("b-1"))
    assert [str(one) for one in found.repeated] == ["t-0 offset 3: a got p record 3 2 times"]
    assert found.as_json()["consumer_repeated"] == 1


def test_what_retention_took_is_nobodys_fault() -> None:
    assert not judged(*whole("a-1", 2), *whole("b-1", 2), start=2).problems


def test_pauses_are_those_of_the_move() -> None:
    found = judged(
        ("a-1", 0, 1.0),
        ("a-1", 1, 9.0),
        ("a-2", 2, 12.0),
        ("a-2", 3, 19.5),
        *whole("b-1", at=9.9),
        ("x", 0, 30.0),
    )
    assert found.pauses_ms == {"a": 7500.0}  # 1.0 to 9.0 was before the move
    assert found.opening_ms == {"a": 500.0}
    assert found.pause_ms == 7500.0
    assert judged().pause_ms is None
