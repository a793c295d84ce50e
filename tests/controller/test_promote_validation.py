"""A promote and the validator: what keeps the fence open, what only warns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from controller.phases import Phase
from controller.proof import EvidenceStatus, ValidationPolicy
from fleet.link_controller import LinkController
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.ports import PromoteSettings, Unproved
from tests.controller.simulation import LINK, World, mirrored, ports_of
from tests.controller.validation_kit import an_advance
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition

Missing = Mapping[TopicPartition, Unproved]


class FakeValidation:
    """`missing(seconds since it runs)` says what is not proved."""

    def __init__(self, world: World, missing: Callable[[float], Missing]) -> None:
        self.world = world
        self.missing = missing
        self.began: float | None = None
        self.running = False
        self.runs = 0

    def run(self, tps: Collection[TopicPartition]) -> AbstractAsyncContextManager[None]:
        return self._run(tps)

    @asynccontextmanager
    async def _run(self, tps: Collection[TopicPartition]) -> AsyncIterator[None]:
        assert set(tps) <= set(self.world.tps)
        self.runs += 1
        self.running, self.began = True, self.world.loop.time()
        try:
            yield
        finally:
            self.running = False

    def unproved(self, tps: Collection[TopicPartition]) -> Missing:
        assert self.running
        assert not self.world.fenced
        assert self.began is not None
        return {tp: one for tp, one in self.missing(self.world.loop.time() - self.began).items() if tp in tps}

    async def wait(self, *, timeout: float) -> None:
        await asyncio.sleep(min(timeout, 0.1))


def promote(
    policy: ValidationPolicy,
    missing: Callable[[list[TopicPartition], float], Missing],
    *,
    timeout: float = 30.0,
    beside: Callable[[LinkController], None] | None = None,
    without: bool = False,
) -> tuple[LinkController, PromoteOutcome, FakeValidation, list[str]]:
    async def main() -> tuple[LinkController, PromoteOutcome, FakeValidation, list[str]]:
        world = World(random.Random(5), partitions=2)
        controller = await mirrored(world)
        validation = FakeValidation(world, lambda since: missing(world.tps, since))
        ports = replace(ports_of(world), validation=None if without else validation)
        waited: list[str] = []
        settings = PromoteSettings(validation=policy, catch_up_timeout=timeout)
        driver = PromoteDriver(
            controller, LINK, ports, settings, lambda now: waited.append(now.waiting_for or "")
        )
        job = await controller.begin_promote(LINK, validation=policy)
        if beside is not None:
            beside(controller)
        world.start()
        outcome = await driver.run(job)
        world.stopped = True
        await asyncio.sleep(10)
        if world.broken is not None:
            raise world.broken
        assert not validation.running
        return controller, outcome, validation, waited

    return run_virtual(main())


def never(tps: list[TopicPartition], _: float) -> Missing:
    return {tps[1]: Unproved("nothing of broker 1's replica is validated yet")}


def test_the_fence_waits_until_all_is_proved() -> None:
    def missing(tps: list[TopicPartition], since: float) -> Missing:
        return {tps[0]: Unproved("800 offsets before the end")} if since < 7 else {}

    controller, outcome, validation, waited = promote(ValidationPolicy.REQUIRE, missing)
    assert len(outcome.promoted) == 2
    assert outcome.phases_ms["catch_up"] >= 7000
    assert any("t-0: 800 offsets before the end" in one for one in waited)
    assert validation.runs == 1
    job = controller.image.jobs[LINK, outcome.job_id]
    assert job.evidence is not None
    assert job.evidence.status is EvidenceStatus.PENDING


def test_what_is_not_proved_in_time_is_not_promoted() -> None:
    controller, outcome, _, _ = promote(ValidationPolicy.REQUIRE, never, timeout=5)
    assert not outcome.promoted
    assert "not caught up within 5 s: t-1: nothing of broker 1's replica" in (outcome.reason or "")
    assert all(state.phase is Phase.ACTIVE for state in controller.image.link_partitions(LINK))
    assert controller.image.jobs[LINK, outcome.job_id].evidence is None


def test_a_validator_that_cannot_work_ends_it_at_once() -> None:
    def missing(tps: list[TopicPartition], _: float) -> Missing:
        return dict.fromkeys(tps, Unproved("pyspark is not installed", failing=True, hopeless=True))

    _, outcome, _, _ = promote(ValidationPolicy.REQUIRE, missing)
    assert not outcome.promoted
    assert "cannot be: t-0: pyspark is not installed" in (outcome.reason or "")
    assert outcome.phases_ms["catch_up"] < 1000


def test_trouble_that_may_pass_is_waited_for() -> None:
    def missing(tps: list[TopicPartition], since: float) -> Missing:
        return dict.fromkeys(tps, Unproved("the source is away", failing=True)) if since < 3 else {}

    _, outcome, _, _ = promote(ValidationPolicy.REQUIRE, missing)
    assert len(outcome.promoted) == 2
    assert outcome.phases_ms["catch_up"] >= 3000


def test_a_warning_goes_into_the_job() -> None:
    def missing(tps: list[TopicPartition], since: float) -> Missing:
        return {tps[1]: Unproved("java is not installed", failing=since > 2)}

    controller, outcome, _, waited = promote(ValidationPolicy.WARN, missing)
    assert len(outcome.promoted) == 2
    assert outcome.phases_ms["catch_up"] >= 2000  # it was tried first
    assert any("java" in one for one in waited)
    assert controller.image.jobs[LINK, outcome.job_id].warnings == ("t-1: java is not installed",)


def test_skip_asks_nobody() -> None:
    controller, outcome, validation, _ = promote(ValidationPolicy.SKIP, never)
    assert len(outcome.promoted) == 2
    assert validation.runs == 0
    assert controller.image.jobs[LINK, outcome.job_id].evidence is None


def test_a_validation_that_is_required_needs_a_validator() -> None:
    _, outcome, _, _ = promote(ValidationPolicy.REQUIRE, never, without=True)
    assert "there is no validator" in (outcome.reason or "")


def test_a_mismatch_that_is_found_while_it_catches_up_ends_it() -> None:
    async def find(controller: LinkController) -> None:
        await asyncio.sleep(3)
        tp = TopicPartition("t", 0)
        epoch = controller.image.partitions[LINK, tp].session_epoch
        await controller.advance_validation(LINK, [an_advance(tp, epoch, None, 5, mismatch=5)])

    tasks: list[asyncio.Task[None]] = []
    controller, outcome, _, _ = promote(
        ValidationPolicy.REQUIRE,
        never,
        beside=lambda controller: tasks.append(asyncio.get_running_loop().create_task(find(controller))),
    )
    assert not outcome.promoted
    assert "the mirror failed: t-0: broker 1's replica differs from the source at offset 5" in (
        outcome.reason or ""
    )
    phases = {state.partition: state.phase for state in controller.image.link_partitions(LINK)}
    assert phases == {0: Phase.FAILED, 1: Phase.ACTIVE}
