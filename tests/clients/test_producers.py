"""Which rows of the producers' report are good ones, and in which order things befall them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lab.workload.checker import Finding
from lab.workload.history import Ack, LogRecord, PartitionLog
from tests.clients import producers as scenario
from tests.clients.catalog import KAFKA_GO, LIBRDKAFKA, PRODUCERS, SARAMA, ProducerCase
from tests.clients.judge import Window
from tests.clients.producers import elsewhere, excused, idempotent, producers, sound
from tests.clients.program import Transcript
from wire.frames.types import TopicPartition

NEVER: frozenset[str] = frozenset()
KILL = frozenset({"kill"})
GOOD: dict[str, Any] = dict.fromkeys(
    ("lost", "otherwise_wrong", "errors", "unknown", "duplicated", "reordered"), 0
) | {"errors_at": {}, "kill_gap_ms": 1800.0, "doubled_elsewhere": 0}
AT_KILL = GOOD | {"errors": 3, "unknown": 3, "errors_at": {"kill": 3}}


def test_nothing_wrong() -> None:
    assert sound(GOOD, NEVER)


@pytest.mark.parametrize("what", ["lost", "otherwise_wrong"])
def test_never(what: str) -> None:
    assert not sound(GOOD | {what: 1}, KILL, again=True)


def test_errors_only_where_stock_brokers_give_them() -> None:
    assert sound(AT_KILL, KILL)
    assert not sound(AT_KILL, NEVER)
    assert not sound(AT_KILL | {"errors_at": {"kill": 2, "roll": 1}}, KILL)


@pytest.mark.parametrize("what", ["unknown", "errors"])
def test_a_record_without_an_answer_needs_an_event_that_explains_it(what: str) -> None:
    assert not sound(GOOD | {what: 1}, KILL)


@pytest.mark.parametrize("what", ["duplicated", "reordered"])
def test_doubled_only_by_a_client_that_writes_again_and_only_where_the_leader_is_killed(what: str) -> None:
    assert not sound(GOOD | {what: 1}, NEVER)
    assert sound(GOOD | {what: 1}, NEVER, again=True)
    undisturbed = {key: value for key, value in GOOD.items() if key != "kill_gap_ms"}
    assert not sound(undisturbed | {what: 1}, NEVER, again=True)
    assert not sound(GOOD | {what: 1, "doubled_elsewhere": 1}, NEVER, again=True)


@pytest.mark.parametrize(
    ("answered", "elsewhere_is"), [(99.9, 1), (100.0, 0), (108.0, 0), (115.1, 1), (None, 1)]
)
def test_a_doubled_record_is_explained_by_an_outcome_around_the_kill(
    answered: float | None, elsewhere_is: int
) -> None:
    tp = TopicPartition("t", 0)
    log = PartitionLog(0, 2, [LogRecord(0, "p", 7), LogRecord(1, "p", 7)])
    acks = [] if answered is None else [Ack("p", 7, tp, 1, answered)]
    assert elsewhere([Finding(tp, 1, "twice")], {tp: log}, acks, Window(100.0, 110.0)) == elsewhere_is


def test_who_is_idempotent() -> None:
    kinds = {case.name: idempotent(case) for case in PRODUCERS}
    assert (kinds["sarama-sync"], kinds["sarama-idempotent"]) == (False, True)
    assert (kinds[KAFKA_GO.name], kinds[LIBRDKAFKA.name]) == (False, True)
    assert SARAMA.name not in kinds


def test_whose_errors_at_a_kill_are_its_own() -> None:
    """As they are where a stock broker dies that has the partitions alone."""
    assert {case.library.name for case in PRODUCERS if excused(case) == KILL} == {"sarama", "kafka-go"}


class FakeProgram:
    """Acknowledged whenever it is waited for."""

    def __init__(self, case: ProducerCase, told: list[str]) -> None:
        self.transcript = Transcript(case.name, 6, f"by-{case.name}")
        self._case = case
        self._told = told

    async def start(self, bootstrap: str, cluster: str) -> None:
        self._told.append(f"{self._case.name} at {cluster}")

    async def stop(self) -> None:
        pass

    async def kill(self) -> None:
        pass

    async def until(self, reached: Callable[[], bool], timeout: float, what: str) -> None:
        number = len(self.transcript.acks)
        tp = TopicPartition(self.transcript.topic, number % 6)
        self.transcript.acks.append(Ack(self._case.name, number, tp, number // 6, time.time()))
        self.transcript.next = number + 1
        assert reached()


class FakeStage:
    """Notes what is done to it."""

    target = SimpleNamespace(bootstrap="t:1")

    def __init__(self) -> None:
        self.told: list[str] = []

    def bootstrap(self, cluster: str) -> str:
        return f"{cluster}:1"

    async def topic(self, name: str, partitions: int) -> None:
        pass

    async def mirror(self, *topics: str) -> None:
        self.told.append("mirror")

    async def promote(self, *topics: str) -> dict[str, Any]:
        self.told.append(f"promote {topics[0].removeprefix('by-')}")
        return {}

    async def forget(self) -> None:
        self.told.append("end")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeStage:
    stage = FakeStage()
    made: list[FakeProgram] = []

    async def program(_stage: Any, case: ProducerCase) -> FakeProgram:
        made.append(FakeProgram(case, stage.told))
        return made[-1]

    async def roll(_stage: Any) -> Window:
        stage.told.append("roll")
        return Window(time.time(), time.time())

    async def kill(_stage: Any, topics: list[str], _partitions: int) -> Window:
        stage.told.append(f"kill with {len(topics)}")
        return Window(time.time(), time.time())

    def logs(_bootstrap: str, topic: str, partitions: int) -> dict[TopicPartition, PartitionLog]:
        acks = next(one.transcript.acks for one in made if one.transcript.topic == topic)
        found = {}
        for tp in (TopicPartition(topic, p) for p in range(partitions)):
            records = [LogRecord(a.offset or 0, a.producer, a.sequence) for a in acks if a.partition == tp]
            found[tp] = PartitionLog(0, len(records), records)
        return found

    monkeypatch.setattr(scenario, "program", program)
    monkeypatch.setattr(scenario, "roll", roll)
    monkeypatch.setattr(scenario, "kill", kill)
    monkeypatch.setattr(scenario, "committed_logs", logs)
    monkeypatch.setattr(scenario, "SETTLE_SECONDS", 0.0)
    return stage


TWO = [
    ProducerCase(library=LIBRDKAFKA, transactional=True, quick=False),
    ProducerCase(library=LIBRDKAFKA, transactional=False, quick=False),
]
DISTURBED = ["librdkafka at target", "roll", "kill with 1", "librdkafka-transactions at target"]
QUIET = ["librdkafka at target", "librdkafka-transactions at target"]


@pytest.mark.parametrize(("events", "middle"), [("first", DISTURBED), ("none", QUIET)])
async def test_transactions_move_after_what_befalls_the_others(
    fake: FakeStage, events: str, middle: list[str]
) -> None:
    rows: dict[str, Any] = {}
    await producers(fake, TWO, rows, lambda name, row: None, 0.0, events)  # type: ignore[arg-type]
    start = ["librdkafka at source", "librdkafka-transactions at source", "mirror"]
    assert fake.told == [
        *start,
        *middle,
        "promote librdkafka-transactions",
        "promote librdkafka",
        "end",
    ]
    assert ("roll_gap_ms" in rows["librdkafka"]) is (events == "first")
    assert "roll_gap_ms" not in rows["librdkafka-transactions"]
    assert rows["librdkafka"]["ok"]


@pytest.mark.parametrize(("events", "rolls"), [("every", 2), ("first", 1), ("none", 0)])
async def test_in_which_waves(
    fake: FakeStage, monkeypatch: pytest.MonkeyPatch, events: str, rolls: int
) -> None:
    monkeypatch.setattr(scenario, "AT_ONCE", 1)
    some = [TWO[1], ProducerCase(library=KAFKA_GO, transactional=False, quick=False), TWO[0]]
    await producers(fake, some, {}, lambda name, row: None, 0.0, events)  # type: ignore[arg-type]
    assert fake.told.count("roll") == rolls
