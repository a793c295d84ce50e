"""A link's validation with a validator process that has no Spark: runs, continuous runs, promotes, evidence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from admin.validation_models import ValidationState
from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.proof import EvidenceStatus, MissingRecords, ValidationPolicy
from controller.state import Attempt, JobStatus, MirrorTopic, PromoteJob
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from linker.config.check import ValidationConfig
from linker.promote.ports import FenceProof
from linker.validation import evidence as evidence_module
from linker.validation import lost_copies
from linker.validation import runner as runner_module
from linker.validation.evidence import close_evidence
from linker.validation.process import ValidatorProcess
from linker.validation.promote import PromoteProof
from linker.validation.runner import INTERVAL_OPTION, LinkValidator, NotRunning
from linker.validation.runs import MAX_SHOWN, Recorder, RunStatus, Totals
from linker.validation.turns import Urgency
from linker.validation.validator import Validator, side
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from tests.validation.conftest import FakeWorld
from validator import messages as m
from validator.compare.facts import Finding, FindingKind
from validator.evidence.model import Evidence
from validator.evidence.verdict import Verdict, verdict_of
from validator.mode import Mode
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

LINK, TOPIC_ID = "east", b"t" * 16
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REPLICAS = (1, 2)


def target_image() -> ClusterImage:
    image = ClusterImage()
    for broker in (*REPLICAS, 900):
        image.brokers[broker] = BrokerImage(broker, 10, bytes(16), None, {}, False, False, ())
    topic = TopicImage(TOPIC_ID, "t", {})
    for index in (0, 1):
        topic.partitions[index] = PartitionImage(index, (900, *REPLICAS), (900,), REPLICAS, (), 900, 3, 5)
    image.topics_by_id[TOPIC_ID] = image.topics_by_name["t"] = topic
    return image


class Stage:
    """One link with one topic of two partitions on two brokers."""

    def __init__(
        self, controller: LinkController, process: ValidatorProcess, fake: FakeWorld, out: Path
    ) -> None:
        self.controller = controller
        self.fake = fake
        self.image = target_image()
        self.ends = {T0: 100, T1: 7}
        self.asked_at: dict[int, tuple[int, float]] = {}  # broker -> offset, monotonic
        self.restarts: dict[
            int, tuple[tuple[int, float], ...]
        ] = {}  # broker -> the same, of each time it went back
        properties = {"bootstrap.servers": "h:1", "sasl.jaas.config": "hush"}
        self.validator = Validator(
            ValidationConfig(), process, lambda: side("target", properties, None), out / "evidence"
        )
        target: Any = SimpleNamespace(
            image=self.image, cluster=SimpleNamespace(cluster_id="target-id"), broker_id=900
        )
        self.validation = LinkValidator(
            context(LINK, None, target, controller),
            self.validator,
            lambda: side("source", properties, None),
            self.copy,
            close_evidence,
        )
        controller.listeners.add(lambda _: None)
        self.say()

    def say(self, **changes: Any) -> None:
        ends = {f"{tp.topic}-{tp.partition}": end for tp, end in self.ends.items()}
        self.fake.say(ends=ends, **changes)

    def copy(self, tp: TopicPartition) -> Any:
        followers = {
            broker: SimpleNamespace(
                fetch_offset=offset, last_fetch_monotonic=at, restarts=self.restarts.get(broker, ())
            )
            for broker, (offset, at) in self.asked_at.items()
        }
        return SimpleNamespace(
            loaded=True,
            high_watermark=self.ends[tp],
            log_start_offset=0,
            followers=followers,
            bytes_fetched=1000,
        )

    def marks(self) -> dict[tuple[TopicPartition, int], int]:
        return {
            (tp, one.broker_id): one.through
            for (_, tp), known in self.controller.image.validations.items()
            for one in known.replicas
        }

    async def over(self, run: RunStatus) -> RunStatus:
        await self.until(lambda: run.state.final)
        return run

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(40):
            while not true():
                await asyncio.sleep(0.01)

    async def interval(self, milliseconds: int | None) -> None:
        await self.controller.update_link(LINK, None, {INTERVAL_OPTION: milliseconds})
        self.validation.options_changed()

    async def promoted(
        self,
        policy: ValidationPolicy = ValidationPolicy.REQUIRE,
        tps: Sequence[TopicPartition] = (T0, T1),
    ) -> PromoteJob:
        """As a promote leaves it, its evidence still owed."""
        topics = list(dict.fromkeys(tp.topic for tp in tps))
        job = await self.controller.begin_promote(LINK, topics, validation=policy)
        for phase in (Phase.CATCHING_UP, Phase.FENCED):
            await self.controller.advance(LINK, tps, phase)
        await self.controller.advance(LINK, tps, Phase.ALIGNED, aligned_ends=self.ends)
        attempts = dict.fromkeys(tps, Attempt(leader_epoch=3, partition_epoch=5))
        await self.controller.advance(LINK, tps, Phase.VALIDATED, attempts=attempts)
        for phase in (Phase.HANDED_OVER, Phase.PROMOTED):
            await self.controller.advance(LINK, tps, phase)
        for topic in self.image.topics_by_id.values():
            for index, partition in list(topic.partitions.items()):
                topic.partitions[index] = replace(
                    partition, replicas=REPLICAS, isr=REPLICAS, adding=(), leader=1
                )
        await self.controller.end_promote(job, JobStatus.DONE, None, {"catch_up": 5.0, "align": 7.0})
        return self.controller.image.jobs[LINK, job.id]

    def evidence(self, job: PromoteJob) -> Any:
        return self.controller.image.jobs[LINK, job.id].evidence


async def add_topic(stage: Stage, tp: TopicPartition, topic_id: bytes) -> None:
    """Another mirror, of one partition."""
    topic = TopicImage(topic_id, tp.topic, {})
    topic.partitions[0] = PartitionImage(0, (900, *REPLICAS), (900,), REPLICAS, (), 900, 3, 5)
    stage.image.topics_by_id[topic_id] = stage.image.topics_by_name[tp.topic] = topic
    stage.ends[tp] = 3
    stage.say()
    await stage.controller.create_mirror(
        MirrorTopic(
            link=LINK,
            topic=tp.topic,
            topic_id=topic_id,
            source_topic_id=b"v" * 16,
            partitions=1,
            target_replicas=(REPLICAS,),
        )
    )
    await establish(
        stage.controller, LINK, tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
    )


async def stage_configs(cluster: Any, topics: Any, *, timeout: float) -> Any:
    effective = {"cleanup.policy": "delete", "retention.ms": "1000"}
    return {topic: SimpleNamespace(effective=effective) for topic in topics}


@pytest_asyncio.fixture
async def stage(
    process: ValidatorProcess, fake: FakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    monkeypatch.setattr(runner_module, "topic_configs", stage_configs)
    monkeypatch.setattr(runner_module, "_RETRY_FIRST", 0.05)
    monkeypatch.setattr(lost_copies, "_LOOK_AGAIN", 0.01)
    monkeypatch.setattr(lost_copies, "_RETRY", 0.05)
    monkeypatch.setattr(evidence_module, "_RETRY_FIRST", 0.05)
    controller = await StoredController.open(MemoryStore())
    await controller.create_link(LINK, "source-id", {})
    await controller.create_mirror(
        MirrorTopic(
            link=LINK,
            topic="t",
            topic_id=TOPIC_ID,
            source_topic_id=b"s" * 16,
            partitions=2,
            target_replicas=(REPLICAS, REPLICAS),
        )
    )
    for tp in (T0, T1):
        await establish(
            controller, LINK, tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
    stage = Stage(controller, process, fake, tmp_path)
    work = asyncio.create_task(stage.validation.run())
    await asyncio.sleep(0)
    yield stage
    work.cancel()
    await asyncio.wait([work])


async def test_a_run_moves_the_watermarks_and_the_next_begins_there(stage: Stage) -> None:
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert run.state is ValidationState.DONE, run
    assert (run.partitions, run.replicas, run.records, run.mismatches) == (2, 4, 214, 0)
    assert stage.marks() == {(T0, 1): 100, (T0, 2): 100, (T1, 1): 7, (T1, 2): 7}
    stage.ends[T0] = 130
    stage.say()
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert run.records == 60
    first, second = stage.fake.runs()
    assert [one.through for plan in first.partitions for one in plan.replicas] == [None] * 4
    assert [one.through for plan in second.partitions for one in plan.replicas] == [100, 100, 7, 7]
    assert second.partitions[0].replicas[0].batches == 100
    plan = second.partitions[0]
    assert (plan.end, plan.compacted, plan.retention_ms, plan.source_partitions) == (None, False, 1000, 2)
    assert (plan.source_topic_id, plan.target_topic_id) == ((b"s" * 16).hex(), TOPIC_ID.hex())
    assert second.source.properties == {"sasl.jaas.config": "hush"}


async def test_a_replica_that_is_late_no_more_is_looked_at_again_although_nothing_was_written(
    stage: Stage,
) -> None:
    await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    known = stage.controller.image.validations[LINK, T0]
    missing = MissingRecords(start=0, end=60, batches=6, records=60, why="retention")
    late = tuple(replace(one, missing=missing) if one.broker_id == 2 else one for one in known.replicas)
    stage.controller.image.validations[LINK, T0] = replace(known, replicas=late)

    async def due(starts: dict[TopicPartition, dict[int, int]]) -> list[int]:
        stage.validation.log_starts = lambda: starts
        found = await stage.validation.plan([T0, T1], only_behind=True)
        return [one.broker_id for plan in found.partitions for one in plan.replicas]

    assert await due({}) == []  # nobody knows
    assert await due({T0: {2: 60}, T1: {}}) == []
    assert await due({T0: {2: 80}, T1: {}}) == [2]
    assert await due({T0: {}, T1: {}}) == [2]  # the source has dropped the records too


async def test_a_mismatch_stops_the_partition(stage: Stage) -> None:
    stage.say(differ={"t-0": {"2": 17}})
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert (run.state, run.mismatches, len(run.findings)) == (ValidationState.DONE, 1, 1)
    state = stage.controller.image.partitions[LINK, T0]
    assert state.phase is Phase.FAILED
    assert "at offset 17: differing (the CRCs differ); source batch 17..17" in (state.reason or "")
    assert stage.controller.image.partitions[LINK, T1].phase is Phase.ACTIVE
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert run.left_out[T0].startswith("is FAILED")


async def test_a_replica_that_stays_short_of_a_source_that_rests_fails_the_run_and_no_mirror(
    stage: Stage,
) -> None:
    stage.say(short={"t-0": {"2": 99}})
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert (run.state, run.mismatches, run.left_out) == (ValidationState.DONE, 1, {})
    assert [(one.tp, one.broker_id, one.finding.kind, one.finding.offset) for one in run.findings] == [
        (T0, 2, FindingKind.SHORT, 99)
    ]
    assert stage.controller.image.partitions[LINK, T0].phase is Phase.ACTIVE
    assert stage.marks()[T0, 2] == 99


async def test_another_number_of_partitions_fails_the_run_and_no_mirror(stage: Stage) -> None:
    stage.say(counts={"t": 3})
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert (run.mismatches, run.left_out) == (4, {})
    assert {one.finding.kind for one in run.findings} == {FindingKind.PARTITION_COUNT}
    assert stage.controller.image.partitions[LINK, T0].phase is Phase.ACTIVE


async def test_a_replica_that_is_behind_a_running_source_is_not_wrong(stage: Stage) -> None:
    stage.say(short={"t-0": {"2": 60}})
    stage.ends[T0] = 101  # since the validator looked
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert (run.state, run.mismatches, run.findings) == (ValidationState.DONE, 0, [])
    assert run.left_out[T0] == "broker 2's replica: short, it ends at 60"
    assert stage.marks()[T0, 2] == 60
    assert stage.controller.image.partitions[LINK, T0].phase is Phase.ACTIVE
    stage.ends[T0] = 100
    job = await stage.promoted()
    stage.validation.close_evidence(job)
    await stage.until(lambda: len(stage.fake.runs()) >= 3)
    assert stage.evidence(job).status is EvidenceStatus.PENDING  # it is given time
    stage.say(short=None)
    await stage.until(lambda: stage.evidence(job).status is EvidenceStatus.CLOSED)
    assert stage.evidence(job).mismatches == 0


async def test_records_move_no_watermark_but_stop_what_differs(stage: Stage) -> None:
    run = await stage.over(stage.validation.start(["t"], Mode.RECORDS))
    assert (run.state, run.records) == (ValidationState.DONE, 214)
    assert stage.marks() == {}
    stage.say(differ={"t-1": {"1": 3}})
    await stage.over(stage.validation.start(["t"], Mode.RECORDS))
    assert stage.controller.image.partitions[LINK, T1].phase is Phase.FAILED


async def test_a_broker_that_is_down_is_left_out_by_name(stage: Stage) -> None:
    stage.image.brokers[2] = replace(stage.image.brokers[2], fenced=True)
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert set(stage.marks()) == {(T0, 1), (T1, 1)}
    assert run.left_out[T0] == "broker 2 is down, its replica cannot be read"


async def test_a_cancelled_run_keeps_what_it_has_proved(stage: Stage) -> None:
    stage.say(hold=0.5)
    run = stage.validation.start(["t"], Mode.BATCHES)
    await stage.until(lambda: (T0, 1) in stage.marks())
    stage.validation.cancel(run.id)
    await stage.over(run)
    assert run.state is ValidationState.CANCELLED
    assert (T1, 1) not in stage.marks()
    stage.say(hold=0)
    run = await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    assert run.records == 14


async def test_continuous_runs_go_on_until_they_are_ended(stage: Stage) -> None:
    await stage.interval(20)
    await stage.until(lambda: len(stage.marks()) == 4)
    await asyncio.sleep(0.2)
    assert len(stage.fake.runs()) == 1  # nothing new: Spark is not bothered
    stage.ends[T1] = 9
    stage.say()
    await stage.until(lambda: stage.marks()[T1, 2] == 9)
    assert [len(run.partitions) for run in stage.fake.runs()] == [2, 1]
    stage.say(fail={"reason": "connection refused", "side": "source", "address": "h:1"})
    stage.ends[T1] = 10
    await stage.until(lambda: stage.validation.trouble)
    assert stage.validation.trouble == "the source h:1: connection refused"
    stage.say(fail=None)
    await stage.until(lambda: stage.validation.trouble is None)
    await stage.interval(None)
    await asyncio.sleep(0.1)
    asked = len(stage.fake.runs())
    stage.ends[T1] = 11
    await asyncio.sleep(0.2)
    assert len(stage.fake.runs()) == asked


async def test_lost_copies_are_forgotten(stage: Stage) -> None:
    await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    loop = asyncio.get_running_loop()
    # Broker 1 asked for less than was proved, but before it was: an old position. Broker 2 after it: it has lost it.
    stage.asked_at = {1: (50, loop.time() - 3600), 2: (50, loop.time() + 1)}
    stage.validation.on_target_change()
    await stage.until(lambda: (T0, 2) not in stage.marks())
    assert set(stage.marks()) == {(T0, 1), (T1, 1), (T1, 2)}
    stage.asked_at = {}
    topic = stage.image.topics_by_id[TOPIC_ID]
    topic.partitions[0] = replace(topic.partitions[0], replicas=(900, 2), adding=(2,))
    stage.validation.on_target_change()
    await stage.until(lambda: (T0, 1) not in stage.marks())
    assert set(stage.marks()) == {(T1, 1), (T1, 2)}


async def test_a_copy_that_was_lost_and_came_again_before_anybody_looked_is_forgotten(stage: Stage) -> None:
    await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    now = asyncio.get_running_loop().time()
    # Both were first seen empty, long before. Broker 2 has begun again since, and is as far as it was.
    stage.asked_at = {1: (100, now + 3), 2: (100, now + 3)}
    stage.restarts = {1: ((0, now - 3600),), 2: ((0, now + 1),)}
    ports = promote_validation(stage)
    assert "broker 2 has lost what was validated" in ports.unproved([T0])[T0].reason
    await stage.interval(20)  # nothing is new at the source
    await stage.until(lambda: len(stage.fake.runs()) == 2)
    await stage.until(lambda: len(stage.marks()) == 4)
    again = stage.fake.runs()[1]
    assert [[(one.broker_id, one.through) for one in plan.replicas] for plan in again.partitions] == [
        [(2, None)],
        [(2, None)],
    ]


async def test_a_copy_that_is_lost_while_it_is_read_moves_no_watermark(stage: Stage) -> None:
    await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    stage.ends[T0] = 130
    stage.say(hold=0.3)
    run = stage.validation.start(["t"], Mode.BATCHES)
    await stage.until(lambda: len(stage.fake.runs()) == 2)
    now = asyncio.get_running_loop().time()
    stage.asked_at = {2: (130, now)}  # far enough again before its result is noted
    stage.restarts = {2: ((0, now),)}
    await stage.over(run)
    assert run.left_out[T0] == "broker 2 has lost its replica meanwhile"
    assert stage.marks()[T0, 1] == 130
    assert stage.marks()[T0, 2] == 100
    assert stage.validation.lost_copies.others([T0, T1]) == {T0: {2}, T1: {2}}


async def test_a_follower_first_seen_at_its_watermark_has_lost_nothing(stage: Stage) -> None:
    """By a sidecar that has just become the leader."""
    await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    now = asyncio.get_running_loop().time()
    stage.asked_at = {1: (130, now + 3), 2: (100, now + 1)}
    stage.restarts = {1: ((100, now + 1),), 2: ((100, now + 1),)}
    assert not stage.validation.lost_copies.others([T0, T1])


def promote_validation(stage: Stage, distance: int = 10) -> PromoteProof:
    return PromoteProof(stage.validation, lambda _: REPLICAS, distance)


async def test_a_promote_has_it_run_and_then_nobody(stage: Stage) -> None:
    ports = promote_validation(stage)
    assert "nothing of broker 1's replica is validated" in ports.unproved([T0])[T0].reason
    async with ports.run([T0, T1]):
        async with asyncio.timeout(40):
            while ports.unproved([T0, T1]):
                await ports.wait(timeout=1)
    # Behind the fence the validator rests, whoever asks.
    later = stage.validation.start(["t"], Mode.BATCHES)
    await asyncio.sleep(0.1)
    assert not later.state.final
    assert stage.validator.process.state == "ready"
    stage.validator.turns.speak_up(LINK)
    await stage.over(later)
    stage.ends[T0] = 111
    assert "11 offsets before the end, 10 are allowed" in ports.unproved([T0])[T0].reason


async def test_a_promote_is_told_of_trouble_and_of_differences(stage: Stage) -> None:
    ports = promote_validation(stage)
    stage.say(fail={"reason": "executor lost", "side": "spark"})
    # Results come before the failure; what they prove counts.
    stage.say(differ={"t-0": {"1": 3}})
    await stage.controller.begin_promote(LINK, ["t"], validation=ValidationPolicy.REQUIRE)
    await stage.controller.advance(LINK, [T0, T1], Phase.CATCHING_UP)
    async with ports.run([T0, T1]):
        await stage.until(lambda: stage.controller.image.partitions[LINK, T0].failure)
        assert ports.unproved([T0])[T0].hopeless
        stage.ends[T1] = 50  # and the run after that fails
        await stage.until(lambda: ports.unproved([T1]) and ports.unproved([T1])[T1].failing)
    assert "the spark: executor lost" in ports.unproved([T1])[T1].reason


async def test_a_promote_takes_the_validator_from_a_long_run(stage: Stage) -> None:
    stage.say(hold=30)
    slow = stage.validation.start(["t"], Mode.BATCHES)
    await stage.until(lambda: stage.fake.runs())
    stage.say(hold=0)
    ports = promote_validation(stage)
    async with ports.run([T0, T1]):
        await stage.until(lambda: not ports.unproved([T0, T1]))
    stage.validator.turns.speak_up(LINK)
    await stage.over(slow)
    assert slow.state is ValidationState.DONE


async def test_evidence_is_closed_with_the_exact_ends(stage: Stage) -> None:
    job = await stage.promoted()
    stage.ends = {T0: 500, T1: 500}  # clients go on at the target; the source is where it was
    stage.validation.book.note_tail(T0, 1, FenceProof(None, 100, rest=False, equal=True))
    stage.validation.close_evidence(job)
    await stage.until(lambda: stage.evidence(job).status is not EvidenceStatus.PENDING)
    found = stage.evidence(job)
    assert found.status is EvidenceStatus.CLOSED, found
    assert (found.replicas, found.batches, found.mismatches, found.trouble) == (4, 214, 0, None)
    assert [plan.end for plan in stage.fake.runs()[-1].partitions] == [100, 7]
    evidence = Evidence.model_validate_json(Path(found.json).read_bytes())
    assert verdict_of(evidence) == (Verdict.EQUAL, None)
    assert evidence.promote == f"{LINK}-1"
    assert [(one.name, one.ms) for one in evidence.phases] == [("catch_up", 5), ("align", 7)]
    assert evidence.partitions[0].replicas[0].tail_equal is True
    assert evidence.runs[-1].records == 214
    assert "hush" not in Path(found.json).read_text()


async def test_a_difference_after_the_hand_over_is_said_and_written(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    job = await stage.promoted()
    stage.say(differ={"t-1": {"2": 5}})
    stage.validation.close_evidence(job)
    await stage.until(lambda: stage.evidence(job).status is not EvidenceStatus.PENDING)
    found = stage.evidence(job)
    assert (found.status, found.mismatches, found.replicas) == (EvidenceStatus.CLOSED, 1, 3)
    assert stage.controller.image.partitions[LINK, T1].phase is Phase.PROMOTED
    assert "1 replicas DIFFER" in caplog.text
    evidence = json.loads(Path(found.json).read_text())
    assert evidence["partitions"][1]["replicas"][1]["findings"][0]["offset"] == 5


async def test_a_broker_that_holds_the_partition_no_more_does_not_differ(stage: Stage) -> None:
    stage.say(differ={"t-1": {"2": 5}})
    job = await stage.promoted()
    run = stage.validation.begin(Urgency.EVIDENCE, ["t"])
    await stage.validation.after_hand_over(run, [T0, T1])
    assert (T1, 2) in stage.validation.book.findings
    topic = stage.image.topics_by_id[TOPIC_ID]
    topic.partitions[1] = replace(topic.partitions[1], replicas=(1,), isr=(1,))
    stage.say(differ={})
    stage.validation.close_evidence(job)
    await stage.until(lambda: stage.evidence(job).status is not EvidenceStatus.PENDING)
    found = stage.evidence(job)
    assert (found.status, found.mismatches, found.replicas, found.trouble) == (
        EvidenceStatus.CLOSED,
        0,
        3,
        None,
    )


async def test_a_mirror_that_is_deleted_while_its_evidence_is_owed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    job = await stage.promoted()
    stage.say(fail={"reason": "connection refused", "side": "source", "address": "h:1"})
    stage.validation.close_evidence(job)
    await stage.until(lambda: stage.fake.runs())
    await stage.controller.delete_mirror(LINK, "t")
    await stage.until(lambda: stage.evidence(job).status is not EvidenceStatus.PENDING)
    found = stage.evidence(job)
    assert (found.status, found.replicas) == (EvidenceStatus.INCOMPLETE, 0)
    assert found.trouble == "t-0: its mirror was deleted before it was proved (and 1 more)"
    assert "hit a bug" not in caplog.text
    evidence = Evidence.model_validate_json(Path(found.json).read_bytes())
    assert verdict_of(evidence) == (Verdict.NOT_PROVED, "t-0, no replica was compared")


async def delete_and_begin_again(stage: Stage, topic: str, topic_id: bytes) -> None:
    await stage.controller.delete_mirror(LINK, topic)
    again = MirrorTopic(
        link=LINK,
        topic=topic,
        topic_id=topic_id,
        source_topic_id=b"s" * 16,
        partitions=1,
        target_replicas=((1,),),
    )
    await stage.controller.create_mirror(again)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("again", [False, True])
async def test_one_mirror_of_two_that_is_deleted_while_their_evidence_is_owed_is_not_called_equal(
    stage: Stage, restarted: bool, again: bool
) -> None:
    gone = TopicPartition("u", 0)
    await add_topic(stage, gone, b"u" * 16)
    job = await stage.promoted(tps=(T0, T1, gone))

    async def delete() -> None:
        if again:
            await delete_and_begin_again(stage, "u", b"w" * 16)
        else:
            await stage.controller.delete_mirror(LINK, "u")

    if restarted:
        await delete()
    else:
        stage.say(fail={"reason": "connection refused", "side": "source", "address": "h:1"})
    stage.validation.close_evidence(job)
    if not restarted:
        await stage.until(lambda: stage.fake.runs())
        await delete()
        stage.say(fail=None)
    await stage.until(lambda: stage.evidence(job).status is not EvidenceStatus.PENDING)
    found = stage.evidence(job)
    assert (found.status, found.replicas) == (
        EvidenceStatus.INCOMPLETE,
        4,
    )  # the others are proved all the same
    assert found.trouble == "u-0: its mirror was deleted before it was proved"
    evidence = Evidence.model_validate_json(Path(found.json).read_bytes())
    assert verdict_of(evidence) == (Verdict.NOT_PROVED, "u-0, no replica was compared")
    assert evidence.notes == (found.trouble,)
    assert [one.topic for one in evidence.topics] == ["t"]


async def test_a_replica_is_counted_once_however_often_it_is_told_of(stage: Stage) -> None:
    stage.say(differ={"t-0": {"2": 17}, "t-1": {"1": 3}})
    planned = await stage.validation.plan([T0, T1])
    run = stage.validation.begin(Urgency.ONCE, ["t"])
    totals = Totals()
    findings = tuple(Finding(kind=FindingKind.DIFFERING, offset=n, detail="x") for n in range(MAX_SHOWN))
    result = m.ReplicaResult(
        topic="t",
        partition=0,
        broker_id=2,
        start=0,
        through=0,
        source_end=100,
        replica_end=100,
        batches=0,
        records=0,
        bytes=0,
        digest="0" * 32,
        source_digest="0" * 32,
        seconds=0,
        findings=findings,
        findings_count=500,
    )
    for _ in range(2):  # before and after it had to make room
        recorder = Recorder(
            stage.controller,
            LINK,
            planned,
            run,
            totals,
            stage.validation.book.note,
            lambda tp: stage.ends[tp],
            stage.validation.lost_copies.lost,
        )
        for _ in range(3):  # group by group
            await recorder.seen(m.Checked(id="x", results=(result,)))
    assert (run.mismatches, totals.mismatches, len(run.findings)) == (1, 1, MAX_SHOWN)
    assert stage.validation.book.findings[T0, 2] == (findings, 500)


async def test_what_differs_lawfully_is_counted_once_however_often_it_is_told_of(stage: Stage) -> None:
    result = m.ReplicaResult(
        topic="t",
        partition=0,
        broker_id=2,
        start=0,
        through=10,
        source_end=100,
        replica_end=100,
        batches=0,
        records=0,
        bytes=0,
        digest="0" * 32,
        source_digest="0" * 32,
        seconds=0,
    )
    for begin in (0, 50):  # the second run goes on from the first one's watermark, and counts from nothing
        recorder = Recorder(
            stage.controller,
            LINK,
            await stage.validation.plan([T0, T1]),
            stage.validation.begin(Urgency.ONCE, ["t"]),
            Totals(),
            stage.validation.book.note,
            lambda tp: stage.ends[tp],
            stage.validation.lost_copies.lost,
        )
        for through, lawful in ((10, {}), (20, {"compacted": 3}), (30, {"compacted": 4, "rewritten": 1})):
            told = result.model_copy(update={"through": begin + through, "lawful": lawful})
            await recorder.seen(m.Checked(id="x", results=(told,)))
    known = stage.controller.image.validations[LINK, T0].of(2)
    assert known is not None
    assert (known.through, known.lawful) == (80, {"compacted": 8, "rewritten": 2})


async def test_runs_that_are_not_over_are_kept(stage: Stage) -> None:
    waiting = stage.validation.begin(Urgency.ONCE, ["t"])
    for _ in range(50):
        stage.validation.begin(Urgency.CONTINUOUS, ()).end(ValidationState.DONE)
    assert stage.validation.runs[0] is waiting
    assert len(stage.validation.runs) <= 21


async def test_what_is_remembered_of_a_mirror_goes_with_it(stage: Stage) -> None:
    await stage.over(stage.validation.start(["t"], Mode.BATCHES))
    stage.validation.book.note_tail(T0, 1, FenceProof(None, 100, rest=False, equal=True))
    kept = stage.validation.book
    assert kept.samples.of(T0, 1)
    assert kept.replica_ends[T0, 1] == 100
    await stage.controller.delete_mirror(LINK, "t")
    stage.validation.on_target_change()
    await stage.until(lambda: not (kept.samples.of(T0, 1) or kept.replica_ends or kept.tails))


async def test_a_bug_in_a_continuous_run_does_not_end_the_link(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "_RETRY_MAX", 0.05)
    monkeypatch.setattr(stage.validation, "_due", lambda: 1 / 0)
    await stage.interval(20)
    await stage.until(lambda: stage.validation.trouble)
    assert "hit a bug" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(runner_module, "topic_configs", stage_configs)
    # The marks are written within the run, the trouble is over with it.
    await stage.until(lambda: len(stage.marks()) == 4 and stage.validation.trouble is None)


async def test_evidence_waits_for_trouble_to_pass(stage: Stage) -> None:
    job = await stage.promoted()
    stage.say(die=True)
    stage.validation.close_evidence(job)
    await stage.until(lambda: len(stage.fake.runs()) >= 2)
    assert stage.evidence(job).status is EvidenceStatus.PENDING
    stage.say(die=None)
    await stage.until(lambda: stage.evidence(job).status is EvidenceStatus.CLOSED)


async def test_evidence_that_cannot_be_had_says_why(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "GIVE_UP", 0.2)
    job = await stage.promoted(ValidationPolicy.WARN)
    stage.image.brokers[2] = replace(stage.image.brokers[2], fenced=True)
    stage.say(unwritable=True)
    stage.validation.close_evidence(job)
    await stage.until(lambda: stage.evidence(job).status is not EvidenceStatus.PENDING)
    found = stage.evidence(job)
    assert found.status is EvidenceStatus.INCOMPLETE
    assert found.trouble == "t-0 broker 2 is down, its replica cannot be read"
    assert (found.replicas, found.html) == (2, None)


async def test_the_next_link_controller_goes_on_with_both(stage: Stage) -> None:
    await stage.interval(20)
    await stage.until(lambda: len(stage.marks()) == 4)
    job = await stage.promoted()
    other = LinkValidator(
        context(LINK, None, stage.validation.target, stage.controller),
        stage.validator,
        stage.validation.source_side,
        stage.copy,
        close_evidence,
    )
    with pytest.raises(NotRunning):
        other.start(["t"], Mode.BATCHES)
    work = asyncio.create_task(other.run())
    try:
        await stage.until(lambda: stage.evidence(job).status is EvidenceStatus.CLOSED)
        assert other.interval == 0.02
        last = stage.fake.runs()[-1]
        assert [one.through for plan in last.partitions for one in plan.replicas] == [100, 100, 7, 7]
    finally:
        work.cancel()
        await asyncio.wait([work])
    assert all(run.state.final for run in other.runs)
