"""The promote driver's ways out, one by one: what abandons a batch, and what the reason says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from controller.judge.alignment import ReplicaPosition
from controller.phases import Phase
from controller.state import JobStatus
from fleet.link_controller import LinkController
from fleet.stores.base import ControllerFenced, StoreError
from linker.promote.driver import PromoteDriver, PromoteStuck
from linker.promote.ports import PromoteProgress, PromoteSettings
from tests.controller.promote_kit import promote, returned
from tests.controller.simulation import (
    LINK,
    Ports,
    World,
    mirrored,
    ports_of,
    resumed,
)
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition


def test_progress_is_reported() -> None:
    world, _, outcome, reports = promote()
    assert outcome.promoted == tuple(world.tps)
    seen = list(dict.fromkeys(report.phase for report in reports))
    assert seen == [
        Phase.CATCHING_UP,
        Phase.FENCED,
        Phase.ALIGNED,
        Phase.VALIDATED,
        Phase.HANDED_OVER,
        Phase.PROMOTED,
    ]
    assert set(reports[-1].lag) == set(world.tps)
    assert {"catch_up", "fence", "align", "validate", "hand_over", "finish", "fenced_total"} <= set(
        outcome.phases_ms
    )


def test_a_report_that_fails_decides_nothing() -> None:
    async def main() -> None:
        world = World(random.Random(5))
        controller = await mirrored(world)
        world.start()

        def report(_: PromoteProgress) -> None:
            raise RuntimeError("the terminal is gone")

        driver = PromoteDriver(controller, LINK, ports_of(world), None, report)
        outcome = await driver.run(await controller.begin_promote(LINK))
        assert outcome.promoted == tuple(world.tps)

    run_virtual(main())


def test_somebody_writes_past_the_fence() -> None:
    def prepare(world: World, _: LinkController) -> None:
        def write() -> None:
            if world.tps[1] in world.fenced:
                world.append(world.tps[1], 1)
            world.loop.call_later(0.001, write)

        write()

    world, controller, outcome, _ = promote(prepare)
    reason = returned(world, controller, outcome)
    assert "past the fence" in reason
    assert "t-1: its end at the source went from" in reason
    assert "t-0" not in reason
    assert world.sent == 0


def test_the_drain_takes_too_long() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.fence_drain = (60.0, 60.0)

    world, controller, outcome, _ = promote(prepare)
    assert "3 produces in flight" in returned(world, controller, outcome)
    assert outcome.phases_ms["fenced_total"] <= 6000


def once_fenced(act: Callable[[World], None]) -> Callable[[World, LinkController], None]:
    """Something happens as soon as the fence is taken."""

    def prepare(world: World, _: LinkController) -> None:
        def watch() -> None:
            if world.fenced:
                act(world)
            else:
                world.loop.call_later(0.0005, watch)

        watch()

    return prepare


def test_a_follower_is_down() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.loop.call_later(0.0, world.broker_down, 2, 100.0)

    world, controller, outcome, _ = promote(prepare, PromoteSettings(catch_up_timeout=3.0))
    assert "broker 2 is down" in returned(world, controller, outcome)
    assert world.sent == 0


def test_a_follower_goes_down_inside_the_fence_and_stays_away() -> None:
    world, controller, outcome, _ = promote(once_fenced(lambda world: world.broker_down(2, 100.0)))
    assert "broker 2 is down" in returned(world, controller, outcome)
    assert outcome.phases_ms["fenced_total"] <= 11_000


def test_what_was_waited_for_is_the_reason_not_the_question_that_was_cut_short() -> None:
    """A replica does not get on; the source is slow besides, and the fence ends while its ends are read."""

    def prepare(world: World, _: LinkController) -> None:
        fetched = world._fetched

        def nothing_more(tp: TopicPartition, broker: int, end: int) -> None:
            if broker != 2 or not world.fenced:
                fetched(tp, broker, end)

        def watch() -> None:
            if world.fenced:
                world.source_answers_after = 3.0
                for tp in world.tps:
                    world.held[tp][2] = 1
                    world.positions[tp][2] = ReplicaPosition(1, 12)
            else:
                world.loop.call_later(0.0005, watch)

        world._fetched = nothing_more  # type: ignore[method-assign]
        watch()

    world, controller, outcome, _ = promote(prepare)
    reason = returned(world, controller, outcome)
    cut_short = "not ready for the hand-over within 10 s of the fence (ListOffsets was not answered"
    assert reason.startswith(cut_short)
    assert "t-0: " in reason
    assert "broker 2" in reason


def test_a_replica_that_has_caught_up_is_not_blamed_for_a_source_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was behind inside the fence; then, while the tails are compared, the source says no more."""

    def prepare(world: World, _: LinkController) -> None:
        def behind(*, until: float) -> None:
            if world.fenced and world.loop.time() < until:
                for tp in world.tps:
                    world.positions[tp][2] = ReplicaPosition(1, 12)
                world.loop.call_later(0.01, lambda: behind(until=until))
            elif world.fenced:
                for tp in world.tps:
                    world.positions[tp][2] = ReplicaPosition(world.source[tp], 12)
                    world.held[tp][2] = world.source[tp]
                world.notify()
            else:
                world.loop.call_later(0.0005, lambda: behind(until=world.loop.time() + 1.0))

        behind(until=0.0)

    async def silent(self: Ports, ends: object, *, timeout: float) -> dict[TopicPartition, str]:
        self.world.source_answers_after = 100.0
        return {}

    monkeypatch.setattr(Ports, "check", silent)
    world, controller, outcome, reports = promote(prepare, PromoteSettings(fence_deadline=3.0))
    assert any("broker 2" in (report.waiting_for or "") for report in reports)
    reason = returned(world, controller, outcome)
    assert reason.startswith(
        "not ready for the hand-over within 3 s of the fence (ListOffsets was not answered"
    )
    assert "broker 2" not in reason


