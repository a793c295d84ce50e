"""A source that refuses writes while a promote is under way: closed only behind the fence, opened before anything is
forwarded again, whatever dies when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from controller import codec
from controller.decide.mirrors import Leadership
from controller.decide.source_fence import debts, whole_topics
from controller.errors import PromoteStuck, Refused, SourceClosed
from controller.image import ControllerImage
from controller.phases import HELD, LED_ELSEWHERE, Phase
from controller.state import Attempt, JobStatus, MirrorTopic, PromoteJob
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.promote.driver import PromoteDriver
from linker.promote.ports import PromotePorts, PromoteSettings
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.controller.simulation import LINK, World, mirrored, ports_of
from tests.controller.virtual_loop import run_virtual
from wire.errors import BrokerError, ConnectionLost
from wire.frames.types import TopicPartition

SETTINGS = PromoteSettings(fence_source=True, insist_timeout=5.0, fence_deadline=3.0)


class Source:
    """What outlives the sidecar: the topics that the source refuses writes to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed: set[str] = set()
        self.theirs: set[str] = set()
        self.trouble: Exception | None = None  # of opening
        self.no_answer: Exception | None = None  # of closing, which was carried out or not
        self.carried_out = True
        self.no_answer_to_open = 0  # how often
        self.calls: list[str] = []

    async def watch(self) -> None:
        while True:
            for tp in self.world.tps:
                if self.world.forwarding(tp) and tp.topic in self.closed:
                    self.world.fail(f"{tp} is forwarded to a source that refuses it")
            await asyncio.sleep(0.0002)


class Fence:
    """One life's port."""

    def __init__(self, source: Source, controller: LinkController) -> None:
        self.source = source
        self.controller = controller
        self.generation = source.world.generation

    async def _gate(self, label: str) -> None:
        await self.source.world.gate(self.generation, label)

    async def closed(self, topics: Collection[str], *, timeout: float) -> Collection[str]:
        await self._gate("closed?")
        return self.source.theirs.intersection(topics)

    async def close(self, topics: Collection[str], *, timeout: float) -> None:
        await self._gate("close before")
        world = self.source.world
        noted = {topic for job in self.controller.image.jobs.values() for topic in job.source_fenced}
        for topic in topics:
            if topic not in noted | self.source.theirs:
                world.fail(f"{topic} is closed, and nobody would know after a crash")
        if self.source.carried_out:
            self.source.closed.update(topics)
            self.source.calls.append("close")
        await self._gate("close after")
        if self.source.no_answer is not None:
            raise self.source.no_answer

    async def open(self, topics: Collection[str], *, timeout: float) -> None:
        await self._gate("open before")
        if self.source.trouble is not None:
            raise self.source.trouble
        self.source.closed.difference_update(topics)
        self.source.calls.append("open")
        await self._gate("open after")
        if self.source.no_answer_to_open:
            self.source.no_answer_to_open -= 1
            raise ConnectionLost("no answer", sent=True)


def ports(world: World, source: Source, controller: LinkController) -> PromotePorts:
    return replace(ports_of(world), source_fence=Fence(source, controller))


