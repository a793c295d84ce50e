"""The promote driver's ways out, one by one: what abandons a batch, and what the reason says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from controller.judge.alignment import ReplicaPosition
from controller.phases import Phase
from controller.state import JobStatus
from fleet.link_controller import LinkController
from fleet.stores import StoreError
from linker.promote.driver import PromoteDriver, PromoteOutcome, batches, cut
from linker.promote.ports import PromoteProgress, PromoteSettings
from tests.controller.simulation import (
    LINK,
    OTHER,
    SIDECAR,
    Chances,
    Ports,
    World,
    mirrored,
    ports_of,
    promote_through_trouble,
    resumed,
)
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition

Prepare = Callable[[World, LinkController], Awaitable[None] | None]


def promote(
    prepare: Prepare | None = None,
    settings: PromoteSettings | None = None,
    partitions: int = 3,
    two: bool = False,
) -> tuple[World, LinkController, PromoteOutcome, list[PromoteProgress]]:
    async def main() -> tuple[World, LinkController, PromoteOutcome, list[PromoteProgress]]:
        world = World(random.Random(5), partitions=partitions, two=two)
        controller = await mirrored(world)
        reports: list[PromoteProgress] = []
        driver = PromoteDriver(controller, LINK, ports_of(world), settings, reports.append)
        job = await controller.begin_promote(LINK)
        if prepare is not None:
            waiting = prepare(world, controller)
            if waiting is not None:
                await waiting
        world.start()
        outcome = await driver.run(job)
        world.stopped = True
        await asyncio.sleep(10)
        if world.broken is not None:
            raise world.broken
        return world, controller, outcome, reports

    return run_virtual(main())


def returned(world: World, controller: LinkController, outcome: PromoteOutcome) -> str:
    """All is as before, clients included; the reason."""
    assert not outcome.promoted
    assert set(outcome.abandoned) == set(world.tps)
    for tp in world.tps:
        state = controller.image.partitions[LINK, tp]
        assert state.phase is Phase.ACTIVE
        assert state.reason == outcome.abandoned[tp]
        assert world.forwarding(tp)
        assert world.real[tp].leader == SIDECAR
    job = controller.image.jobs[LINK, outcome.job_id]
    assert job.status is JobStatus.ABANDONED
    assert job.reason
    return job.reason


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


def test_a_follower_is_down() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.loop.call_later(0.0, world.broker_down, 2, 100.0)

    world, controller, outcome, _ = promote(prepare, PromoteSettings(catch_up_timeout=3.0))
    assert "broker 2 is down" in returned(world, controller, outcome)
    assert world.sent == 0


def test_a_follower_goes_down_inside_the_fence_and_stays_away() -> None:
    def prepare(world: World, _: LinkController) -> None:
        def watch() -> None:
            if world.fenced:
                world.broker_down(2, 100.0)
            else:
                world.loop.call_later(0.0005, watch)

        watch()

    world, controller, outcome, _ = promote(prepare)
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
    def prepare(world: World, _: LinkController) -> None:
        def watch() -> None:
            if world.fenced:
                world.source_answers_after = 100.0
            else:
                world.loop.call_later(0.0005, watch)

        watch()

    world, controller, outcome, _ = promote(prepare, PromoteSettings(call_timeout=2.0))
    assert returned(world, controller, outcome).startswith("ListOffsets was not answered within 2 s")


def test_a_follower_that_restarts_shows_its_position_again() -> None:
    def prepare(world: World, _: LinkController) -> None:
        def watch() -> None:
            if world.fenced:
                world.broker_down(2, 1.0)
            else:
                world.loop.call_later(0.0005, watch)

        watch()

    world, _, outcome, _ = promote(prepare)
    assert outcome.promoted == tuple(world.tps)
    assert {p[2].broker_epoch for p in world.positions.values()} == {112}


def once_at(world: World, label: str, happens: Callable[[], object]) -> None:
    """At the first gate of this name. The metadata log shows at once what happens."""
    pass_ = world.gate
    happened = False

    async def gate(generation: int, at: str) -> None:
        nonlocal happened
        await pass_(generation, at)
        if at == label and not happened:
            happened = True
            happens()
            world.visible = world._snapshot()
            world.notify()

    world.gate = gate  # type: ignore[method-assign]


def verifications(world: World) -> int:
    return sum(line.endswith(" tail check") for line in world.log)


# While it is verified, and after: the first request is refused, and the next one would carry the new epochs.
@pytest.mark.parametrize("moment", ["tail check", "alter_partition before"])
def test_copies_that_were_dropped_and_asked_for_again_are_verified_again(moment: str) -> None:
    """Somebody cancels the reassignment and submits it once more: the brokers never restarted, and have nothing."""

    def prepare(world: World, _: LinkController) -> None:
        tp = world.tps[0]

        def drop() -> None:
            before = world.real[tp]
            world.kraft.reassign(tp, None)
            world.kraft.reassign(tp, (1, 2))
            after = world.real[tp]
            assert replace(after, leader_epoch=0, partition_epoch=0) == replace(
                before, leader_epoch=0, partition_epoch=0
            )
            world.held[tp] = {1: 0, 2: 0}
            world.positions[tp] = {}
            for broker in (1, 2):
                world.loop.call_later(0.5, world._fetched, tp, broker, world.source[tp])

        once_at(world, moment, drop)

    world, _, outcome, _ = promote(prepare)
    assert outcome.promoted == tuple(world.tps)
    assert verifications(world) == 2
    assert 500 <= outcome.phases_ms["fenced_total"] < 1000


def test_a_link_leader_that_dies_when_all_is_verified_costs_one_more_verification() -> None:
    def prepare(world: World, _: LinkController) -> None:
        once_at(world, "alter_partition before", lambda: world.kraft.fence(OTHER))

    world, _, outcome, _ = promote(prepare, two=True)
    assert outcome.promoted == tuple(world.tps)
    assert verifications(world) == 2
    assert outcome.phases_ms["fenced_total"] < 1000


def test_a_hand_over_that_lands_while_it_is_verified_again_ends_the_verification() -> None:
    """The new leader epoch is the hand-over's own: nobody is held until the fence's deadline for it."""

    async def main() -> None:
        world = World(random.Random(5), chances=Chances(alter_late=1.0))
        world.late = 1000.0
        world.crash_label = "alter_partition late"

        def watch() -> None:
            if world.crashed:
                once_at(world, "tail check", land)
            else:
                world.loop.call_later(0.0001, watch)

        def land() -> None:
            [flight] = world.flying
            world.flying.clear()
            world.carry_out(flight.items)

        watch()
        _, [outcome] = await promote_through_trouble(world)
        assert outcome.promoted == tuple(world.tps)
        assert world.sent == 1
        assert outcome.phases_ms["fenced_total"] < 1000

    run_virtual(main())


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


def test_several_batches_one_after_the_other() -> None:
    world, _, outcome, _ = promote(
        settings=PromoteSettings(batch_partitions=5, first_partitions=5), partitions=12
    )
    assert outcome.promoted == tuple(world.tps)
    assert world.sent == 3
    assert world.restored == ["t"]


def moments(world: World) -> tuple[list[float], list[float]]:
    """When batches are held from, and when each is told to its clients, by a look every half millisecond."""
    held: list[float] = []
    over: list[float] = []
    seen: tuple[int, int] = (0, 0)

    def look() -> None:
        nonlocal seen
        now = (len(world.fenced), len(world.handed_over))
        if now[0] > seen[0]:
            held.append(world.loop.time())
        if now[1] > seen[1]:
            over.append(world.loop.time())
        seen = now
        world.loop.call_later(0.0005, look)

    look()
    return held, over


def test_producers_go_on_between_two_batches() -> None:
    times: list[tuple[list[float], list[float]]] = []
    settings = PromoteSettings(batch_partitions=5, first_partitions=5, breather=0.7)
    world, _, outcome, reports = promote(
        lambda world, _: times.append(moments(world)), settings, partitions=12
    )
    assert outcome.promoted == tuple(world.tps)
    assert world.breathers == [tuple(world.tps[:5]), tuple(world.tps[5:10])]
    held, over = times[0]
    assert len(held) == len(over) == 3
    assert all(next_held - told >= 0.7 for told, next_held in zip(over, held[1:], strict=False))
    assert "producers go on for a moment" in {report.waiting_for for report in reports}


def test_the_longer_they_were_held_the_longer_they_go_on() -> None:
    times: list[tuple[list[float], list[float]]] = []

    def prepare(world: World, _: LinkController) -> None:
        world.fence_drain = (1.5, 1.6)
        times.append(moments(world))

    world, _, outcome, _ = promote(prepare, PromoteSettings(batch_partitions=2, breather=0.1))
    assert outcome.promoted == tuple(world.tps)
    held, over = times[0]
    assert held[1] - over[0] >= 1.5


def test_a_breather_that_fails_is_no_reason_to_give_up() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.answers_fail = True

    world, _, outcome, _ = promote(prepare, PromoteSettings(batch_partitions=1))
    assert outcome.promoted == tuple(world.tps)
    assert world.breathers == []


def test_how_many_at_a_time() -> None:
    settings = PromoteSettings(batch_partitions=3, first_partitions=2, whole_partitions=7)
    assert settings.at_a_time(4, failover=False) == (3, 2)
    assert settings.at_a_time(3, failover=False) == (3, 3)
    assert settings.at_a_time(4, failover=True) == (7, 7)
    assert replace(settings, fence_source=True).at_a_time(4, failover=False) == (7, 7)
    assert replace(settings, first_partitions=9).at_a_time(4, failover=False) == (3, 3)


def test_a_promote_of_many_begins_with_few_partitions() -> None:
    tps = [TopicPartition("t", index) for index in range(100)]
    parts = cut(tps, PromoteSettings())
    assert [len(batch) for batch in parts] == [4, 8, 16, 32, 32, 8]
    assert [tp for batch in parts for tp in batch] == tps
    assert [len(batch) for batch in cut(tps, PromoteSettings(), failover=True)] == [100]
    assert [len(batch) for batch in cut(tps[:32], PromoteSettings())] == [32]
    small = [TopicPartition(topic, index) for topic in "abcdefg" for index in range(3)]
    assert [len(batch) for batch in batches(small, 32, 4)] == [3, 6, 12]
    assert [len(batch) for batch in batches(tps[:4], 32, 4)] == [4]

    world, _, outcome, _ = promote(
        settings=PromoteSettings(batch_partitions=4, first_partitions=1), partitions=12
    )
    assert outcome.promoted == tuple(world.tps)
    assert [len(batch) for batch in world.breathers] == [1, 2, 4, 4]


def test_cutting_into_batches() -> None:
    def parts(topic: str, count: int) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for index in range(count)]

    tps = parts("a", 3) + parts("b", 2) + parts("c", 7)
    cut = batches(tps, 5)
    assert [len(batch) for batch in cut] == [5, 5, 2]
    assert [tp for batch in cut for tp in batch] == tps
    assert batches(parts("a", 3) + parts("b", 3), 5) == [parts("a", 3), parts("b", 3)]
    assert batches([], 5) == []


# Over several link brokers a partition may copy without being open.


def close(world: World, tp: TopicPartition) -> None:
    state = world.real[tp]
    world.real[tp] = replace(
        state,
        replicas=(SIDECAR, 1, 2),
        adding=(),
        removing=(),
        partition_epoch=state.partition_epoch + 1,
    )
    world.publish()


def test_what_is_not_open_is_opened_before_the_fence() -> None:
    def prepare(world: World, controller: LinkController) -> None:
        for tp in world.tps:
            close(world, tp)
        world.visible = world._snapshot()

    world, _, outcome, reports = promote(prepare)
    assert set(outcome.promoted) == set(world.tps)
    opened = next(i for i, line in enumerate(world.log) if "open after" in line)
    fenced = next(i for i, line in enumerate(world.log) if "fence before" in line)
    assert opened < fenced
    assert any("opened first" in (report.waiting_for or "") for report in reports)


def test_what_is_closed_behind_the_fence_is_opened_again() -> None:
    def prepare(world: World, controller: LinkController) -> None:
        def once() -> None:
            if world.fenced:
                close(world, world.tps[0])
            else:
                world.loop.call_later(0.001, once)

        once()

    world, _, outcome, _ = promote(prepare)
    assert set(outcome.promoted) == set(world.tps)
    assert any("open after" in line for line in world.log)


def test_what_cannot_be_opened_is_not_promoted() -> None:
    def prepare(world: World, controller: LinkController) -> None:
        close(world, world.tps[1])
        world.visible = world._snapshot()
        world.open = lambda tp, targets: None  # type: ignore[method-assign]

    world, controller, outcome, _ = promote(prepare, PromoteSettings(catch_up_timeout=3.0))
    assert "t-1: its reassignment to the real brokers has to be opened first" in returned(
        world, controller, outcome
    )
