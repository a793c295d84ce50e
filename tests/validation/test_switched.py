"""The proof of a switch: by the mirrors that run back, to the end of the hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.phases import Phase
from controller.proof import EvidenceStatus, PromoteEvidence, ValidationPolicy
from controller.state import JobStatus, PromoteJob, Taken
from linker.promote.ports import FenceProof
from linker.validation.switched import close_switch_evidence, proved_before
from tests.validation.test_runner import LINK, T0, T1, Stage, stage
from validator.evidence.model import Evidence
from validator.evidence.verdict import Verdict, verdict_of
from wire.frames.types import TopicPartition

__all__ = ["stage"]
FORWARD = "west"  # of the job; the stage's link runs the other way
ENDS = {T0: 60, T1: 5}
FENCE = {
    (T0, 7): FenceProof(58, 60, rest=True, equal=True),
    (T0, 8): FenceProof(50, 60, rest=False, equal=True),
    (T1, 7): FenceProof(None, 5, rest=False, equal=True),
    (TopicPartition("other", 0), 7): FenceProof(1, 9, rest=True, equal=True),
}


async def switched(stage: Stage, phase: Phase = Phase.ACTIVE) -> PromoteJob:
    """The stage's mirrors took over from a job of another link, whose evidence is owed."""
    await stage.controller.create_link(FORWARD, "target-id", {})
    job = PromoteJob(
        id=1,
        link=FORWARD,
        partitions=(T0, T1),
        switch=True,
        status=JobStatus.DONE,
        validation=ValidationPolicy.REQUIRE,
        evidence=PromoteEvidence(),
    )
    await put(stage, job)
    await turned(stage, phase)
    return job


async def turned(stage: Stage, phase: Phase) -> None:
    for tp, end in ENDS.items():
        state = stage.controller.image.partitions[LINK, tp]
        await put(stage, replace(state, phase=phase, taken=Taken(end=end, epochs=())))


async def put(stage: Stage, record: Any) -> None:
    await stage.controller.decide(lambda _image: ([record], None))


def closing(
    stage: Stage, job: PromoteJob, proofs: Mapping[tuple[TopicPartition, int], FenceProof] = FENCE
) -> asyncio.Task[None]:
    stage.validation.book.tails |= proofs
    return asyncio.create_task(close_switch_evidence(stage.validation, job, lambda: stage.validation))


def found(stage: Stage) -> PromoteEvidence:
    evidence = stage.controller.image.jobs[FORWARD, 1].evidence
    assert evidence is not None
    return evidence


async def test_the_brokers_that_were_left_are_proved_to_the_end_of_the_hand_over(stage: Stage) -> None:
    job = await switched(stage)
    await asyncio.wait_for(closing(stage, job), 30)
    evidence = found(stage)
    assert (evidence.status, evidence.replicas, evidence.mismatches, evidence.trouble) == (
        EvidenceStatus.CLOSED,
        4,
        0,
        None,
    )
    before, fence, after = evidence.proved_by
    assert before == (
        "before the fence, by Spark: 2 of 3 replicas that took over, to within 10 offsets of their end"
    )
    assert "batch by batch, 1 of these replicas; the last batch of all 3" in fence
    assert after.startswith("after the hand-over, by Spark: 4 replicas in the cluster that was left")
    [run] = stage.fake.runs()
    assert [plan.end for plan in run.partitions] == [None, None]  # all that is there by now, as of any mirror
    document = Evidence.model_validate_json(Path(evidence.json or "").read_bytes())
    assert (document.link, document.promote, document.notes) == (FORWARD, "west-1", evidence.proved_by[:2])
    assert [one.end for one in document.partitions] == [60, 5]
    # The take-over has set min.insync.replicas, so that a promote deletes it: the owner's topic has none of its own.
    assert document.topics[0].configs["min.insync.replicas"] is None
    assert verdict_of(document) == (Verdict.EQUAL, None)


async def test_nothing_is_read_before_the_source_follows_the_target(stage: Stage) -> None:
    """Until then its leader is a link broker, which would show the target's records."""
    job = await switched(stage, Phase.TAKEN)
    task = closing(stage, job)
    await asyncio.sleep(0.6)
    assert not stage.fake.runs() and found(stage).status is EvidenceStatus.PENDING
    await turned(stage, Phase.ACTIVE)
    await asyncio.wait_for(task, 30)
    assert found(stage).status is EvidenceStatus.CLOSED


async def test_a_broker_that_was_left_and_differs_is_said(stage: Stage) -> None:
    job = await switched(stage)
    stage.say(differ={"t-1": {"2": 3}})
    await asyncio.wait_for(closing(stage, job), 30)
    assert (found(stage).status, found(stage).mismatches) == (EvidenceStatus.CLOSED, 1)
    state = stage.controller.image.partitions[LINK, T1]
    assert state.phase is Phase.FAILED  # as any mirror whose replica differs


async def test_short_of_the_hand_over_is_not_proved(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linker.validation.evidence.GIVE_UP", 0.5)
    job = await switched(stage)
    stage.say(short={"t-0": {"1": 59}})
    await asyncio.wait_for(closing(stage, job), 30)
    assert found(stage).status is EvidenceStatus.INCOMPLETE
    assert "broker 1's replica" in (found(stage).trouble or "")


@pytest.mark.parametrize("phase", [Phase.HANDED_OVER, Phase.PROMOTED, Phase.TAKING])
async def test_switched_back_before_it_was_proved(stage: Stage, phase: Phase) -> None:
    """The other cluster is read through this one then: nothing is compared, and that is said."""
    job = await switched(stage, phase)
    await asyncio.wait_for(closing(stage, job), 30)
    assert not stage.fake.runs()
    assert (found(stage).status, found(stage).replicas) == (EvidenceStatus.INCOMPLETE, 0)
    assert (found(stage).trouble or "").startswith("t-0: it was switched again, or its switch was finished")


def test_a_sidecar_that_began_later_says_that_it_saw_nothing() -> None:
    job = PromoteJob(id=1, link=FORWARD, partitions=(T0,))
    [line] = proved_before({}, job)
    assert "a sidecar that has ended" in line
