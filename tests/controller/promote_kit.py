"""One promote in the simulated world, and what it left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from controller.phases import Phase
from controller.state import JobStatus
from fleet.link_controller import LinkController
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.ports import PromoteProgress, PromoteSettings
from tests.controller.simulation import (
    LINK,
    SIDECAR,
    World,
    mirrored,
    ports_of,
)
from tests.controller.virtual_loop import run_virtual

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
