"""A promote whose source adds a partition: taken along before writes are held, promoted last where a part is handed over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from dataclasses import replace

from controller.decide.mirrors import Leadership
from controller.errors import Refused
from controller.phases import Phase
from controller.state import JobStatus, PromoteJob
from fleet.link_controller import LinkController
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.ports import PromoteSettings
from tests.controller.established import establish
from tests.controller.simulation import LINK, World, mirrored, ports_of
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition

ADDED = TopicPartition("t", 2)


class Growing:
    """The source's topic has a third partition from the `at`-th question on; its copy begins `after` seconds."""

    def __init__(self, world: World, controller: LinkController, at: int, after: float, breaks: bool) -> None:
        self.world, self.controller = world, controller
        self.at, self.after, self.breaks = at, after, breaks
        self.asked = 0
        self.tasks: list[asyncio.Task[None]] = []

    def _there(self) -> int:
        self.asked += 1
        return 3 if self.asked >= self.at else 2

    async def partitions(self, topics: Collection[str], *, timeout: float) -> Mapping[str, int]:
        return {"t": self._there()}

    async def grow(self, topics: Collection[str], *, timeout: float) -> None:
        if self._there() > self.controller.image.mirrors[LINK, "t"].partitions:
            try:
                await self.controller.grow_mirror(LINK, "t", 3, [(1, 2)])
            except Refused:
                return
            self.tasks.append(asyncio.create_task(self._established()))

    async def _established(self) -> None:
        await asyncio.sleep(self.after)
        if self.breaks:
            await self.controller.fail_partition(LINK, ADDED, "it was deleted at the target")
            return
        real = self.world.real[ADDED]
        await establish(
            self.controller,
            LINK,
            ADDED,
            leadership=Leadership(real.leader, real.leader_epoch, real.isr),
            session_epoch=5,
            start_offset=0,
        )


def promote(
    at: int, settings: PromoteSettings | None = None, *, after: float = 1.0, breaks: bool = False
) -> tuple[PromoteOutcome, PromoteJob, LinkController, World]:
    async def main() -> tuple[PromoteOutcome, PromoteJob, LinkController, World]:
        world = World(random.Random(5), partitions=3)
        every, world.tps, world.partitions = world.tps, world.tps[:2], 2
        controller = await mirrored(world)
        world.tps, world.partitions = every, 3
        source = Growing(world, controller, at, after, breaks)
        ports = replace(ports_of(world), growth=source.grow, source_topics=source)
        job = await controller.begin_promote(LINK)
        assert len(job.partitions) == 2
        world.start()
        outcome = await PromoteDriver(controller, LINK, ports, settings).run(job)
        world.stopped = True
        await asyncio.sleep(10)
        if world.broken is not None:
            raise world.broken
        return outcome, controller.image.jobs[LINK, job.id], controller, world

    return run_virtual(main())


def test_added_before_the_fence_it_is_promoted_with_the_others() -> None:
    outcome, job, _, _ = promote(1)
    assert set(outcome.promoted) == {TopicPartition("t", index) for index in range(3)}
    assert job.status is JobStatus.DONE
    assert job.partitions[-1] == ADDED
    assert job.phases_ms["catch_up"] >= 1000, "it waited for the copy"


def test_a_copy_that_does_not_begin_is_waited_for_as_long_as_the_others() -> None:
    outcome, job, _, world = promote(1, PromoteSettings(catch_up_timeout=3.0), after=600.0)
    assert not outcome.promoted
    assert "t-2: it was added at the source, and its copy is yet to begin" in (job.reason or "")
    assert not world.fenced


def test_one_that_fails_gives_the_others_back() -> None:
    outcome, job, controller, world = promote(1, breaks=True)
    assert not outcome.promoted
    assert "t-2: it is FAILED" in (job.reason or "")
    assert controller.image.partitions[LINK, ADDED].phase is Phase.FAILED
    assert all(controller.image.partitions[LINK, tp].phase is Phase.ACTIVE for tp in world.tps[:2])


def test_added_behind_the_fence_gives_the_others_back() -> None:
    outcome, job, controller, world = promote(3)
    assert not outcome.promoted
    assert (
        "the source topic has 3 partitions now, the mirror 2; it does not take the others yet: its writes are held"
        in (job.reason or "")
    )
    assert all(controller.image.partitions[LINK, tp].phase is Phase.ACTIVE for tp in world.tps[:2])
    assert not world.fenced


def test_added_after_a_part_was_handed_over_it_is_promoted_last() -> None:
    outcome, job, _, _ = promote(5, PromoteSettings(batch_partitions=1, first_partitions=1))
    assert set(outcome.promoted) == {TopicPartition("t", index) for index in range(3)}
    assert job.status is JobStatus.DONE
    assert job.warnings == ()


def test_added_between_two_batches_behind_a_fence_it_is_promoted_last() -> None:
    outcome, job, _, _ = promote(6, PromoteSettings(batch_partitions=1, first_partitions=1))
    assert len(outcome.promoted) == 3
    assert job.warnings == ()
