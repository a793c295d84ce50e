"""A promote that takes its source over, in a world of trouble: at every await the process may die, requests are lost or
late, brokers of both kinds come and go. At no moment has a partition two owners, and nothing acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from controller.alter_partition import AlterPartitionItem
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import ControllerFenced, StoreError
from linker.promote.driver import PromoteDriver, PromoteStuck
from linker.promote.ports import PromoteSettings
from linker.switch.fence import TakeOverFence
from linker.switch.records import TakeOverRecords
from tests.controller.kraft_model import INELIGIBLE_REPLICA
from tests.controller.simulation import LINK, TOPIC_ID, InvariantBroken, ports_of
from tests.controller.switch_world import BACK, REAL, SourceChances, SwitchWorld
from tests.controller.virtual_loop import run_virtual
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

#: A time limit that ends inside of a simulated life looks like a violation. A life takes 0.1 to 0.4 s of CPU.
pytestmark = pytest.mark.timeout(300)

PROFILES = {
    "calm": SourceChances(),
    "requests late": SourceChances(late=0.4),
    "answers lost": SourceChances(lost=0.3, unanswered=0.3),
    "brokers fail": SourceChances(broker_fails=0.01),
    "link brokers fail": SourceChances(link_fails=0.01),
    "everything": SourceChances(
        lost=0.1, late=0.1, unanswered=0.1, broker_fails=0.003, link_fails=0.003, rebalance=0.01
    ),
}


async def linked(world: SwitchWorld) -> LinkController:
    controller = await opened(world)
    await controller.create_link(LINK, "source-cluster", {"bootstrap.servers": "s:9092"})
    back = replace(
        controller.image.links[LINK], name=BACK, reverse_of=LINK, source_cluster_id="target-cluster"
    )
    await controller.decide(lambda _: ([back], None))
    mirror = MirrorTopic(
        link=LINK,
        topic="t",
        topic_id=TOPIC_ID,
        source_topic_id=None,
        partitions=world.partitions,
        target_replicas=((1, 2),) * world.partitions,
        restore_configs={"unclean.leader.election.enable": None},
        sync=True,
    )
    states = [
        MirrorPartition(
            link=LINK,
            topic="t",
            partition=tp.partition,
            phase=Phase.ACTIVE,
            leader=world.real[tp].leader,
            leader_epoch=5,
            isr=world.real[tp].isr,
            session_epoch=5,
            start_offset=0,
            source_epochs=((3, 0),),
        )
        for tp in world.tps
    ]
    await controller.create_mirror(mirror, states)
    return controller


async def opened(world: SwitchWorld) -> LinkController:
    world.store.gated = False
    try:
        controller = await StoredController.open(world.store, now=lambda: int(world.loop.time() * 1000))
    finally:
        world.store.gated = True
    world.controller = controller
    return controller


def driver(
    world: SwitchWorld, controller: LinkController, not_yet: Callable[[], str | None] = lambda: None
) -> PromoteDriver:
    ports = replace(ports_of(world), switch=TakeOverFence(world.take_over(controller), not_yet))
    return PromoteDriver(controller, LINK, ports, PromoteSettings(insist_timeout=20.0))


async def settled(world: SwitchWorld, controller: LinkController) -> None:
    """The process has started, or its promote raised: as linker.promote.jobs does."""
    for _ in range(60):
        try:
            await driver(world, controller).retreat()
            await driver(world, controller).resume()
            return
        except (PromoteStuck, StoreError, LinkerError):
            await asyncio.sleep(0.5)
    raise InvariantBroken("never settled\n  " + "\n  ".join(world.log[-60:]))


async def live_through(world: SwitchWorld) -> LinkController:
    crash_at, world.crash_at = world.crash_at, None
    controller = await linked(world)
    world.store.gated = False
    job = await controller.begin_promote(LINK, switch=True)
    world.store.gated = True
    world.start()
    keeper = asyncio.create_task(world.keep_in_sync())
    await asyncio.sleep(0.05)
    world.gates, world.crash_at = 0, crash_at
    run = asyncio.create_task(driver(world, controller).run(job))
    died = asyncio.create_task(world.death.wait())
    await asyncio.wait({run, died}, return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    if world.crashed:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await asyncio.sleep(world.rng.choice([0.0, 0.01, 0.5, 4.0]))
        world.crash_at = None
        controller = await opened(world)
        world.fenced = {
            s.tp
            for s in controller.image.link_partitions(LINK)
            if s.phase not in (Phase.ACTIVE, Phase.CATCHING_UP)
        }
        world.handed_over = set()
        world.up = True
        await settled(world, controller)
    else:
        world.crash_at = None
        error = run.exception()
        if error is not None:
            await settled(world, controller)
    await finish(world, controller)
    keeper.cancel()
    return controller


async def finish(world: SwitchWorld, controller: LinkController) -> None:
    """What was handed over runs the other way now; trouble ends, and what is under way lands."""
    world.luck = SourceChances()
    records = TakeOverRecords(controller, LINK, lambda: int(world.loop.time() * 1000))
    await records.reverse(["t"])
    world.check()
    await asyncio.sleep(12)
    world.check()
    if world.broken is not None:
        raise world.broken
    phases = {controller.image.partitions[LINK, tp].phase for tp in world.tps}
    if phases == {Phase.PROMOTED}:
        assert {world.phase(BACK, tp) for tp in world.tps} == {"ACTIVE"}
        await records.end_forward(["t"])
        assert (LINK, "t") not in controller.image.mirrors
        assert all(not job.source_fenced for job in controller.image.jobs.values())
    else:
        assert phases == {Phase.ACTIVE}, phases
        assert (BACK, "t") not in controller.image.mirrors
        for tp in world.tps:
            found = world.owner.partitions[tp]
            assert found.leader in REAL and found.replicas[0] in REAL, found
            assert set(found.replicas[-len(world.link_brokers) :]) == set(world.link_brokers), found
        assert world.overrides == {"min.insync.replicas": "2"}
        before = {tp: len(world.acked[tp]) for tp in world.tps}
        await asyncio.sleep(2)
        assert all(len(world.acked[tp]) > before[tp] for tp in world.tps), "the source takes no writes"
    world.stopped = True


def live(
    seed: int,
    profile: str,
    crash_at: int | None = None,
    mode: str = "cancel",
    link_brokers: tuple[int, ...] = (800,),
) -> tuple[int, bool]:
    """One life; (awaits, whether it was switched). A failure names everything that is needed to see it again."""

    async def main() -> tuple[int, bool]:
        world = SwitchWorld(
            random.Random(seed),
            partitions=2,
            crash_at=crash_at,
            crash_mode=mode,
            owner_chances=PROFILES[profile],
            link_brokers=link_brokers,
        )
        try:
            controller = await live_through(world)
        except Exception as error:
            raise InvariantBroken(f"{error!r}\n  " + "\n  ".join(world.log[-60:])) from error
        return world.gates, (LINK, "t") not in controller.image.mirrors

    try:
        return run_virtual(main())
    except Exception as error:
        raise AssertionError(
            f"live({seed}, {profile!r}, {crash_at}, {mode!r}, {link_brokers}): {error}"
        ) from error


@pytest.mark.parametrize("link_brokers", [(800,), (800, 801)])
@pytest.mark.parametrize("profile", PROFILES)
def test_without_a_crash(profile: str, link_brokers: tuple[int, ...]) -> None:
    switched = [live(seed, profile, link_brokers=link_brokers)[1] for seed in range(8)]
    assert any(switched)
    assert all(switched) or profile != "calm"


@pytest.mark.parametrize("mode", ["cancel", "raise"])
@pytest.mark.parametrize("profile", ["calm", "everything"])
def test_trouble_at_every_await(profile: str, mode: str) -> None:
    ended: set[bool] = set()
    gates, _ = live(1, profile)
    for at in range(1, min(gates, 110) + 1):
        ended.add(live(1, profile, at, mode)[1])
    assert True in ended


@pytest.mark.parametrize("profile", PROFILES)
def test_random_lives(profile: str) -> None:
    chooser = random.Random(profile)
    for _ in range(25):
        live(
            chooser.randrange(10**6),
            profile,
            chooser.randrange(1, 90),
            chooser.choice(["cancel", "raise"]),
            chooser.choice([(800,), (800, 801)]),
        )


def test_a_part_that_was_handed_over_is_followed_by_the_rest() -> None:
    """One partition's hand-over is not carried out before the fence's time is over. Its topic cannot be given back."""

    async def main() -> None:
        world = SwitchWorld(random.Random(4), partitions=2)
        carry_out = world.carry_out
        slow = world.tps[1]

        def in_parts(items: Sequence[AlterPartitionItem]) -> dict[TopicPartition, int]:
            late = {
                item.tp: INELIGIBLE_REPLICA for item in items if item.tp == slow and world.loop.time() < 30
            }
            return carry_out([item for item in items if item.tp not in late]) | late

        world.carry_out = in_parts  # type: ignore[method-assign]
        controller = await live_through(world)
        assert (LINK, "t") not in controller.image.mirrors

    run_virtual(main())


def test_writes_that_wait_at_the_source_go_on_with_the_hand_over() -> None:
    """Not after what is written down of it: the mirrors at the source are ACTIVE before that is."""

    async def main() -> None:
        world = SwitchWorld(random.Random(3), partitions=2)
        controller = await linked(world)
        world.store.gated = False
        job = await controller.begin_promote(LINK, switch=True)
        world.start()
        keeper = asyncio.create_task(world.keep_in_sync())
        await asyncio.sleep(0.05)
        seen: list[set[str | None]] = []

        def note(_records: object) -> None:
            if {world.phase(LINK, tp) for tp in world.tps} == {"HANDED_OVER"}:
                seen.append({world.phase(BACK, tp) for tp in world.tps})

        controller.listeners.add(note)
        await driver(world, controller).run(job)
        keeper.cancel()
        assert seen
        assert seen[0] == {"ACTIVE"}
        await finish(world, controller)

    run_virtual(main())


def test_a_deposed_link_controller_takes_nothing() -> None:
    """It goes on with its take-over, its image of the source is the newest, and every request of its is carried out: it
    stops at the first thing that it has to write down. What it has done until then is undone by its successor."""

    async def main(seed: int, after: float) -> None:
        world = SwitchWorld(random.Random(seed), partitions=2, zombies=True, rescued=False)
        first = await linked(world)
        world.store.gated = True
        world.start()
        keeper = asyncio.create_task(world.keep_in_sync())
        await asyncio.sleep(0.05)
        taking = asyncio.create_task(world.take_over(first).take(["t"], timeout=5))
        await asyncio.sleep(after)
        was_over = taking.done()
        second = await opened(world)
        giving = world.take_over(second)
        await giving.give_back(["t"], timeout=30)
        (fenced,) = await asyncio.gather(taking, return_exceptions=True)
        await asyncio.sleep(2)
        world.stopped = True
        keeper.cancel()
        world.check()
        if world.broken is not None:
            raise world.broken
        assert was_over or isinstance(fenced, Exception)
        assert (BACK, "t") not in second.image.mirrors
        assert all(world.owner.partitions[tp].leader in REAL for tp in world.tps)

    for seed in range(3):
        for after in (0.001, 0.003, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08):
            run_virtual(main(seed, after))


def test_a_deposed_link_controller_puts_no_configs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood still while it gave the topic back, and its successor has taken the topic over again: with the topic's own
    configs the source's brokers could be elected there."""

    async def main() -> None:
        world = SwitchWorld(random.Random(1), partitions=2, zombies=True, rescued=False)
        first = await linked(world)
        world.start()
        keeper = asyncio.create_task(world.keep_in_sync())
        take_over = world.take_over(first)
        await take_over.take(["t"], timeout=5)
        taken = dict(world.overrides)
        proved = TakeOverRecords.prove_newest

        async def stood_still(self: TakeOverRecords) -> None:
            await opened(world)
            await proved(self)

        monkeypatch.setattr(TakeOverRecords, "prove_newest", stood_still)
        with pytest.raises(ControllerFenced):
            await take_over.give_back(["t"], timeout=30)
        world.stopped = True
        keeper.cancel()
        assert world.overrides == taken != {"min.insync.replicas": "2"}

    run_virtual(main())


