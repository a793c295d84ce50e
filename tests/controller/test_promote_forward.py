"""A real broker is in the ISR and the link broker leads yet: only forward is left, and only with what was compared."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.image import ControllerImage
from controller.judge.alignment import CommonEnds, ReplicaPosition, SourceEnd, judge_common_ends
from controller.judge.hand_over import Settlement
from controller.phases import Phase
from controller.state import JobStatus
from fleet.link_controller import LinkController
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.forward_only import agree_with_source
from linker.promote.hand_over import HandOverRun
from linker.promote.ports import PromotePorts, PromoteProgress, PromoteSettings
from tests.controller.kraft_model import Broker
from tests.controller.promote_kit import once_at
from tests.controller.simulation import LINK, SIDECAR, World, mirrored, ports_of, promote_through_trouble
from tests.controller.test_failover import Doomed, driver_of
from tests.controller.test_promote_simulation import PROFILES
from tests.controller.virtual_loop import run_virtual
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

T0 = TopicPartition("t", 0)
FORWARD = "a real broker is in its ISR, so there is only forward"
# When the replica that restarted asks again: long after the fence's deadline.
BACK = 20.0
SETTINGS = PromoteSettings(fence_deadline=2.0, failover_deadline=2.0)


# Judgements.


def test_replicas_have_a_common_end_where_all_of_them_stand() -> None:
    def at(**positions: int) -> CommonEnds:
        known = {T0: {int(name[1:]): ReplicaPosition(offset, 11) for name, offset in positions.items()}}
        return judge_common_ends({T0: 9}, {T0: {1: 11, 2: 11}}, known)

    assert at(b1=9, b2=9) == CommonEnds({T0: 9}, {})
    assert at(b1=12, b2=12) == CommonEnds({T0: 12}, {})
    assert at(b1=9, b2=12).apart == {T0: "broker 1 is at 9 of 12"}
    assert at(b1=8, b2=8).apart == {T0: "broker 1 is at 8, broker 2 is at 8 of 9"}
    assert at(b1=9).apart == {T0: "broker 2 has not fetched of 9"}
    assert judge_common_ends({T0: 9}, {T0: {}}, {}).apart == {T0: "no target replica is known of 9"}


def test_a_position_of_an_earlier_life_of_a_broker_is_none() -> None:
    known = {T0: {1: ReplicaPosition(9, 11), 2: ReplicaPosition(9, -1)}}
    assert judge_common_ends({T0: 9}, {T0: {1: 111, 2: 12}}, known).apart == {
        T0: "broker 1 has not fetched of 9"
    }
    assert judge_common_ends({T0: 9}, {T0: {1: 11, 2: 12}}, known).ends == {T0: 9}


def test_the_source_has_to_agree_if_it_says_anything() -> None:
    assert agree_with_source({T0: 9}, {}) == {}
    assert agree_with_source({T0: 9}, {T0: SourceEnd(9, 9, 9)}) == {}
    assert agree_with_source({T0: 9}, {T0: SourceEnd(11, 11, 11)}) == {
        T0: "the replicas are at 9, the source ends at 11"
    }
    assert "not committed its end" in agree_with_source({T0: 9}, {T0: SourceEnd(9, 8, 8)})[T0]
    assert "a transaction is open" in agree_with_source({T0: 9}, {T0: SourceEnd(9, 9, 5)})[T0]


# The whole way.


@dataclass
class Scene:
    """Somebody else's AlterPartition has put broker 2 into the ISR when all was compared and before anything was sent; in
    the same moment broker 1 comes back from an unclean stop, some records short."""

    world: World
    controller: LinkController
    reports: list[PromoteProgress] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    happened: bool = False

    def __post_init__(self) -> None:
        world, fetched = self.world, self.world._fetched

        def fetch(tp: TopicPartition, broker: int, end: int) -> None:
            if broker != 1 or not self.happened or world.loop.time() >= BACK:
                fetched(tp, broker, end)

        world._fetched = fetch  # type: ignore[method-assign]

    def on_records(self, _: object) -> None:
        world = self.world
        if self.happened or self.controller.image.partitions[LINK, T0].phase is not Phase.VALIDATED:
            return
        self.happened = True
        state = world.real[T0]
        world.real[T0] = replace(state, isr=(SIDECAR, 2), partition_epoch=state.partition_epoch + 1)
        world.brokers[1] = Broker(1, 111)
        world.held[T0][1] -= 7
        world.publish()
        world.loop.call_at(BACK, self.back)

    def back(self) -> None:
        self.world._fetched(T0, 1, self.world.held[T0][2])  # as far as the others have come

    def driver(self, ports: PromotePorts | None = None) -> PromoteDriver:
        ports = ports_of(self.world) if ports is None else ports
        return PromoteDriver(self.controller, LINK, ports, SETTINGS, self.reports.append)

    def waits(self) -> set[str]:
        return {report.waiting_for or "" for report in self.reports}


async def a_scene() -> Scene:
    world = World(random.Random(5), partitions=1)
    scene = Scene(world, await mirrored(world))
    scene.controller.listeners.add(scene.on_records)
    carry_out = world.carry_out

    def noted(items: Collection[object]) -> Mapping[TopicPartition, int]:
        if world.visible.topics_by_name["t"].partitions[0].isr != (SIDECAR,):
            scene.sent.append(world.loop.time())
        return carry_out(items)  # type: ignore[arg-type]

    world.carry_out = noted  # type: ignore[method-assign,assignment]
    world.start()
    return scene


def promoted(scene: Scene, outcome: PromoteOutcome) -> None:
    world = scene.world
    if world.broken is not None:
        raise world.broken
    assert outcome.promoted == (T0,)
    assert world.held[T0] == {1: world.source[T0], 2: world.source[T0]}
    assert world.real[T0].leader == 1
    job = scene.controller.image.jobs[LINK, outcome.job_id]
    assert (job.status, job.warnings) == (JobStatus.DONE, ())


async def run(scene: Scene, ports: PromotePorts | None = None) -> PromoteOutcome:
    job = await scene.controller.begin_promote(LINK)
    async with asyncio.timeout(200):
        return await scene.driver(ports).run(job)


def test_a_replica_that_is_short_is_waited_for_however_long_the_fence_may_last() -> None:
    async def main() -> None:
        scene = await a_scene()
        outcome = await run(scene)
        promoted(scene, outcome)
        assert min(scene.sent) >= BACK
        assert f"t-0: {FORWARD}: broker 1 has not fetched of {scene.world.source[T0]}" in scene.waits()
        assert outcome.phases_ms["fenced_total"] >= 1000 * (BACK - 1)

    run_virtual(main())


def test_so_it_is_by_a_sidecar_that_was_started_again() -> None:
    async def main() -> None:
        scene = await a_scene()
        job = await scene.controller.begin_promote(LINK)
        first = asyncio.create_task(scene.driver().run(job))
        await asyncio.sleep(BACK / 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(200):
            [outcome] = await scene.driver().resume()
        promoted(scene, outcome)
        assert min(scene.sent) >= BACK

    run_virtual(main())


def test_what_somebody_wrote_past_the_fence_is_taken_along() -> None:
    """There is no way back, on which it would be answered."""

    async def main() -> None:
        scene = await a_scene()
        world = scene.world
        end = 0

        def write() -> None:
            nonlocal end
            assert world.fenced
            end = world.source[T0]
            world.append(T0, 3)

        world.loop.call_at(BACK / 2, write)
        promoted(scene, await run(scene))
        assert world.source[T0] == end + 3
        assert scene.controller.image.partitions[LINK, T0].aligned_end == end + 3

    run_virtual(main())


def test_the_source_is_asked_as_long_as_it_has_not_come_to_rest() -> None:
    async def main() -> None:
        scene = await a_scene()
        world = scene.world

        def opened() -> None:
            world.last_stable[T0] = world.high_watermark[T0] - 1

        world.loop.call_at(BACK / 2, opened)
        world.loop.call_at(2 * BACK, world.last_stable.clear)
        promoted(scene, await run(scene))
        assert min(scene.sent) >= 2 * BACK
        assert any("a transaction is open at the source" in why for why in scene.waits())

    run_virtual(main())


def test_tails_that_differ_are_not_handed_over() -> None:
    async def main() -> None:
        scene = await a_scene()
        world = scene.world

        def differs() -> None:
            world.tail_differs[T0] = "broker 1 ends with another batch"

        world.loop.call_at(BACK / 2, differs)
        world.loop.call_at(2 * BACK, world.tail_differs.clear)
        promoted(scene, await run(scene))
        assert min(scene.sent) >= 2 * BACK
        assert f"t-0: {FORWARD}: broker 1 ends with another batch" in scene.waits()

    run_virtual(main())


def test_a_replica_that_restarts_once_more_while_it_is_compared_is_compared_again() -> None:
    async def main() -> None:
        scene = await a_scene()
        world = scene.world

        def restarts() -> None:
            world.brokers[1] = Broker(1, 211)
            world.held[T0][1] -= 3
            world.loop.call_at(2 * BACK, scene.back)

        world.loop.call_at(BACK - 0.001, lambda: once_at(world, "tail check", restarts))
        promoted(scene, await run(scene))
        assert min(scene.sent) >= 2 * BACK

    run_virtual(main())


class Away:
    """linker.promote.ports.SourceEnds of a source that does not answer from some moment on."""

    def __init__(self, ports: PromotePorts, world: World) -> None:
        self._ends = ports.source_ends.ends
        self._world = world

    async def ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        if self._world.loop.time() > BACK / 2:
            raise LinkerError("the source is away")
        return await self._ends(tps, timeout=timeout)


def test_a_source_that_is_away_says_nothing_against_it() -> None:
    async def main() -> None:
        scene = await a_scene()
        ports = ports_of(scene.world)
        outcome = await run(scene, replace(ports, source_ends=Away(ports, scene.world)))
        assert outcome.promoted == (T0,)
        assert scene.world.broken is None
        assert min(scene.sent) >= BACK

    run_virtual(main())


@pytest.mark.parametrize("code", [31, 107])
def test_a_certain_refusal_is_no_attempt_that_may_still_land(code: int) -> None:
    """Broker 2 leaves the ISR again, and nothing was carried out: the partition goes back, and nobody has to make
    anything stale first."""

    async def main() -> None:
        scene = await a_scene()
        world = scene.world
        world.carry_out = lambda items: {item.tp: code for item in items}  # type: ignore[method-assign]

        def out() -> None:
            # As it was before anything was sent: the epoch proves nothing, the answers do.
            world.real[T0] = replace(world.real[T0], isr=(SIDECAR,))
            world.publish()

        world.loop.call_at(2 * BACK, out)
        outcome = await run(scene)
        assert set(outcome.abandoned) == {T0}
        assert world.broken is None
        assert world.forwarding(T0)
        assert world.sent > 1
        assert not any("revoke" in line for line in world.log)
        if code == 31:
            assert any("CLUSTER_ACTION" in why for why in scene.waits())

    run_virtual(main())


def test_a_fail_over_waits_as_well_and_never_asks_the_source() -> None:
    async def main() -> None:
        world = Doomed(random.Random(1), partitions=2)
        world.doom()
        controller = await mirrored(world)
        scene = Scene(world, controller)
        controller.listeners.add(scene.on_records)
        controller.listeners.add(lambda _: None if scene.happened else world.serve(controller))
        driver = driver_of(world, controller)
        driver._settings = SETTINGS
        job = await controller.begin_failover(LINK)
        async with asyncio.timeout(200):
            outcome = await driver.run(job)
        assert world.broken is None
        assert outcome.promoted == (T0,)  # nothing had begun of the other one, and its time was over
        assert world.held[T0][1] == world.held[T0][2] == 1000
        assert world.loop.time() >= BACK

    run_virtual(main())


# Random lives.


def meddle(world: World) -> None:
    """When a partition is VALIDATED, somebody may put a real broker into its ISR, and brokers may come back from an unclean
    stop with less than they had."""
    rng, seen = world.rng, set[TopicPartition]()

    def look() -> None:
        if world.stopped:
            return
        for path, (value, _) in list(world.store.nodes.items()):
            if not path.endswith("/state") or "VALIDATED" not in value:
                continue
            tp = TopicPartition("t", int(path.split("/")[-2]))
            if tp not in seen and world.led_by_link(tp):
                seen.add(tp)
                put_in(tp)
                restart()
                world.publish()
        world.loop.call_later(0.0007, look)

    def put_in(tp: TopicPartition) -> None:
        broker, state = rng.choice([1, 2]), world.real[tp]
        if rng.random() < 0.7 and broker not in state.isr and not world.brokers[broker].fenced:
            world.real[tp] = replace(
                state, isr=(*state.isr, broker), partition_epoch=state.partition_epoch + 1
            )

    def restart() -> None:
        broker = rng.choice([1, 2])
        if rng.random() < 0.6:
            world.brokers[broker] = Broker(broker, world.brokers[broker].epoch + 100)
            for tp in filter(world.led_by_link, world.tps):
                world.held[tp][broker] -= rng.randint(0, 5)
                delay = rng.choice([0.02, 3.0, 15.0])
                world.loop.call_later(delay, world._fetched, tp, broker, world.high_watermark[tp])

    look()


def test_random_lives_with_a_meddler() -> None:
    chooser, ended = random.Random("meddler"), set[Phase]()
    for _ in range(60):
        seed, profile = chooser.randrange(10**6), chooser.choice(list(PROFILES))
        crash_at = chooser.choice([None, chooser.randrange(1, 90)])

        async def main(seed: int = seed, profile: str = profile, crash_at: int | None = crash_at) -> None:
            world = World(random.Random(seed), partitions=2, chances=PROFILES[profile], crash_at=crash_at)
            meddle(world)
            controller, _ = await promote_through_trouble(world)
            ended.update(controller.image.partitions[LINK, tp].phase for tp in world.tps)

        try:
            run_virtual(main())
        except Exception as error:
            raise AssertionError(f"seed {seed}, {profile!r}, crash at {crash_at}: {error}") from error
    assert ended == {Phase.PROMOTED, Phase.ACTIVE}


@pytest.mark.parametrize("switch", [True, False])
def test_a_topic_that_is_switched_goes_back_as_a_whole(switch: bool) -> None:
    """The source's brokers get all of it back at once: an AlterPartition that lands after that would make two owners."""
    one, other, alone = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    settled = dict.fromkeys((one, other, alone), Settlement.IMPOSSIBLE) | {other: Settlement.OPEN}
    gone: list[list[TopicPartition]] = []

    async def go_back(reasons: Mapping[TopicPartition, str]) -> None:
        gone.append(sorted(reasons))

    async def nothing(*_args: object) -> None:
        return None

    context: Any = SimpleNamespace(
        switch=switch,
        link="l",
        job_id=1,
        ports=SimpleNamespace(hand_over=None),
        settings=PromoteSettings(backoff=0.001, max_backoff=0.001),
        controller=SimpleNamespace(image=ControllerImage()),
        waiting={},
        tell=lambda *_args: None,
        go_back=go_back,
    )
    run: Any = HandOverRun(context, cast(Any, None), None, {})
    run._settle, run._revoke = settled.get, nothing

    async def main() -> None:
        left = await run._retreat([one, other, alone], "time is over")
        assert gone == ([[alone]] if switch else [[one, alone]])
        assert other in left
        settled[other] = Settlement.IMPOSSIBLE
        assert await run._retreat(left, "time is over") == []
        assert gone[1] == ([one, other] if switch else [other])

    asyncio.run(main())