def test_a_source_that_does_not_answer_is_the_reason_where_there_was_time() -> None:
    def silent(world: World) -> None:
        world.source_answers_after = 100.0

    world, controller, outcome, _ = promote(once_fenced(silent), PromoteSettings(call_timeout=2.0))
    assert returned(world, controller, outcome).startswith("ListOffsets was not answered within 2 s")


def test_a_follower_that_restarts_shows_its_position_again() -> None:
    world, _, outcome, _ = promote(once_fenced(lambda world: world.broker_down(2, 1.0)))
    assert outcome.promoted == tuple(world.tps)
    assert {p[2].broker_epoch for p in world.positions.values()} == {112}


def test_a_replica_beyond_the_source() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.positions[world.tps[2]][1] = ReplicaPosition(10**6, 11)

    world, controller, outcome, _ = promote(prepare)
    reason = returned(world, controller, outcome)
    assert "ahead of the source: t-2: replica 1 is at 1000000" in reason


def test_the_tails_differ() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.tail_differs[world.tps[0]] = "replica 2 has another CRC at offset 1017"

    world, controller, outcome, _ = promote(prepare)
    assert "t-0: replica 2 has another CRC at offset 1017" in returned(world, controller, outcome)
    assert world.sent == 0


def test_an_open_transaction_is_waited_for_before_the_fence() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.last_stable[world.tps[0]] = 500

        def over() -> None:
            assert not world.fenced
            world.last_stable.clear()

        world.loop.call_later(5.0, over)

    world, _, outcome, reports = promote(prepare)
    assert outcome.promoted == tuple(world.tps)
    assert any("a transaction is open" in (report.waiting_for or "") for report in reports)


def test_an_endless_transaction() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.last_stable[world.tps[0]] = 500

    world, controller, outcome, _ = promote(prepare, PromoteSettings(catch_up_timeout=2.0))
    assert "t-0: a transaction is open at the source" in returned(world, controller, outcome)


def test_a_transaction_that_ends_inside_the_fence_may_move_the_end() -> None:
    def prepare(world: World, _: LinkController) -> None:
        def watch() -> None:
            if not world.fenced:
                world.loop.call_later(0.0002, watch)
                return
            world.last_stable[world.tps[0]] = 500
            world.loop.call_later(0.5, marker)

        def marker() -> None:
            world.append(world.tps[0], 1)
            world.loop.call_later(0.01, world.last_stable.clear)

        watch()

    world, _, outcome, _ = promote(prepare)
    assert outcome.promoted == tuple(world.tps)


def test_a_mirror_that_failed_is_not_promoted() -> None:
    async def prepare(world: World, controller: LinkController) -> None:
        await controller.fail_partition(LINK, world.tps[0], "source topic re-created")

    async def main() -> None:
        world = World(random.Random(5))
        controller = await mirrored(world)
        job = await controller.begin_promote(LINK)
        world.start()
        run = asyncio.create_task(PromoteDriver(controller, LINK, ports_of(world)).run(job))
        while not world.fenced:
            await asyncio.sleep(0.0005)
        await prepare(world, controller)
        outcome = await run
        assert "source topic re-created" in (outcome.reason or "")
        first, *others = (controller.image.partitions[LINK, tp].phase for tp in world.tps)
        assert first is Phase.FAILED
        assert set(others) == {Phase.ACTIVE}

    run_virtual(main())