def test_before_a_fence_nobody_notices_a_take_over() -> None:
    """What is prepared moves no leader and changes no config; it is undone, or gone on with by one election."""

    async def main(goes_on: bool) -> None:
        world = SwitchWorld(random.Random(1), partitions=2, rescued=False)
        controller = await linked(world)
        world.store.gated = True
        world.start()
        keeper = asyncio.create_task(world.keep_in_sync())
        await asyncio.sleep(0.05)
        take_over = world.take_over(controller)
        before = {tp: world.owner.partitions[tp] for tp in world.tps}
        acked = {tp: len(world.acked[tp]) for tp in world.tps}
        await take_over.prepare(["t"], timeout=5)
        for tp in world.tps:
            now = world.owner.partitions[tp]
            assert now.replicas[0] in world.link_brokers
            assert (now.leader, now.leader_epoch) == (before[tp].leader, before[tp].leader_epoch)
        assert world.overrides == {"min.insync.replicas": "2"}
        await asyncio.sleep(0.5)
        assert all(len(world.acked[tp]) > acked[tp] for tp in world.tps), "writes go on"
        if goes_on:
            await take_over.take(["t"], timeout=5)
            assert {world.phase(BACK, tp) for tp in world.tps} == {"TAKEN"}
        await take_over.give_back(["t"], timeout=30)
        assert all(world.owner.partitions[tp].leader in REAL for tp in world.tps)
        assert (BACK, "t") not in controller.image.mirrors
        await asyncio.sleep(1)
        assert {world.owner.partitions[tp].replicas for tp in world.tps} == {
            before[tp].replicas for tp in world.tps
        }
        world.stopped = True
        keeper.cancel()
        world.check()
        if world.broken is not None:
            raise world.broken

    run_virtual(main(True))
    run_virtual(main(False))


def test_a_switch_waits_until_what_it_leaves_is_forwarded() -> None:
    """Nothing is begun before, and nobody is held."""

    async def main() -> None:
        world = SwitchWorld(random.Random(1), partitions=2)
        controller = await linked(world)
        job = await controller.begin_promote(LINK, switch=True)
        world.start()
        keeper = asyncio.create_task(world.keep_in_sync())
        reasons = ["writes are not forwarded yet"]
        run = asyncio.create_task(driver(world, controller, lambda: next(iter(reasons), None)).run(job))
        await asyncio.sleep(5)
        assert {controller.image.partitions[LINK, tp].phase for tp in world.tps} == {Phase.CATCHING_UP}
        assert (BACK, "t") not in controller.image.mirrors
        reasons.clear()
        outcome = await asyncio.wait_for(run, 20)
        assert set(outcome.promoted) == set(world.tps), outcome.abandoned
        world.stopped = True
        keeper.cancel()

    run_virtual(main())
