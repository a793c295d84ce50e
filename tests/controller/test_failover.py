"""Failovers: what is chosen and said, and the whole way over a process that dies anywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence

import pytest

from controller.decide.failovers import Chosen, KnownEnds, choose_ends, describe_loss, missing
from controller.decide.mirrors import Leadership
from controller.errors import IllegalTransition, PromoteStuck, Refused
from controller.judge.alignment import SourceEnd
from controller.operations import Operation
from controller.phases import HELD, LED_ELSEWHERE, Phase
from controller.state import AbortedTransaction, Failover, JobStatus, MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.failover import FailoverPorts
from linker.promote.ports import PromoteSettings
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.controller.simulation import LINK, Ports, World, mirrored, ports_of
from tests.controller.virtual_loop import run_virtual
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# What is chosen.


def test_the_longest_replica_is_chosen() -> None:
    verdict = choose_ends({T0: (1, 2, 3)}, {T0: {1: 5, 2: 9, 3: 9}}, {})
    assert verdict.chosen == {T0: Chosen(9, 2)}
    assert not verdict.waiting


def test_a_silent_replica_is_waited_for_and_named() -> None:
    verdict = choose_ends({T0: (1, 2), T1: (1, 2)}, {T0: {1: 5}, T1: {1: 1, 2: 1}}, {})
    assert verdict.chosen == {T1: Chosen(1, 1)}
    assert "broker 2 does not say" in verdict.waiting[T0]


def test_a_replica_with_a_tail_that_the_source_had_lost_is_no_measure() -> None:
    assert choose_ends({T0: (1, 2)}, {T0: {1: 50, 2: 9}}, {T0: {1}}).chosen == {T0: Chosen(9, 2)}
    assert "truncated" in choose_ends({T0: (1,)}, {T0: {1: 50}}, {T0: {1}}).waiting[T0]


@pytest.mark.parametrize(
    ("failover", "lost", "text"),
    [
        (Failover(before=Phase.ACTIVE, end=10), None, "where the source ended is not known"),
        (Failover(before=Phase.ACTIVE, end=10, source_end=10), 0, "the last known end of the source"),
        (Failover(before=Phase.ACTIVE, end=10, source_end=8), 0, "the last known end of the source"),
        (Failover(before=Phase.ACTIVE, end=10, source_end=10, acked_end=14), 4, "4 more offsets, 10 to 13"),
        (Failover(before=Phase.ACTIVE, end=10, source_end=11), 1, "1 more offsets, 10 to 10"),
        # What is known is told, but nobody can say that it is all.
        (Failover(before=Phase.ACTIVE, end=10, source_end=10, unasked=(7, 8)), None, "sidecar 7, 8 was away"),
        (
            Failover(before=Phase.ACTIVE, end=10, acked_end=11, unasked=(7,)),
            None,
            "10 to 10, which were not copied; ",
        ),
    ],
)
def test_what_was_not_copied_is_said(failover: Failover, lost: int | None, text: str) -> None:
    assert missing(failover) == lost
    assert text in describe_loss(failover)


# Decisions.


async def linked(*phases: Phase) -> LinkController:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("l", "cluster", {"bootstrap.servers": "a:1"})
    await controller.create_mirror(
        MirrorTopic(link="l", topic="t", topic_id=bytes(16), source_topic_id=None, partitions=len(phases))
    )
    for index, phase in enumerate(phases):
        tp = TopicPartition("t", index)
        if phase is Phase.LINKING:
            continue
        await establish(
            controller, "l", tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
        if phase is Phase.FAILED:
            await controller.fail_partition("l", tp, "retention outran it")
    if Phase.PAUSED in phases:
        await controller.pause("l", "t")
    return controller


async def test_only_what_was_copied_can_be_failed_over() -> None:
    controller = await linked(Phase.ACTIVE, Phase.LINKING)
    with pytest.raises(Refused, match="t-1 is LINKING, nothing of it was copied"):
        await controller.begin_failover("l")


async def test_one_job_at_a_time_and_a_promote_refuses_what_is_failed_over() -> None:
    controller = await linked(Phase.ACTIVE)
    job = await controller.begin_failover("l")
    assert job.failover
    with pytest.raises(Refused, match="is running already"):
        await controller.begin_promote("l")
    with pytest.raises(Refused, match="is running already"):
        await controller.begin_failover("l")


async def test_no_promote_gets_to_its_fence_as_a_failover_does() -> None:
    controller = await linked(Phase.ACTIVE)
    with pytest.raises(IllegalTransition):
        await controller.advance("l", [T0], Phase.FENCED)


@pytest.mark.parametrize("before", [Phase.ACTIVE, Phase.PAUSED, Phase.FAILED])
async def test_an_abandoned_one_returns_to_where_it_was(before: Phase) -> None:
    store = MemoryStore()
    controller = await linked(before)
    was = controller.image.partitions["l", T0]
    await controller.give_up_source("l", {T0: KnownEnds(9, None)})
    state = controller.image.partitions["l", T0]
    assert state.phase is Phase.FENCED
    assert state.failover == Failover(before=before, source_end=9)
    await controller.advance("l", [T0], Phase.ACTIVE, reasons={T0: "a broker was down"})
    state = controller.image.partitions["l", T0]
    assert state.phase is before
    assert state.failover is None
    assert state.failure is None
    assert state.reason == (was.reason if before is Phase.FAILED else "a broker was down")
    del store


async def test_an_end_is_chosen_once_and_survives_a_restart() -> None:
    store = MemoryStore()
    world_controller = await linked(Phase.ACTIVE)
    await world_controller.give_up_source("l", {T0: KnownEnds(9, 11)})
    await world_controller.choose_ends("l", {T0: Chosen(8, 2, None, (7,))})
    with pytest.raises(Refused, match="chosen already"):
        await world_controller.choose_ends("l", {T0: Chosen(9, 1)})
    aborted = AbortedTransaction(producer_id=4000, producer_epoch=1, start_offset=3)
    await world_controller.note_aborted("l", {T0: [aborted]})
    await world_controller.note_aborted("l", {T0: [aborted]})
    state = world_controller.image.partitions["l", T0]
    assert state.failover == Failover(
        before=Phase.ACTIVE, source_end=9, acked_end=11, end=8, replica=2, aborted=(aborted,), unasked=(7,)
    )
    from controller import codec

    assert codec.decode(codec.path_of(state), codec.encode(state)) == state
    del store


# The whole way.


class Doomed(World):
    """Replicas at different ends, a source that had more and does not answer; one transaction was left open. Producers of
    the target begin others as soon as real brokers lead: those live."""

    def doom(self) -> None:
        self.outside_writer = True  # its end is nobody's measure any more
        for index, tp in enumerate(self.tps):
            self.source[tp] = self.high_watermark[tp] = 1500
            self.held[tp] = {1: 1000, 2: 1000 + 100 * index}
        left = AbortedTransaction(producer_id=7, producer_epoch=0, start_offset=990)
        self.living = {
            self.tps[0]: [AbortedTransaction(producer_id=4009, producer_epoch=0, start_offset=1000)],
            self.tps[1]: [AbortedTransaction(producer_id=4010, producer_epoch=0, start_offset=1170)],
        }
        self.transactions = {
            self.tps[0]: [left, *self.living[self.tps[0]]],
            self.tps[1]: self.living[self.tps[1]],
        }
        self.marked = 0

    def serve(self, controller: LinkController) -> None:
        """What stand-ins do: bring the shorter replicas to the chosen end, and nobody beyond it."""
        for tp in self.tps:
            state = controller.image.partitions[LINK, tp]
            failover = state.failover
            if failover is None or state.phase not in HELD:
                continue
            for broker in (1, 2):
                end = self.held[tp][broker] if failover.end is None else failover.end
                self.loop.call_later(self.rng.uniform(0, 0.05), self._fetched, tp, broker, end)


class FailoverWorldPorts(Ports):
    def __init__(self, world: Doomed) -> None:
        super().__init__(world)
        self.doomed = world

    async def ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        raise LinkerError("the dead source was asked")

    async def known_ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, KnownEnds]:
        await self._call("known ends")
        return {tp: KnownEnds(self.world.high_watermark[tp], None) for tp in tps}

    async def log_ends(
        self, targets: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, Mapping[int, int]]:
        await self._call("log ends")
        return {tp: {b: self.world.held[tp][b] for b in brokers} for tp, brokers in targets.items()}

    async def find(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, Sequence[AbortedTransaction]]:
        await self._call("find transactions")
        for tp in tps:
            if self.world.led_by_link(tp):
                self.world.fail(f"{tp}: transactions are looked for before a real broker leads")
        return {tp: list(self.doomed.transactions.get(tp, [])) for tp in tps}

    async def abort(
        self, found: Mapping[TopicPartition, Sequence[AbortedTransaction]], *, timeout: float
    ) -> None:
        await self._call("abort before")
        for tp, ended in found.items():
            self.doomed.transactions[tp] = [one for one in self.doomed.transactions[tp] if one not in ended]
        self.doomed.marked += 1
        await self.world.gate(self.generation, "abort after")


def driver_of(world: Doomed, controller: LinkController) -> PromoteDriver:
    ports = FailoverWorldPorts(world)
    replaced = ports_of(world)
    object.__setattr__(replaced, "source_ends", ports)
    failover_ports = FailoverPorts(ports=replaced, source=ports, replicas=ports, transactions=ports)
    settings = PromoteSettings(insist_timeout=20.0, failover_deadline=30.0)
    return PromoteDriver(controller, LINK, replaced, settings, None, failover_ports)


def live(
    seed: int, crash_at: int | None = None, *, down: bool = False
) -> tuple[Doomed, PromoteOutcome, LinkController]:
    """One whole life; dies at the given gate, starts again, ends."""

    async def main() -> tuple[Doomed, PromoteOutcome, LinkController]:
        world = Doomed(random.Random(seed), partitions=3)
        world.doom()
        controller = await mirrored(world)
        controller.listeners.add(lambda _: world.serve(controller))
        world.store.gated = False
        job = await controller.begin_failover(LINK)
        world.store.gated = True
        world.crash_at, world.gates = crash_at, 0
        if down:
            world.broker_down(2, 60.0)
        run = asyncio.create_task(driver_of(world, controller).run(job))
        died = asyncio.create_task(world.death.wait())
        await asyncio.wait({run, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not world.crashed:
            outcome = await run
        else:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await asyncio.sleep(world.rng.choice([0.0, 0.5, 4.0]))
            controller, outcome = await again(world)
        world.stopped = True
        await asyncio.sleep(5)
        if world.broken is not None:
            raise world.broken
        job = controller.image.jobs[LINK, job.id]
        assert job.warnings == (), "the dead source was looked at"
        return world, outcome, controller

    return run_virtual(main())


async def again(world: Doomed) -> tuple[LinkController, PromoteOutcome]:
    world.crash_at = None
    world.store.gated = False
    controller = await StoredController.open(world.store, now=lambda: int(world.loop.time() * 1000))
    controller.listeners.add(lambda _: world.serve(controller))
    world.store.gated = True
    world.fenced = {s.tp for s in controller.image.link_partitions(LINK) if s.phase in HELD | LED_ELSEWHERE}
    world.up = True
    world.visible = world.first_image
    world.publish()
    world.serve(controller)
    driver = driver_of(world, controller)
    for _ in range(20):
        try:
            await driver.retreat()
            outcomes = await driver.resume()
            break
        except (PromoteStuck, StoreError):
            await asyncio.sleep(0.1)
    else:
        raise AssertionError("resume never came to an end")
    if outcomes:
        return controller, outcomes[0]
    [job] = controller.image.jobs.values()
    assert job.status is JobStatus.DONE, "it had ended before it died"
    return controller, PromoteOutcome(
        job_id=job.id, promoted=job.partitions, abandoned={}, phases_ms=job.phases_ms
    )


def failed_over(world: Doomed, outcome: PromoteOutcome, controller: LinkController) -> None:
    assert not outcome.abandoned
    for index, tp in enumerate(world.tps):
        state = controller.image.partitions[LINK, tp]
        assert state.phase is Phase.FAILED_OVER
        assert state.failover is not None
        assert state.failover.end == 1000 + 100 * index == world.held[tp][1] == world.held[tp][2]
        assert missing(state.failover) == 500 - 100 * index
        assert "were not copied" in (state.reason or "")
        assert not world.led_by_link(tp)
        assert not world.forwarding(tp)
    assert world.transactions == world.living, "one was left open, or one that lives was aborted"
    first = controller.image.partitions[LINK, world.tps[0]].failover
    assert first is not None
    assert [one.producer_id for one in first.aborted] == [7]
    assert world.restored


def test_takes_over_at_the_longest_replica() -> None:
    world, outcome, controller = live(1)
    failed_over(world, outcome, controller)
    assert world.marked == 1


def never_begun(world: Doomed, outcome: PromoteOutcome, controller: LinkController, why: str) -> None:
    """Everything is as before: whether the source is dead still, nobody has asked."""
    assert outcome.promoted == ()
    assert set(outcome.abandoned) == set(world.tps)
    for tp in world.tps:
        state = controller.image.partitions[LINK, tp]
        assert (state.phase, state.failover) == (Phase.ACTIVE, None)
        assert world.led_by_link(tp)
        assert world.forwarding(tp)
    job = controller.image.jobs[LINK, outcome.job_id]
    assert job.status is JobStatus.ABANDONED
    assert job.reason == f"{why}: fail over again if its source is still dead"


def test_dies_at_every_gate_and_goes_on() -> None:
    """Where the source was given up already: what had not come so far ends, and gives up nothing."""
    world, _, _ = live(1)
    gates = world.gates
    assert gates > 15
    ended = 0
    for crash_at in range(1, gates + 1):
        world, outcome, controller = live(crash_at, crash_at)
        try:
            if outcome.abandoned:
                ended += 1
                assert crash_at == ended, "it was given up already, and is not any more"
                never_begun(world, outcome, controller, "not begun before the sidecar restarted")
            else:
                failed_over(world, outcome, controller)
        except AssertionError as error:
            raise AssertionError(f"died at gate {crash_at}: {error}\n  " + "\n  ".join(world.log)) from error
    assert 0 < ended < 10


def test_one_that_nobody_ran_gives_up_nothing_when_it_is_found() -> None:
    """It was written down, and whoever asked for it was told of an error. The source may be well when it is found."""

    async def main() -> None:
        world = Doomed(random.Random(1), partitions=2)
        world.doom()
        controller = await mirrored(world)
        world.transactions = {}
        commit = world.store.commit

        async def without_an_answer(operations: Sequence[Operation], *, controller_epoch: int) -> None:
            await commit(operations, controller_epoch=controller_epoch)
            raise StoreError("the connection was lost")

        world.store.commit = without_an_answer  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await controller.begin_failover(LINK)
        world.store.commit = commit  # type: ignore[method-assign]
        await asyncio.sleep(86_400)
        controller, outcome = await again(world)
        never_begun(world, outcome, controller, "not begun before the sidecar restarted")
        assert not any("known ends" in line or "fence" in line for line in world.log)
        assert (await controller.begin_failover(LINK)).id == 2

    run_virtual(main())


def test_the_rest_of_one_that_died_between_two_batches_is_not_given_up() -> None:
    async def main() -> None:
        world = Doomed(random.Random(1), partitions=2)
        world.doom()
        controller = await mirrored(world)
        controller.listeners.add(lambda _: world.serve(controller))
        # An earlier promote left its reason, which is none of the failover's.
        await controller.begin_promote(LINK)
        await controller.advance(LINK, world.tps, Phase.CATCHING_UP)
        await controller.advance(LINK, world.tps, Phase.ACTIVE, reasons=dict.fromkeys(world.tps, "too slow"))
        driver = driver_of(world, controller)
        await driver.resume()
        await asyncio.sleep(1)
        job = await controller.begin_failover(LINK)
        driver._settings = PromoteSettings(whole_partitions=1, failover_deadline=30.0)
        run = asyncio.create_task(driver.run(job))
        first, second = world.tps

        def dies(_: object) -> None:
            if controller.image.partitions[LINK, first].phase is Phase.FAILED_OVER:
                run.cancel()

        controller.listeners.add(dies)
        await asyncio.gather(run, return_exceptions=True)
        controller.listeners.discard(dies)
        await controller.refresh()
        [outcome] = await driver.resume(why="nobody ran it")
        assert outcome.promoted == (first,)
        assert outcome.abandoned == {second: "nobody ran it: fail over again if its source is still dead"}
        assert controller.image.partitions[LINK, second].phase is Phase.ACTIVE
        assert controller.image.jobs[LINK, job.id].status is JobStatus.ABANDONED
        assert (await controller.begin_failover(LINK)).partitions == (second,)

    run_virtual(main())


def test_a_broker_that_stays_down_abandons_it_and_forwarding_goes_on() -> None:
    world = Doomed

    async def main() -> None:
        doomed = world(random.Random(3), partitions=2)
        doomed.doom()
        controller = await mirrored(doomed)
        job = await controller.begin_failover(LINK)
        doomed.broker_down(2, 1000.0)
        driver = driver_of(doomed, controller)
        driver._settings = PromoteSettings(catch_up_timeout=5.0)
        outcome = await driver.run(job)
        assert set(outcome.abandoned) == set(doomed.tps)
        assert "broker 2 is down" in next(iter(outcome.abandoned.values()))
        for tp in doomed.tps:
            state = controller.image.partitions[LINK, tp]
            assert state.phase is Phase.ACTIVE
            assert doomed.forwarding(tp)
        assert controller.image.jobs[LINK, job.id].status is JobStatus.ABANDONED

    run_virtual(main())
