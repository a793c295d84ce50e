"""Replicas that start later than the source: what a promote would lose, and that it does not without being told to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from controller.judge import late_starts
from controller.judge.late_starts import Late, LateStart
from controller.phases import Phase
from controller.proof import MissingRecords, ValidationPolicy
from fleet.link_controller import LinkController
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.ports import PromoteSettings
from tests.controller.simulation import LINK, World, mirrored, ports_of
from tests.controller.virtual_loop import run_virtual
from wire.errors import ConnectionLost
from wire.frames.types import TopicPartition

COUNTED = MissingRecords(start=0, end=100, batches=3, records=90, why="retention.ms=604800000 took them")


def counted(records: int, end: int = 100, broker: int = 2) -> LateStart:
    return LateStart(broker, 0, end, replace(COUNTED, records=records, end=end))


# --- judgements


def test_a_replica_that_starts_with_the_source_or_the_mirror_is_not_late() -> None:
    assert late_starts.judge(0, 0, {1: 0, 2: 0}, {}) == []
    assert late_starts.judge(0, 50, {1: 0, 2: 50}, {}) == []  # the source has deleted, the replica not yet
    assert late_starts.judge(70, 0, {1: 70}, {}) == []  # the mirror began there


def test_what_lies_before_is_counted_or_bounded_by_the_offsets() -> None:
    assert late_starts.judge(0, 10, {1: 10, 2: 100}, {}) == [LateStart(2, 10, 100)]
    assert late_starts.judge(70, 10, {2: 100}, {})[0].records == 30
    assert late_starts.judge(0, 0, {2: 100}, {2: COUNTED})[0].records == 90


def test_a_count_of_other_offsets_says_nothing() -> None:
    assert late_starts.judge(0, 0, {2: 150}, {2: COUNTED})[0].records == 150
    assert late_starts.judge(0, 20, {2: 100}, {2: COUNTED})[0].records == 80


def test_a_record_that_several_replicas_lack_is_one() -> None:
    late: Late = {TopicPartition("t", 0): [counted(90), counted(95, broker=3)]}
    assert late_starts.lost(late) == {TopicPartition("t", 0): 95}
    assert late_starts.worst(late[TopicPartition("t", 0)]).broker_id == 3


@pytest.mark.parametrize(("accepted", "before", "refused"), [(0, 0, 2), (99, 0, 2), (100, 0, 0), (100, 1, 2)])
def test_as_many_as_were_accepted_and_not_one_more(accepted: int, before: int, refused: int) -> None:
    late: Late = {TopicPartition("t", 0): [counted(60)], TopicPartition("t", 1): [counted(40)]}
    assert len(late_starts.refusal(late, accepted, before)) == refused


def test_a_late_start_before_which_the_source_has_nothing_refuses_nothing() -> None:
    late: Late = {TopicPartition("t", 0): [counted(0)]}
    assert late_starts.refusal(late, 0) == {}


def test_the_refusal_names_offsets_number_and_reason() -> None:
    late: Late = {TopicPartition("t", 0): [counted(90)]}
    (reason,) = late_starts.refusal(late, 0).values()
    assert "starts at offset 100" in reason and "back to offset 0" in reason
    assert "90 records" in reason and "retention.ms=604800000" in reason
    assert "--accept-missing 90" in late_starts.refusal_text(late, 0)
    assert "at most as many" in str(LateStart(2, 0, 100))


# --- the promote


class FakeStarts:
    """`late(fenced)` says what the brokers would."""

    def __init__(self, world: World, late: Callable[[bool], Late]) -> None:
        self.world = world
        self.answer = late
        self.asked: list[bool] = []

    async def late(self, tps: Collection[TopicPartition], *, timeout: float, every: bool = True) -> Late:
        fenced = bool(self.world.fenced)
        self.asked.append(fenced)
        await asyncio.sleep(0.001)
        return {tp: one for tp, one in self.answer(fenced).items() if tp in tps}


def promote(
    late: Callable[[bool], Late], *, accept: int = 0, settings: PromoteSettings | None = None
) -> tuple[LinkController, PromoteOutcome, FakeStarts]:
    async def main() -> tuple[LinkController, PromoteOutcome, FakeStarts]:
        world = World(random.Random(5), partitions=2)
        controller = await mirrored(world)
        starts = FakeStarts(world, late)
        ports = replace(ports_of(world), replica_starts=starts)
        driver = PromoteDriver(controller, LINK, ports, settings or PromoteSettings(), lambda _: None)
        job = await controller.begin_promote(LINK, validation=ValidationPolicy.SKIP, accept_missing=accept)
        world.start()
        outcome = await driver.run(job)
        world.stopped = True
        await asyncio.sleep(10)
        if world.broken is not None:
            raise world.broken
        return controller, outcome, starts

    return run_virtual(main())


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_with_skip_too_a_late_replica_is_not_promoted_and_no_write_was_held() -> None:
    controller, outcome, starts = promote(lambda _: {T1: [counted(90)]})
    assert not outcome.promoted
    assert "90 records would be at the source only" in (outcome.reason or "")
    assert starts.asked == [False]
    assert "fence" not in outcome.phases_ms
    assert all(state.phase is Phase.ACTIVE for state in controller.image.link_partitions(LINK))


def test_what_was_accepted_is_promoted_and_told() -> None:
    controller, outcome, starts = promote(lambda _: {T1: [counted(90)]}, accept=90)
    assert len(outcome.promoted) == 2
    assert True in starts.asked  # behind the fence as well
    job = controller.image.jobs[LINK, outcome.job_id]
    assert job.accept_missing == 90
    assert [one for one in job.warnings if "90 records" in one and "(accepted)" in one]


def test_one_record_more_than_accepted_is_refused() -> None:
    _, outcome, _ = promote(lambda _: {T0: [counted(60)], T1: [counted(31)]}, accept=90)
    assert not outcome.promoted
    assert "up to 91 records would be at the source only, 90 were accepted" in (outcome.reason or "")


def test_batches_of_one_promote_share_what_was_accepted() -> None:
    one_by_one = PromoteSettings(batch_partitions=1, first_partitions=1)
    late: Late = {T0: [counted(60)], T1: [counted(60)]}
    _, outcome, _ = promote(lambda _: late, accept=90, settings=one_by_one)
    assert outcome.promoted == (T0,)
    _, outcome, _ = promote(lambda _: late, accept=120, settings=one_by_one)
    assert len(outcome.promoted) == 2


def test_records_that_go_behind_the_fence_abandon_it() -> None:
    controller, outcome, _ = promote(lambda fenced: {T0: [counted(1)]} if fenced else {})
    assert not outcome.promoted
    assert "would be at the source only" in (outcome.reason or "")
    assert all(state.phase is Phase.ACTIVE for state in controller.image.link_partitions(LINK))


def test_a_broker_that_does_not_tell_is_waited_for() -> None:
    silent = iter([True, True])

    def late(_: bool) -> Late:
        if next(silent, False):
            raise ConnectionLost("broker 2 is away", sent=False, api="list_offsets")
        return {}

    _, outcome, starts = promote(late)
    assert len(outcome.promoted) == 2
    assert starts.asked[:3] == [False, False, False]