def live(
    seed: int,
    *,
    prepare: Callable[[World, Source], None] = lambda _w, _s: None,
    crash_at: int | None = None,
    settings: PromoteSettings = SETTINGS,
) -> tuple[World, Source, PromoteJob, set[Phase]]:
    """One promote, with a crash at the given gate and another life after it."""

    async def main() -> tuple[World, Source, PromoteJob, set[Phase]]:
        world = World(random.Random(seed), partitions=2)
        source = Source(world)
        controller = await mirrored(world)
        world.store.gated = False
        job = await controller.begin_promote(LINK)
        world.store.gated = True
        prepare(world, source)
        world.start()
        watching = asyncio.create_task(source.watch())
        world.crash_at, world.gates = crash_at, 0
        run = asyncio.create_task(
            PromoteDriver(controller, LINK, ports(world, source, controller), settings).run(job)
        )
        died = asyncio.create_task(world.death.wait())
        await asyncio.wait({run, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if world.crashed:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await asyncio.sleep(world.rng.choice([0.0, 0.5]))
            controller = await again(world, source)
        else:
            await run
        world.stopped = True
        await asyncio.sleep(1)
        watching.cancel()
        if world.broken is not None:
            raise world.broken
        phases = {state.phase for state in controller.image.link_partitions(LINK)}
        return world, source, controller.image.jobs[LINK, job.id], phases

    return run_virtual(main())


async def again(world: World, source: Source) -> LinkController:
    world.crash_at = None
    world.store.gated = False
    controller = await StoredController.open(world.store, now=lambda: int(world.loop.time() * 1000))
    world.store.gated = True
    world.fenced = {s.tp for s in controller.image.link_partitions(LINK) if s.phase in HELD | LED_ELSEWHERE}
    world.up = True
    world.visible = world.first_image
    world.publish()
    driver = PromoteDriver(controller, LINK, ports(world, source, controller), PromoteSettings())
    for _ in range(20):
        try:
            await driver.retreat()
            await driver.resume()
            return controller
        except PromoteStuck:
            await asyncio.sleep(0.1)
    raise AssertionError("resume never came to an end")


def somebody_writes(world: World, _source: Source) -> None:
    def write() -> None:
        if world.tps[1] in world.fenced:
            world.append(world.tps[1], 1)
        world.loop.call_later(0.001, write)

    write()


def settled(source: Source, job: PromoteJob, phases: set[Phase]) -> None:
    """Closed for good where the target is the owner, open where writes are still forwarded; and the job says which."""
    if phases == {Phase.PROMOTED}:
        assert (source.closed, job.source_fenced) in (({"t"}, ("t",)), (set(), ())), (
            "a later life does not close it"
        )
    else:
        assert phases == {Phase.ACTIVE}
        assert source.closed == set()
        # A later life does not know whether a request of an earlier one is still under way.
        assert job.source_fenced in ((), ("t",))


def test_closed_behind_the_fence_and_left_closed() -> None:
    _, source, job, phases = live(1)
    assert phases == {Phase.PROMOTED}
    assert source.calls == ["close"]
    assert (source.closed, job.source_fenced) == ({"t"}, ("t",))


def test_opened_before_writes_are_forwarded_again() -> None:
    _, source, job, phases = live(2, prepare=somebody_writes)
    assert phases == {Phase.ACTIVE}
    assert source.calls == ["close", "open"]
    assert (source.closed, job.source_fenced) == (set(), ())


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_close_without_an_answer_stays_a_debt(carried_out: bool) -> None:
    """It may be carried out after the source was opened."""

    def prepare(_world: World, source: Source) -> None:
        source.no_answer = ConnectionLost("no answer", sent=True)
        source.carried_out = carried_out

    _, source, job, phases = live(8, prepare=prepare)
    assert phases == {Phase.ACTIVE}
    assert source.calls == (["close", "open"] if carried_out else ["open"])
    assert (source.closed, job.source_fenced) == (set(), ("t",))


def test_an_opening_without_an_answer_stays_a_debt() -> None:
    """It may be carried out behind the fence of the next promote."""

    def prepare(world: World, source: Source) -> None:
        somebody_writes(world, source)
        source.no_answer_to_open = 1

    _, source, job, phases = live(10, prepare=prepare)
    assert phases == {Phase.ACTIVE}
    assert source.calls == ["close", "open", "open"]
    assert (source.closed, job.source_fenced) == (set(), ("t",))


def test_a_broken_store_does_not_keep_producers_held() -> None:
    async def main() -> None:
        world = World(random.Random(9))
        source = Source(world)
        controller = await mirrored(world)
        job = await controller.begin_promote(LINK)
        world.start()
        driver = PromoteDriver(controller, LINK, ports(world, source, controller), SETTINGS)
        run = asyncio.create_task(driver.run(job))
        while "close" not in source.calls:
            await asyncio.sleep(0.0005)
        world.store.failing = 10**6
        with pytest.raises(StoreError):
            await run
        assert source.calls == ["close", "open"]
        assert not source.closed
        assert all(world.forwarding(tp) for tp in world.tps)
        assert controller.image.jobs[LINK, job.id].source_fenced == ("t",)

    run_virtual(main())


def test_without_being_asked_for_it_is_not_closed() -> None:
    _, source, job, _ = live(3, settings=PromoteSettings())
    assert (source.calls, job.source_fenced) == ([], ())


def test_what_somebody_else_has_closed_is_not_ours_to_open() -> None:
    def prepare(_world: World, source: Source) -> None:
        source.theirs = {"t"}

    _, _, job, phases = live(4, prepare=prepare)
    assert (phases, job.source_fenced) == ({Phase.PROMOTED}, ())


@pytest.mark.parametrize("prepare", [lambda _w, _s: None, somebody_writes], ids=["promoted", "abandoned"])
def test_dies_at_every_gate(prepare: Callable[[World, Source], None]) -> None:
    world, _, _, _ = live(5, prepare=prepare)
    assert world.gates > 10
    closed = 0
    for crash_at in range(1, world.gates + 1):
        died, source, job, phases = live(5, prepare=prepare, crash_at=crash_at)
        closed += "close" in source.calls
        try:
            settled(source, job, phases)
            assert job.status is not JobStatus.RUNNING
        except AssertionError as error:
            raise AssertionError(f"died at gate {crash_at}: {error}\n  " + "\n  ".join(died.log)) from error
    assert closed > 3, "few of them have died while it was closed"


def test_a_source_that_is_away_is_a_debt_and_one_that_refuses_is_insisted_on() -> None:
    def away(world: World, source: Source) -> None:
        somebody_writes(world, source)
        source.trouble = ConnectionLost("it is away", sent=False)
        world.forwarding = lambda tp: False  # type: ignore[method-assign]

    _, source, job, phases = live(6, prepare=away)
    assert phases == {Phase.ACTIVE}
    assert (source.closed, job.source_fenced) == ({"t"}, ("t",))

    def refuses(world: World, source: Source) -> None:
        somebody_writes(world, source)
        source.trouble = BrokerError(31, message="no", api="delete_acls")

    with pytest.raises(PromoteStuck, match="letting the source accept writes again"):
        live(7, prepare=refuses)


async def test_debts_are_of_jobs_that_are_over_and_topics_that_are_forwarded() -> None:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("l", "cluster", {})
    for topic in ("a", "b"):
        await controller.create_mirror(
            MirrorTopic(
                link="l", topic=topic, topic_id=topic.encode() * 16, source_topic_id=None, partitions=2
            )
        )
        for index in range(2):
            await establish(
                controller,
                "l",
                TopicPartition(topic, index),
                leadership=Leadership(900, 3, (900,)),
                session_epoch=3,
                start_offset=0,
            )
    job = await controller.begin_promote("l")
    await controller.note_source_fence("l", job.id, closed=["b", "a"])
    assert controller.image.jobs["l", job.id].source_fenced == ("a", "b")
    assert debts(controller.image, "l") == {}, "it is running"
    tps = [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert whole_topics(controller.image, "l", [*tps, TopicPartition("b", 0)]) == (["a"], ["b"])
    await controller.end_promote(job, JobStatus.ABANDONED, "no", {})
    assert debts(controller.image, "l") == {job.id: ["a", "b"]}
    done = [replace(controller.image.partitions["l", tp], phase=Phase.PROMOTED) for tp in tps]
    controller.image.replay(done)
    assert debts(controller.image, "l") == {job.id: ["b"]}
    await controller.note_source_fence("l", job.id, opened=["b"])
    ended = controller.image.jobs["l", job.id]
    assert ended.source_fenced == ("a",)
    assert debts(controller.image, "l") == {}
    path, value = codec.path_of(ended), codec.encode(ended)
    assert codec.decode(path, value) == ended


async def abandoned(*topics: str, promoted: Collection[str] = ()) -> LinkController:
    """A promote of these topics that was given up while their source was closed, when some had been promoted."""
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("l", "cluster", {})
    for topic in topics:
        mirror = MirrorTopic(
            link="l", topic=topic, topic_id=topic.encode() * 16, source_topic_id=None, partitions=1
        )
        await controller.create_mirror(mirror)
        leads = Leadership(900, 3, (900,))
        await establish(
            controller, "l", TopicPartition(topic, 0), leadership=leads, session_epoch=3, start_offset=0
        )
    job = await controller.begin_promote("l")
    await controller.note_source_fence("l", job.id, closed=topics)
    for tp in [TopicPartition(topic, 0) for topic in promoted]:
        for phase in (Phase.CATCHING_UP, Phase.FENCED):
            await controller.advance("l", [tp], phase)
        await controller.advance("l", [tp], Phase.ALIGNED, aligned_ends={tp: 0})
        attempt = Attempt(leader_epoch=3, partition_epoch=1)
        await controller.advance("l", [tp], Phase.VALIDATED, attempts={tp: attempt})
        for phase in (Phase.HANDED_OVER, Phase.PROMOTED):
            await controller.advance("l", [tp], phase)
    await controller.end_promote(job, JobStatus.ABANDONED, "the source was away", {})
    return controller


async def test_a_debt_outlives_its_mirror() -> None:
    controller = await abandoned("a", "b")
    with pytest.raises(
        SourceClosed, match="may still refuse writes to a, because promote 1 was abandoned"
    ) as refused:
        await controller.delete_mirror("l", "a")
    assert refused.value.topics == ["a"]
    assert ("l", "a") in controller.image.mirrors
    await controller.delete_mirror("l", "a", force=True)
    assert debts(controller.image, "l") == {1: ["a", "b"]}
    await controller.note_source_fence("l", 1, opened=["b"])
    await controller.delete_mirror("l", "b")
    with pytest.raises(SourceClosed, match="refuse writes to a,"):
        await controller.delete_link("l")
    await controller.note_source_fence("l", 1, opened=["a"])
    assert debts(controller.image, "l") == {}
    await controller.delete_link("l")
    assert controller.image.links == {}


async def test_a_link_with_debts_is_deleted_by_force_only() -> None:
    controller = await abandoned("a")
    with pytest.raises(Refused, match="still mirrors a"):
        await controller.delete_link("l", force=True)
    await controller.delete_mirror("l", "a", force=True)
    await controller.delete_link("l", force=True)
    assert controller.image.jobs == {}


async def test_what_was_promoted_stays_closed_when_its_mirror_is_deleted() -> None:
    """Also of a job that did not promote all it was to, also in the next life."""
    controller = await abandoned("a", "b", promoted=["a"])
    assert debts(controller.image, "l") == {1: ["b"]}
    await controller.delete_mirror("l", "a")
    job = controller.image.jobs["l", 1]
    assert (job.source_fenced, job.closed_for_good) == (("a", "b"), ("a",))
    assert codec.decode(codec.path_of(job), codec.encode(job)) == job
    assert ControllerImage.load(controller.image.nodes()).jobs["l", 1] == job
    assert debts(controller.image, "l") == {1: ["b"]}
    await controller.note_source_fence("l", 1, opened=["a", "b"])
    assert controller.image.jobs["l", 1].closed_for_good == ()


async def test_a_job_that_promoted_all_leaves_no_debt_in_a_store_from_before() -> None:
    """Which did not keep that a topic had ended when its mirror was deleted."""
    job = PromoteJob(
        id=1, link="l", partitions=(TopicPartition("a", 0),), status=JobStatus.DONE, source_fenced=("a",)
    )
    value = codec.encode(job)
    assert "closed_for_good" not in value
    image = ControllerImage()
    image.replay([job])
    assert debts(image, "l") == {}
    image.replay([replace(job, status=JobStatus.ABANDONED)])
    assert debts(image, "l") == {1: ["a"]}