@pytest.mark.parametrize("code", [31, 35])
def test_what_no_retry_can_help(code: int) -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.carry_out = lambda items: {item.tp: code for item in items}  # type: ignore[method-assign]

    world, controller, outcome, _ = promote(prepare)
    reason = returned(world, controller, outcome)
    assert ("CLUSTER_ACTION" if code == 31 else "UNSUPPORTED_VERSION") in reason
    assert world.sent == 1


@pytest.mark.parametrize("code", [107, 95, 74, 77, 42])
def test_refusals_are_tried_again_until_the_fence_is_over(code: int) -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.carry_out = lambda items: {item.tp: code for item in items}  # type: ignore[method-assign]

    world, controller, outcome, _ = promote(prepare)
    assert "not ready for the hand-over within 10 s" in returned(world, controller, outcome)
    assert world.sent > 5
    assert outcome.phases_ms["fenced_total"] <= 12_000


def test_part_of_a_batch_may_be_handed_over() -> None:
    def prepare(world: World, _: LinkController) -> None:
        whole = world.carry_out
        world.carry_out = lambda items: {  # type: ignore[method-assign]
            **whole([item for item in items if item.tp != world.tps[1]]),
            **{item.tp: 107 for item in items if item.tp == world.tps[1]},
        }

    world, controller, outcome, _ = promote(prepare)
    assert outcome.promoted == (world.tps[0], world.tps[2])
    assert set(outcome.abandoned) == {world.tps[1]}
    assert controller.image.partitions[LINK, world.tps[1]].phase is Phase.ACTIVE
    assert world.restored == []  # the topic still has a mirrored partition that needs them
    job = controller.image.jobs[LINK, outcome.job_id]
    assert job.status is JobStatus.ABANDONED
    assert "; 2 of 3 partitions ARE promoted and stay so: leave clients where they are" in str(job.reason)


def test_a_cancelled_reassignment_is_no_reason_to_hold_producers() -> None:
    def prepare(world: World, _: LinkController) -> None:
        def watch() -> None:
            if not world.fenced:
                world.loop.call_later(0.0002, watch)
                return
            state = world.real[world.tps[0]]
            world.real[world.tps[0]] = type(state)((900,), (900,), (), (), 900, 6, 10)
            world.publish()

        watch()

    world, controller, outcome, _ = promote(prepare)
    assert "was it cancelled?" in returned(world, controller, outcome)
    assert outcome.phases_ms["fenced_total"] <= 500


def test_a_broken_store_does_not_keep_producers_held() -> None:
    async def main() -> None:
        world = World(random.Random(5))
        controller = await mirrored(world)
        job = await controller.begin_promote(LINK)
        world.start()
        run = asyncio.create_task(PromoteDriver(controller, LINK, ports_of(world)).run(job))
        while not world.fenced:
            await asyncio.sleep(0.0005)
        world.store.failing = 10**6
        with pytest.raises(StoreError):
            await run
        assert all(world.forwarding(tp) for tp in world.tps)
        world.store.failing = 0
        (outcome,) = await resumed(world, controller, PromoteSettings())
        returned(world, controller, outcome)

    run_virtual(main())


def test_a_cancelled_driver_lets_nothing_go() -> None:
    async def main() -> None:
        world = World(random.Random(5))
        controller = await mirrored(world)
        job = await controller.begin_promote(LINK)
        world.start()
        run = asyncio.create_task(PromoteDriver(controller, LINK, ports_of(world)).run(job))
        while not world.fenced:
            await asyncio.sleep(0.0005)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert world.fenced == set(world.tps)

    run_virtual(main())


def test_a_deposed_link_controller_puts_no_configs_back() -> None:
    """Its successor may have ended the promote by now, and somebody may have switched the topic back since."""
    worlds: list[World] = []

    def prepare(world: World, controller: LinkController) -> None:
        worlds.append(world)

        async def fenced() -> None:
            raise ControllerFenced(1, 2)

        controller.prove_newest = fenced  # type: ignore[method-assign]

    with pytest.raises(
        PromoteStuck, match="putting the configs of topic t back: controller epoch 1 is fenced"
    ):
        promote(prepare, PromoteSettings(insist_timeout=0.5))
    assert worlds[0].restored == []
