"""Which rows of the switches' report are good ones, and what is done under the clients, which stay where they are."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lab.workload.history import Ack, ClientError, LogRecord, Outcome, PartitionLog, Unacked
from tests.clients import groups, switches
from tests.clients.build import CannotBuildError
from tests.clients.catalog import PLATFORMATIC, SWITCHES, SwitchCase
from tests.clients.judge import GroupRead, Window
from tests.clients.program import ProgramError, Transcript
from tests.clients.switches import PARTITIONS, Timeline, undisturbed
from wire.frames.types import TopicPartition

GOOD: dict[str, Any] = dict.fromkeys(
    (
        *("lost", "duplicated", "reordered", "otherwise_wrong", "missed", "misread", "unequal_at_target"),
        *("errors", "own_errors", "unknown", "own_unknown", "repeated"),
    ),
    0,
) | {"acked": 9, "errors_at": {}, "doubled_at": {}}
CASES = {case.name: case for case in SWITCHES}


def test_every_library_has_one_row() -> None:
    names = [library.name for case in SWITCHES for library in {*case.libraries}]
    assert sorted({name: names.count(name) for name in names}.items()) == [
        *(("aiokafka", 1), ("franz-go", 1), ("java-2.8.2", 1), ("java-3.9.1", 1), ("java-4.3.1", 1)),
        *(("kafka-go", 1), ("kafka-python", 1), ("kafkajs", 1), ("librdkafka", 2), ("node-rdkafka", 1)),
        *(("platformatic-kafka", 1), ("sarama", 1), ("streams-4.3.1", 1)),
    ]
    assert not any(case.writer.transactional for case in SWITCHES)
    assert 2 <= sum(case.quick for case in SWITCHES) <= 3


def test_a_good_row() -> None:
    assert undisturbed(GOOD)
    assert undisturbed(GOOD | {"errors": 2, "own_errors": 2, "unknown": 1, "own_unknown": 1})
    assert undisturbed(GOOD | {"repeated": 3}, rereads=True)


@pytest.mark.parametrize(
    "what",
    [key for key in GOOD if key not in ("acked", "own_errors", "own_unknown", "errors_at", "doubled_at")]
    + ["output_missed", "output_repeated"],
)
def test_never(what: str) -> None:
    assert not undisturbed(GOOD | {what: 1})
    if what != "repeated":
        assert not undisturbed(GOOD | {what: 1}, rereads=True)


def test_an_error_from_before_the_link_did_anything_is_not_its_own() -> None:
    assert undisturbed(GOOD | {"errors": 1, "errors_at": {"before": 1}})
    assert not undisturbed(GOOD | {"errors": 2, "errors_at": {"before": 1, "there": 1}})


def test_doubled_only_by_a_client_that_writes_again_and_only_at_a_switch() -> None:
    doubled = GOOD | {"duplicated": 2, "doubled_at": {"there": 1, "back": 1}}
    assert undisturbed(doubled, again=True)
    assert not undisturbed(doubled)
    assert not undisturbed(doubled | {"doubled_at": {"sync": 1, "back": 1}}, again=True)
    assert not undisturbed(
        doubled | {"doubled_at": {"there": 1}}, again=True
    )  # nobody knows when the other one was
    assert not undisturbed(doubled | {"lost": 1}, again=True)


async def test_when_a_record_was_doubled(fake: FakeStage) -> None:
    case = CASES["kafka-go"]
    await run(fake, case.name)
    group = fake.groups[f"read-{case.name}"]
    begins = {"before": 0.0, "there": time.time()}
    group.load.transcript.next += 1
    for _ in range(2):
        number = group.load.transcript.next - 1
        tp = TopicPartition(group.topic, number % PARTITIONS)
        offset = sum(ack.partition == tp for ack in group.load.transcript.acks)
        group.load.transcript.acks.append(Ack(group.load.name, number, tp, offset, time.time()))
        group.reads.append(GroupRead("m", "source", 1, tp, offset, group.load.name, number, time.time()))
    ride = switches.Ride(case, group, time.time())  # type: ignore[arg-type]
    row = await switches._judge(fake, ride, Timeline(begins))  # type: ignore[arg-type]
    assert (row["duplicated"], row["doubled_at"], row["ok"]) == (1, {"there": 2}, True)


def test_nothing_acknowledged_is_not_well() -> None:
    assert not undisturbed(GOOD | {"acked": 0})


def test_a_phase_lasts_until_the_next_one() -> None:
    timeline = Timeline({"there": 1.0, "back": 5.0})
    assert timeline.windows(9.0) == {"there": Window(1.0, 5.0), "back": Window(5.0, 9.0)}


class FakeMember:
    """One record read and acknowledged of each partition whenever the scenario sleeps."""

    def __init__(self, name: str, topic: str, told: list[str]) -> None:
        self.name = name
        self.transcript = Transcript(name, PARTITIONS, topic, version="1")
        self._told = told

    async def stop(self) -> None:
        self._told.append(f"end {self.name}")


class FakeGroup:
    def __init__(self, case: SwitchCase, told: list[str]) -> None:
        self.case, self.told = case.group, told
        self.topic = f"read-{case.name}"
        self.topics = [self.topic]
        self.name = self.version = case.name
        self.output = None
        self.load = FakeMember(f"load-{case.name}", self.topic, told)
        self.members = [FakeMember(case.name, self.topic, told)]

    @property
    def reads(self) -> list[GroupRead]:
        return self.members[0].transcript.reads

    async def start(self) -> None:
        self.told.append(f"start {self.name}")
        self.go_on()

    def go_on(self) -> None:
        """One record to each partition."""
        load, reader = self.load.transcript, self.members[0].transcript
        for _ in range(PARTITIONS):
            number = load.next
            tp, offset = TopicPartition(self.topic, number % PARTITIONS), number // PARTITIONS
            load.acks.append(Ack(load.name, number, tp, offset, time.time()))
            reader.reads.append(
                GroupRead(reader.name, "source", 1, tp, offset, load.name, number, time.time())
            )
            load.next += 1

    async def read_to(self, _logs: Any) -> None:
        pass

    async def stop(self) -> None:
        await self.members[0].stop()


class FakeStage:
    """Notes what is done to it; its link does at once what it is told."""

    source = SimpleNamespace(brokers=[1, 2])

    def __init__(self) -> None:
        self.told: list[str] = []
        self.groups: dict[str, FakeGroup] = {}
        self.phase = "PROMOTED"
        self.mirror_now = {"direction": "FORWARD", "state": "ACTIVE", "sync": "OFF", "lag": 0}

    def bootstrap(self, cluster: str) -> str:
        return cluster

    async def linker(self, *arguments: str) -> Any:
        if arguments[:2] == ("link", "describe"):
            return {"source_membership": [{"state": "JOINED"}], "forwarding": {"enabled": True}}
        self.told.append(" ".join(one for one in arguments[:2]))
        if arguments[1] == "sync":
            self.mirror_now["sync"] = "IN_SYNC"
        if arguments[1] == "switch":
            forward = self.mirror_now["direction"] == "FORWARD"
            self.mirror_now["direction"] = "REVERSED" if forward else "FORWARD"
        return {"phase": self.phase, "phases_ms": {"FENCING": 3}, "reason": "no"}

    async def mirror(self, *_topics: str) -> None:
        self.told.append("mirror create")

    async def mirrors_are(self, _topics: Any, well: Any, what: str) -> None:
        assert well(self.mirror_now), what

    async def forget(self) -> None:
        self.told.append("forget")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeStage:
    stage = FakeStage()
    nap = asyncio.sleep

    async def assembled(_stage: Any, case: SwitchCase) -> FakeGroup:
        made = stage.groups[f"read-{case.name}"] = FakeGroup(case, stage.told)
        return made

    def logs(_bootstrap: str, topic: str, partitions: int) -> dict[TopicPartition, PartitionLog]:
        found = {}
        for tp in (TopicPartition(topic, p) for p in range(partitions)):
            acks = [ack for ack in stage.groups[topic].load.transcript.acks if ack.partition == tp]
            records = [LogRecord(a.offset or 0, a.producer, a.sequence) for a in acks]
            found[tp] = PartitionLog(0, len(records), records)
        return found

    async def sleep(_seconds: float) -> None:
        for group in stage.groups.values():
            group.go_on()
        await nap(0)

    async def output_of(*_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(switches, "_assembled", assembled)
    monkeypatch.setattr(switches, "committed_logs", logs)
    # Of this module alone: what else the process runs goes on sleeping.
    monkeypatch.setattr(switches, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(groups, "output_of", output_of)
    return stage


async def run(stage: FakeStage, *names: str) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    await switches.switches(stage, [CASES[name] for name in names], rows, lambda name, row: None)  # type: ignore[arg-type]
    return rows


async def test_clients_start_before_the_link_does_anything_and_end_after_the_switch_back(
    fake: FakeStage,
) -> None:
    rows = await run(fake, "librdkafka", "aiokafka")
    assert fake.told == [
        *("start librdkafka", "start aiokafka"),
        *("link update", "mirror create", "mirror sync", "mirror switch", "mirror switch"),
        *("end load-librdkafka", "end load-aiokafka", "end librdkafka", "end aiokafka", "forget"),
    ]
    assert [row["ok"] for row in rows.values()] == [True, True]
    row = rows["librdkafka"]
    assert (
        row["acked"] == row["records"] == 4 * PARTITIONS
    )  # at the start, before the join, and after each switch
    assert row["switch_phases_ms"] == {"there": {"FENCING": 3}, "back": {"FENCING": 3}}
    for kind in ("gap", "partition_gap", "read_pause"):
        assert row[f"there_{kind}_ms"] is not None
        assert row[f"back_{kind}_ms"] is not None


async def test_an_error_of_a_member_counts_as_one_of_the_writer_does(fake: FakeStage) -> None:
    first = CASES["aiokafka"]
    await run(fake, "aiokafka")
    group = fake.groups[f"read-{first.name}"]
    group.members[0].transcript.errors.append(ClientError("m", "left behind", time.time()))
    ride = switches.Ride(first, group, time.time())  # type: ignore[arg-type]
    row = await switches._judge(fake, ride, Timeline({"before": 0.5, "there": 1.0}))  # type: ignore[arg-type]
    assert (row["errors"], row["own_errors"], row["ok"]) == (1, 0, False)
    assert row["error_texts"] == ["left behind"]
    assert row["errors_at"] == {"there": 1}


async def test_an_error_that_the_library_gets_from_stock_brokers_is_its_own(fake: FakeStage) -> None:
    case = CASES["platformatic-kafka-plain"]
    await run(fake, case.name)
    group = fake.groups[f"read-{case.name}"]
    load = group.load.transcript
    tp = TopicPartition(group.topic, load.next % PARTITIONS)
    text = f"produce failed 4 times. [{PLATFORMATIC.own_error}]"
    load.unacked.append(Unacked(load.name, load.next, tp, Outcome.UNKNOWN, text, time.time()))
    load.next += 1
    ride = switches.Ride(case, group, time.time())  # type: ignore[arg-type]
    row = await switches._judge(fake, ride, Timeline({"before": 0.5, "there": 1.0}))  # type: ignore[arg-type]
    assert (row["errors"], row["own_errors"], row["unknown"], row["ok"]) == (1, 1, 1, True)


async def test_a_target_that_holds_another_record_is_found(
    fake: FakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = switches.committed_logs

    def one_more_at_the_target(bootstrap: str, topic: str, partitions: int) -> Any:
        found = logs(bootstrap, topic, partitions)
        if bootstrap == "target":
            tp, log = next(iter(found.items()))
            found[tp] = PartitionLog(0, log.end + 1, [*log.records, LogRecord(log.end, "stray", 1)])
        return found

    monkeypatch.setattr(switches, "committed_logs", one_more_at_the_target)
    monkeypatch.setattr(switches, "EQUAL_TIMEOUT", 0.0)
    row = (await run(fake, "librdkafka"))["librdkafka"]
    assert (row["unequal_at_target"], row["ok"]) == (1, False)


async def test_a_switch_that_is_abandoned_is_no_switch(fake: FakeStage) -> None:
    fake.phase = "ABANDONED"
    with pytest.raises(ProgramError, match="the switch there was abandoned: no"):
        await run(fake, "librdkafka")


async def test_one_that_breaks_or_cannot_be_built_is_out_and_the_others_go_on(
    fake: FakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(group: FakeGroup) -> None:
        if group.name == "aiokafka":
            raise ProgramError("did not read")
        group.go_on()

    assembled = switches._assembled

    async def but_one(stage: Any, case: SwitchCase) -> Any:
        if case.name == "franz-go":
            raise CannotBuildError("no go")
        return await assembled(stage, case)

    monkeypatch.setattr(FakeGroup, "start", start)
    monkeypatch.setattr(switches, "_assembled", but_one)
    rows = await run(fake, "librdkafka", "aiokafka", "franz-go")
    assert rows["librdkafka"]["ok"]
    assert (rows["aiokafka"]["ok"], rows["aiokafka"]["broke"]) == (False, "did not read")
    assert rows["franz-go"] == {"skipped": "no go"}
