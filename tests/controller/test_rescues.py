"""Topics whose own brokers were all away: given back by whoever is there when these return, from where they really end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest

from fleet.link_controller import LinkController
from tests.controller.simulation import LINK
from tests.controller.switch_world import BACK, REAL, SwitchWorld
from tests.controller.test_take_over_simulation import linked, opened
from tests.controller.virtual_loop import run_virtual


async def owner_is_away(seed: int = 1) -> tuple[SwitchWorld, LinkController]:
    """A link broker leads both partitions, and nobody gives anything back yet."""
    world = SwitchWorld(random.Random(seed), partitions=2)
    controller = await linked(world)
    world.start()
    await asyncio.sleep(0.5)
    assert all(world.acked[tp] for tp in world.tps)
    for broker in REAL:
        world.owner.fence(broker)
    await asyncio.sleep(0.1)
    assert {world.owner.partitions[tp].leader for tp in world.tps} == {800}
    return world, controller


async def until(predicate: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.05)


async def goes_on(world: SwitchWorld) -> None:
    """Its own brokers lead and take writes, and nothing that was acknowledged is gone."""
    assert {world.owner.partitions[tp].leader for tp in world.tps} <= set(REAL)
    assert world.overrides == {"min.insync.replicas": "2"}
    before = {tp: len(world.acked[tp]) for tp in world.tps}
    await until(lambda: all(len(world.acked[tp]) > before[tp] for tp in world.tps))
    world.check()
    world.stopped = True
    if world.broken is not None:
        raise world.broken


def run(main: Callable[[], Awaitable[None]]) -> None:
    run_virtual(main())


@pytest.mark.parametrize("after", [0.001, 0.1, 1.0, 15.0])
def test_a_rescue_that_was_cut_off_is_gone_on_with(after: float) -> None:
    """Its process is killed, or its time is over, while all brokers are away; the next round of any process ends it."""

    async def main() -> None:
        world, _ = await owner_is_away()
        keeper = asyncio.create_task(world.keep_in_sync())
        await until(lambda: world.phase(BACK, world.tps[0]) == "TAKING")
        await asyncio.sleep(after)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        controller = await opened(world)
        assert (BACK, "t") in controller.image.mirrors
        for broker in REAL:
            world.owner.unfence(broker)
        keeper = asyncio.create_task(world.keep_in_sync())
        await until(lambda: (BACK, "t") not in controller.image.mirrors)
        await goes_on(world)
        keeper.cancel()

    run(main)


def test_a_partition_that_is_back_may_lose_its_brokers_again() -> None:
    """It took records while another one of its topic was still waited for. What was written down of its end holds no more:
    its brokers must not cut off what they have acknowledged since."""

    async def main() -> None:
        world, controller = await owner_is_away()
        one, other = world.tps
        world.silent.add(other)
        for broker in REAL:
            world.owner.unfence(broker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await world.rescues()._once()
        assert world.owner.partitions[one].leader in REAL
        assert world.owner.partitions[other].leader == 800
        acked = len(world.acked[one])
        await until(lambda: len(world.acked[one]) > acked + 5 and 800 in world.owner.partitions[one].isr)
        for broker in REAL:
            world.owner.fence(broker)
        await until(lambda: world.owner.partitions[one].leader == 800)
        world.silent.clear()
        for broker in REAL:
            world.owner.unfence(broker)
        keeper = asyncio.create_task(world.keep_in_sync())
        await until(lambda: (BACK, "t") not in controller.image.mirrors)
        await goes_on(world)
        keeper.cancel()

    run(main)


def test_a_topic_that_waits_for_its_wave_is_given_back_meanwhile() -> None:
    """The switch is at work on other topics, for as long as it takes: its transactions may be open for ten minutes."""

    async def main() -> None:
        world, controller = await owner_is_away()
        await controller.begin_promote(LINK, switch=True)  # nobody has come to it
        keeper = asyncio.create_task(world.keep_in_sync())
        await until(lambda: world.phase(BACK, world.tps[0]) == "TAKING")
        await asyncio.sleep(15)  # longer than one round, so another one goes on with it
        for broker in REAL:
            world.owner.unfence(broker)
        await until(lambda: (BACK, "t") not in controller.image.mirrors)
        assert [job.topics for job in controller.image.running_jobs(LINK)]
        await goes_on(world)
        keeper.cancel()

    run(main)
