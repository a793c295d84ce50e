"""What the validator has proved, as state: watermarks that move, mismatches that stop a mirror, copies that end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.decide import validations
from controller.decide.mirrors import CopyNote, Leadership
from controller.errors import NotFound, Refused
from controller.phases import Phase
from controller.proof import EvidenceStatus, PromoteEvidence, ValidationPolicy
from controller.state import Attempt, JobStatus
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import Store
from fleet.stores.sqlite import SqliteStore
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.controller.test_state import T0, T1, controller_with_mirror, mirror
from tests.controller.validation_kit import an_advance
from wire.frames.types import TopicPartition

EPOCH = 3  # of the mirror's session, see controller_with_mirror


async def phase_of(controller: LinkController, tp: TopicPartition) -> Phase:
    return controller.image.partitions["l", tp].phase


def mark(controller: LinkController, tp: TopicPartition, broker_id: int = 1) -> int | None:
    return validations.watermark(controller.image, "l", tp, broker_id)


async def test_watermarks_move_each_by_itself() -> None:
    controller = await controller_with_mirror()
    await controller.advance_validation(
        "l",
        [
            an_advance(T0, EPOCH, None, 10),
            an_advance(T0, EPOCH, None, 8, broker_id=2),
            an_advance(T1, EPOCH, None, 5),
        ],
    )
    await controller.advance_validation("l", [an_advance(T0, EPOCH, 8, 12, broker_id=2)])
    assert (mark(controller, T0), mark(controller, T0, 2), mark(controller, T1)) == (10, 12, 5)
    known = controller.image.validations["l", T0]
    assert [replica.broker_id for replica in known.replicas] == [1, 2]
    assert all(replica.at == 7 for replica in known.replicas)
    assert mark(controller, T1, 9) is None


async def test_a_result_of_another_copy_changes_nothing() -> None:
    controller = await controller_with_mirror()
    await controller.advance_validation("l", [an_advance(T0, EPOCH, None, 10)])
    stale = [
        an_advance(T0, EPOCH, None, 99),  # planned before anything was known
        an_advance(T0, EPOCH, 9, 99),
        an_advance(T0, EPOCH + 1, 10, 99),  # the mirror began again
        an_advance(TopicPartition("gone", 0), EPOCH, None, 99),
    ]
    await controller.advance_validation("l", stale)
    assert mark(controller, T0) == 10
    assert set(controller.image.validations) == {("l", T0)}
    with pytest.raises(Refused, match="does not go back"):
        await controller.advance_validation("l", [an_advance(T0, EPOCH, 10, 4)])


async def test_a_mismatch_stops_the_mirror_and_names_both_sides() -> None:
    controller = await controller_with_mirror()
    await controller.advance_validation("l", [an_advance(T0, EPOCH, None, 10)])
    await controller.advance_validation("l", [an_advance(T0, EPOCH, 10, 17, mismatch=17)])
    state = controller.image.partitions["l", T0]
    assert state.phase is Phase.FAILED
    assert state.reason is not None
    assert "broker 1" in state.reason
    assert "offset 17" in state.reason
    assert "crc 1" in state.reason
    assert "crc 2" in state.reason
    assert await phase_of(controller, T1) is Phase.ACTIVE
    # The first offset is kept, whichever replica is found out later.
    await controller.advance_validation("l", [an_advance(T0, EPOCH, None, 4, broker_id=2, mismatch=30)])
    found = controller.image.validations["l", T0].mismatch
    assert found is not None
    assert (found.broker_id, found.offset) == (1, 17)
    with pytest.raises(Refused, match="only ACTIVE"):
        await controller.begin_promote("l", ["t"], validation=ValidationPolicy.WARN)
    await controller.restart_partition("l", T0)
    assert controller.image.validations["l", T0].mismatch is None
    assert mark(controller, T0) is None


@pytest.mark.parametrize(
    ("policy", "noted"),
    [(ValidationPolicy.REQUIRE, True), (ValidationPolicy.SKIP, True), (ValidationPolicy.WARN, False)],
)
async def test_a_mismatch_during_a_promote(policy: ValidationPolicy, noted: bool) -> None:
    controller = await controller_with_mirror()
    await controller.begin_promote("l", ["t"], validation=policy)
    await controller.advance("l", [T0, T1], Phase.CATCHING_UP)
    await controller.advance_validation("l", [an_advance(T0, EPOCH, None, 3, mismatch=3)])
    state = controller.image.partitions["l", T0]
    assert state.phase is Phase.CATCHING_UP  # it is the promote's
    assert (state.failure is not None) is noted
    assert controller.image.validations["l", T0].mismatch is not None


async def promoted(
    controller: StoredController | LinkController, policy: ValidationPolicy, tps: list[TopicPartition]
) -> int:
    job = await controller.begin_promote("l", ["t"], validation=policy)
    for phase in (Phase.CATCHING_UP, Phase.FENCED):
        await controller.advance("l", tps, phase)
    await controller.advance("l", tps, Phase.ALIGNED, aligned_ends=dict.fromkeys(tps, 9))
    attempts = dict.fromkeys(tps, Attempt(leader_epoch=3, partition_epoch=1))
    await controller.advance("l", tps, Phase.VALIDATED, attempts=attempts)
    await controller.advance("l", tps, Phase.HANDED_OVER)
    await controller.advance("l", tps, Phase.PROMOTED)
    await controller.end_promote(job, JobStatus.DONE, None, {}, ["slow"])
    return job.id


async def test_evidence_is_owed_after_a_promote_and_closed_once() -> None:
    controller = await controller_with_mirror()
    number = await promoted(controller, ValidationPolicy.REQUIRE, [T0, T1])
    job = controller.image.jobs["l", number]
    assert job.warnings == ("slow",)
    assert job.evidence is not None
    assert job.evidence.status is EvidenceStatus.PENDING
    # A difference that is found now stops nothing any more.
    await controller.advance_validation("l", [an_advance(T0, EPOCH, None, 3, mismatch=3)])
    assert await phase_of(controller, T0) is Phase.PROMOTED
    assert controller.image.partitions["l", T0].aligned_end == 9
    with pytest.raises(Refused, match="closes nothing"):
        await controller.close_evidence("l", number, PromoteEvidence())
    await controller.close_evidence("l", number, PromoteEvidence(status=EvidenceStatus.CLOSED, mismatches=1))
    closed = controller.image.jobs["l", number].evidence
    assert closed is not None
    assert (closed.mismatches, closed.ended_at) == (1, 7)
    with pytest.raises(Refused, match="waits for no evidence"):
        await controller.close_evidence("l", number, PromoteEvidence(status=EvidenceStatus.CLOSED))
    with pytest.raises(NotFound):
        await controller.close_evidence("l", 99, PromoteEvidence(status=EvidenceStatus.CLOSED))


async def test_nothing_is_owed_where_nothing_was_promoted_or_nothing_is_asked() -> None:
    controller = await controller_with_mirror()
    job = await controller.begin_promote("l", ["t"], validation=ValidationPolicy.REQUIRE)
    await controller.end_promote(job, JobStatus.ABANDONED, "not validated", {})
    assert controller.image.jobs["l", job.id].evidence is None
    number = await promoted(controller, ValidationPolicy.SKIP, [T0, T1])
    assert controller.image.jobs["l", number].evidence is None


async def test_what_ends_a_copy_ends_its_watermark() -> None:
    controller = await controller_with_mirror()

    async def prove() -> None:
        for broker_id in (1, 2):
            base = mark(controller, T0, broker_id)
            if base is None:
                await controller.advance_validation(
                    "l", [an_advance(T0, EPOCH, None, 10, broker_id=broker_id)]
                )

    await prove()
    # 2 is proved to 10 only: that stays
    await controller.note_copies("l", {T0: CopyNote(untruncated=((1, 6), (2, 10)))})
    assert (mark(controller, T0), mark(controller, T0, 2)) == (None, 10)
    await prove()
    await controller.forget_validation("l", [T0, T1], [2])
    assert (mark(controller, T0), mark(controller, T0, 2)) == (10, None)
    await prove()
    await controller.fail_partition("l", T0, "x")
    await controller.restart_partition("l", T0)
    assert (mark(controller, T0), mark(controller, T0, 2)) == (None, None)
    # A result of the copy before comes late.
    await establish(
        controller, "l", T0, leadership=Leadership(900, 4, (900,)), session_epoch=4, start_offset=0
    )
    await controller.advance_validation("l", [an_advance(T0, EPOCH, None, 10)])
    assert mark(controller, T0) is None


async def test_why_a_partition_is_not_proved() -> None:
    controller = await controller_with_mirror()

    def why(end: int, distance: int, start: int = 0) -> str | None:
        return validations.unproved(controller.image, "l", T0, [1, 2], start, end, distance)

    assert why(0, 0) is None  # nothing in it
    assert why(5, 0, start=5) is None
    assert why(5, 100) == "nothing of broker 1's replica is validated yet"
    await controller.advance_validation(
        "l", [an_advance(T0, EPOCH, None, 90), an_advance(T0, EPOCH, None, 50, broker_id=2)]
    )
    assert why(100, 50) is None
    told = why(100, 49)
    assert told is not None
    assert "broker 2" in told
    assert "50 offsets" in told
    await controller.advance_validation("l", [an_advance(T0, EPOCH, 90, 95, mismatch=95)])
    assert "offset 95" in (why(100, 50) or "")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "s.db")
    yield opened
    await opened.close()


async def test_it_is_there_for_the_next_link_controller_and_goes_with_the_mirror(store: Store) -> None:
    first = await controller_with_mirror(store)  # type: ignore[arg-type]
    await first.advance_validation("l", [an_advance(T0, EPOCH, None, 10), an_advance(T1, EPOCH, None, 1)])
    second = await StoredController.open(store, now=lambda: 8)
    assert second.image.validations == first.image.validations
    assert second.image.nodes() == first.image.nodes()
    await second.advance_validation("l", [an_advance(T0, EPOCH, 10, 11)])
    await second.delete_mirror("l", "t")
    assert not second.image.validations
    third = await StoredController.open(store)
    assert not third.image.validations
    await third.create_mirror(mirror())
    await third.delete_mirror("l", "t")
    await third.delete_link("l")
    assert set(await store.tree("/")) == {"/controller_epoch"}
