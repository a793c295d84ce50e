"""Record mode without Spark: which replicas can be read, and when a reading is planned anew."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from validator.compare.facts import FindingKind
from validator.messages import PartitionPlan, ReplicaPlan
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.ranges import PartitionBounds, ReplicaBounds
from validator.read.survey import Survey
from validator.records import records
from validator.records.frames import SOURCE
from validator.records.records import ATTEMPTS, RecordsChecked, RecordsUnreadable, _Job, check_records
from wire.frames.types import TopicPartition

EAST = ClusterEndpoint("source", "east", ("a:1",))
WEST = ClusterEndpoint("target", "west", ("b:1",))
TP = TopicPartition("t", 0)
PLAN = PartitionPlan(topic="t", partition=0, replicas=tuple(ReplicaPlan(broker_id=n) for n in (1, 2, 3)))
LINK_BROKER = 900
ANY: Any = None


def found(**changes: Any) -> Survey:
    replicas = tuple(ReplicaBounds(n, n, 0, changes.get("log_start", 0), 100 - n) for n in (1, 2, 3))
    return Survey(bounds={TP: PartitionBounds("t", 0, 0, 98, replicas)})


def job(leader: int, survey: Survey | None = None) -> _Job:
    return _Job(ANY, EAST, WEST, [PLAN], survey or found(), {TP: leader}, 0)


def test_every_replica_is_read_while_the_link_broker_leads() -> None:
    made = job(LINK_BROKER)
    assert sorted(made.readable) == [(0, 1), (0, 2), (0, 3)]
    assert made.failures == []


def test_a_stock_leader_alone_is_read_and_the_others_are_not_said_to_be_equal() -> None:
    made = job(2)
    assert sorted(made.readable) == [(0, 2)]
    assert [failure.reason.partition(";")[0] for failure in made.failures] == [
        "t-0: broker 2 leads it, and Spark's Kafka connector reads leaders only"
    ] * 2


def test_what_is_wrong_without_reading_is_told_of_every_replica() -> None:
    wrong = [(PLAN, replica, FindingKind.RECREATED, "another topic") for replica in PLAN.replicas]
    checked = job(LINK_BROKER, Survey(wrong=wrong)).run()
    assert [result.findings[0].kind for result in checked.results] == [FindingKind.RECREATED] * 3


def test_each_side_is_read_just_where_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(LINK_BROKER, found(log_start=10))
    asked: dict[int, Any] = {}
    monkeypatch.setattr(_Job, "read", lambda self, wanted, more=None: asked.update(wanted))
    expected = [made._expected(part, one) for (part, _), one in made.readable.items()]
    made.rows(expected)
    # the source from where the mirror began; each replica from its log start to its end, or the end it has to have
    assert asked == {SOURCE: {0: (0, 98)}, 1: {0: (10, 98)}, 2: {0: (10, 98)}, 3: {0: (10, 97)}}


class Scripted:
    """Stands in for the readings of `check_records`: each is a result, or the error that Spark ends with."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *readings: Any, leaders: list[int] | None = None
    ) -> None:
        self.readings = list(readings)
        self.leaders = leaders or []
        self.looks = 0
        monkeypatch.setattr(records, "ensure_connector", lambda spark: None)
        monkeypatch.setattr(records, "look", self.look)
        monkeypatch.setattr(_Job, "run", self.run)

    async def look(self, *args: Any, **named: Any) -> tuple[Survey, dict[TopicPartition, int]]:
        self.looks += 1
        return found(), {TP: self.leaders.pop(0) if self.leaders else LINK_BROKER}

    def run(self) -> RecordsChecked:
        outcome = self.readings.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, RecordsChecked)
        return outcome


MOVED = PySparkException("OffsetOutOfRangeException: Fetch position 7 is out of range")
LOST = PySparkException("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] offsets 1 to 2 are gone")
BROKEN = PySparkException("the executor has no disk")


def check() -> RecordsChecked:
    return check_records(ANY, EAST, WEST, [PLAN], wait_s=0, now_ms=0)


@pytest.mark.parametrize("moved", [MOVED, LOST])
def test_a_log_that_moved_is_planned_anew(monkeypatch: pytest.MonkeyPatch, moved: Exception) -> None:
    good = RecordsChecked()
    script = Scripted(monkeypatch, moved, good)
    assert check() is good
    assert script.readings == []


def test_a_log_that_moves_all_the_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch, *[MOVED] * (ATTEMPTS + 1))
    with pytest.raises(RecordsUnreadable, match="out of range"):
        check()
    assert len(script.readings) == 1


def test_any_other_error_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch, BROKEN, RecordsChecked())
    with pytest.raises(RecordsUnreadable, match="no disk"):
        check()
    assert len(script.readings) == 1


def test_a_reading_during_which_the_leader_changed_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = RecordsChecked(), RecordsChecked()
    Scripted(monkeypatch, first, second, leaders=[LINK_BROKER, 2, 2, 2])
    assert check() is second


def test_leaders_that_move_all_the_time_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, *[RecordsChecked()] * ATTEMPTS, leaders=[1, 2] * ATTEMPTS)
    with pytest.raises(RecordsUnreadable, match="leaders"):
        check()


def test_which_side_is_away_is_told_with_what_spark_made_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Scripted(monkeypatch, BROKEN)

    async def look(*args: Any, **named: Any) -> Any:
        script.looks += 1
        if script.looks > 1:
            raise SideFailed("target", "b:1", "connection refused")
        return found(), {TP: LINK_BROKER}

    monkeypatch.setattr(records, "look", look)
    with pytest.raises(
        SideFailed, match=r"connection refused; .* gave up: the executor has no disk"
    ) as caught:
        check()
    assert (caught.value.side, caught.value.address) == ("target", "b:1")


def test_a_cancelled_job_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = PySparkException("Job 3 cancelled part of cancelled job group r-1")
    script = Scripted(monkeypatch, cancelled, RecordsChecked())
    with pytest.raises(PySparkException, match="cancelled"):
        check()
    assert len(script.readings) == 1
