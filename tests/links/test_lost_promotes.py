"""A promote or failover that is written down and that nobody runs ends, and nothing of it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from controller.decide.mirrors import Leadership
from controller.errors import ControllerError
from controller.operations import Operation
from controller.phases import Phase
from controller.state import JobStatus, MirrorTopic, PromoteJob, SidecarIdentity
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.links import running as running_module
from linker.links import source_reach
from linker.links.runtime import LinkRuntime
from linker.promote import jobs as promotes_module
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.ports import PromoteSettings
from linker.sidecar import Sidecar
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.links.test_link_life import a_sidecar
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

T0 = TopicPartition("orders", 0)
LOST = "not begun: the state store did not say in time that it was written down"
IDENTITY = SidecarIdentity(broker_id=900, incarnation_id=bytes(16), log_dir_id=bytes(16))
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


class Stage:
    """A link that runs, with one mirror, over a store that can be made to lose its answers."""

    def __init__(self, sidecar: Sidecar, ran: list[int]) -> None:
        self.sidecar = sidecar
        controller: Any = sidecar.controller
        self.controller: StoredController = controller
        self.ran = ran
        store: Any = controller._store
        self.store: MemoryStore = store
        self._commit = store.commit
        self.away = False  # nothing can be read or written
        self._tree = store.tree
        store.tree = self._read

    @property
    def runtime(self) -> LinkRuntime:
        return self.sidecar.links["east"]

    async def _read(self, path: str) -> Any:
        if self.away:
            raise StoreError("the store is away")
        return await self._tree(path)

    def lose(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """The next commit is carried out, and not answered."""

        async def commit(operations: Sequence[Operation], *, controller_epoch: int) -> None:
            self.store.commit = self._commit  # type: ignore[method-assign]
            await self._commit(operations, controller_epoch=controller_epoch)
            if then is not None:
                await then()
            raise StoreError("the connection was lost")

        self.store.commit = commit  # type: ignore[method-assign]

    def begin(self, failover: bool) -> Callable[[], Awaitable[PromoteJob]]:
        return (
            (lambda: self.controller.begin_failover("east"))
            if failover
            else (lambda: self.controller.begin_promote("east"))
        )

    async def ask(self, failover: bool = False) -> PromoteJob:
        return await self.runtime.begin_promote(self.begin(failover), PromoteSettings())

    async def until_run(self) -> None:
        async with asyncio.timeout(25):
            while not self.ran:
                await asyncio.sleep(0.001)

    async def until_ended(self, number: int = 1) -> PromoteJob:
        async with asyncio.timeout(30):
            while (
                job := self.controller.image.jobs.get(("east", number))
            ) is None or job.status is JobStatus.RUNNING:
                await asyncio.sleep(0.001)
            while self.runtime.settling:
                await asyncio.sleep(0.001)
        return job

    def as_before(self) -> bool:
        state = self.controller.image.partitions["east", T0]
        return (state.phase, state.failover) == (Phase.ACTIVE, None)


async def mirrored(controller: LinkController) -> None:
    mirror = MirrorTopic(link="east", topic="orders", topic_id=b"o" * 16, source_topic_id=None, partitions=1)
    await controller.create_mirror(mirror)
    leads = Leadership(900, 3, (900,))
    await establish(controller, "east", T0, leadership=leads, session_epoch=3, start_offset=0)


@pytest_asyncio.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(promotes_module, "_STUCK_PAUSE", 0.01)
    monkeypatch.setattr(promotes_module, "_SETTLE_TIMEOUT", 0.01)
    ran: list[int] = []

    async def run(driver: PromoteDriver, job: PromoteJob) -> Any:
        ran.append(job.id)
        await asyncio.Event().wait()

    monkeypatch.setattr(PromoteDriver, "run", run)
    async with a_sidecar(east=NOWHERE) as sidecar:
        async with asyncio.timeout(30):
            while sidecar.links["east"].settling:
                await asyncio.sleep(0.001)
        await mirrored(sidecar.controller)
        yield Stage(sidecar, ran)


@pytest.mark.parametrize("failover", [False, True])
async def test_one_whose_answer_was_lost_ends_and_can_be_asked_for_again(
    stage: Stage, failover: bool
) -> None:
    stage.lose()
    with pytest.raises(StoreError):
        await stage.ask(failover)
    assert stage.runtime.settling, "the next one is told to come again until it is known"
    job = await stage.until_ended()
    assert job.status is JobStatus.ABANDONED
    assert (job.reason or "").startswith(LOST)
    assert stage.as_before()
    again = await stage.ask(failover)
    await stage.until_run()
    assert (again.id, stage.ran) == (2, [2])


@pytest.mark.parametrize("failover", [False, True])
async def test_so_does_one_whose_request_was_over_before_the_commit_was(stage: Stage, failover: bool) -> None:
    """A cancelled commit may be carried out all the same."""
    committed = asyncio.Event()

    async def hang() -> None:
        committed.set()
        await asyncio.Event().wait()

    stage.lose(hang)
    asking = asyncio.create_task(stage.ask(failover))
    await committed.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await stage.until_ended()).status is JobStatus.ABANDONED
    assert stage.as_before()
    assert stage.ran == []


async def test_two_at_once_of_which_the_first_is_lost(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def hang() -> None:
        await go_on.wait()

    stage.lose(hang)
    first, second = asyncio.create_task(stage.ask()), asyncio.create_task(stage.ask())
    await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(StoreError):
        await first
    # It may see the first one's job, or come when that has ended; in neither case does the first one run.
    with pytest.raises(ControllerError, match="running already"):
        await second
    assert (await stage.until_ended()).status is JobStatus.ABANDONED
    assert stage.ran == []


async def test_one_that_shows_itself_when_the_state_is_read_anew_ends_too(stage: Stage) -> None:
    """Whoever began it was not the link itself, or is gone."""
    stage.lose()
    with pytest.raises(StoreError):
        await stage.controller.begin_promote("east")
    assert stage.controller.image.jobs == {}
    await stage.controller.save_identity(IDENTITY)
    assert (await stage.until_ended()).status is JobStatus.ABANDONED


async def test_a_store_that_stays_away_is_waited_for(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def away() -> None:
        stage.away = True

    stage.lose(away)
    with pytest.raises(StoreError):
        await stage.ask()
    async with asyncio.timeout(30):
        while "nobody runs failed: the store is away" not in caplog.text:
            await asyncio.sleep(0.001)
    assert stage.runtime.settling
    stage.away = False
    assert (await stage.until_ended()).status is JobStatus.ABANDONED


async def test_what_runs_is_left_alone_when_the_state_is_read_anew(stage: Stage) -> None:
    job = await stage.ask()
    stage.lose()
    with pytest.raises(StoreError):
        await stage.controller.save_identity(IDENTITY)
    await stage.controller.refresh()
    async with asyncio.timeout(30):
        while stage.runtime.settling:
            await asyncio.sleep(0.001)
    await stage.until_run()
    await asyncio.sleep(0.01)
    assert stage.controller.image.jobs["east", job.id].status is JobStatus.RUNNING
    assert stage.ran == [job.id]


async def test_nothing_runs_twice(stage: Stage) -> None:
    job = await stage.ask()
    with pytest.raises(LinkerError, match="promote 1 of link east runs already"):
        stage.runtime.start_promote(job, PromoteSettings())
    await stage.until_run()
    await asyncio.sleep(0.01)
    assert stage.ran == [1]


async def test_what_is_begun_while_the_last_run_is_settled_is_run_and_not_settled(stage: Stage) -> None:
    promotes = stage.runtime.promotes
    promotes.begin()
    job = await stage.ask()
    await asyncio.sleep(0.01)
    assert stage.ran == []
    await promotes.settle()
    await stage.until_run()
    await asyncio.sleep(0.01)
    assert stage.ran == [job.id]
    assert stage.controller.image.jobs["east", job.id].status is JobStatus.RUNNING


async def test_what_has_ended_before_its_turn_is_not_run(stage: Stage) -> None:
    """Written down in the last moment of a term, and settled by the next one, before anybody here heard of it."""
    job = await stage.controller.begin_promote("east")
    await stage.runtime.promotes.settle()
    assert stage.controller.image.jobs["east", job.id].status is JobStatus.ABANDONED
    stage.runtime.start_promote(job, PromoteSettings())
    await asyncio.sleep(0.01)
    assert stage.ran == []


@pytest.mark.parametrize("failover", [False, True])
async def test_one_that_a_dead_process_left_ends_at_the_next_start(failover: bool) -> None:
    async with a_sidecar() as sidecar:
        controller = sidecar.controller
        await controller.create_link("east", "east", NOWHERE)
        await mirrored(controller)
        begin = controller.begin_failover if failover else controller.begin_promote
        job = await begin("east")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(promotes_module, "_SETTLE_TIMEOUT", 0.1)
            sidecar.links.start(controller.image.links["east"])
            try:
                async with asyncio.timeout(30):
                    while controller.image.jobs["east", job.id].status is JobStatus.RUNNING:
                        await asyncio.sleep(0.001)
            finally:
                await sidecar.links.stop("east")
        ended = controller.image.jobs["east", job.id]
        assert ended.status is JobStatus.ABANDONED
        assert (ended.reason or "").startswith("not begun before the sidecar restarted")
        state = controller.image.partitions["east", T0]
        assert (state.phase, state.failover) == (Phase.ACTIVE, None)


async def test_of_a_link_that_does_not_run_nothing_is_written_down(stage: Stage) -> None:
    runtime = stage.runtime
    await stage.sidecar.links.stop("east")
    with pytest.raises(LinkerError, match="link east is not running"):
        await runtime.begin_promote(stage.begin(False), PromoteSettings())
    assert stage.controller.image.jobs == {}


async def test_a_fail_over_runs_on_a_link_whose_source_cannot_even_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What led to the source may be gone with it. The link is made anew when the failover is over, and not before."""
    monkeypatch.setattr(running_module, "_RESTART", 0.05)
    monkeypatch.setattr(source_reach, "_UNUSABLE_FOR", 0.05)
    over = asyncio.Event()
    ran: list[int] = []

    async def run(driver: PromoteDriver, job: PromoteJob) -> Any:
        ran.append(job.id)
        await over.wait()
        await driver._controller.end_promote(job, JobStatus.ABANDONED, "as the test wants", {})
        return PromoteOutcome(job_id=job.id, promoted=(), abandoned={}, phases_ms={})

    monkeypatch.setattr(PromoteDriver, "run", run)
    async with a_sidecar(east={**NOWHERE, "sasl.password": "${file:/none/links/not-there}"}) as sidecar:
        first = sidecar.links["east"]
        async with asyncio.timeout(30):
            while sidecar.links["east"] is first:
                await asyncio.sleep(0.001)
            while (runtime := sidecar.links["east"]).settling:
                await asyncio.sleep(0.001)
        assert runtime.unusable is not None
        await mirrored(sidecar.controller)
        await runtime.begin_promote(lambda: sidecar.controller.begin_failover("east"), PromoteSettings())
        async with asyncio.timeout(25):
            while not ran:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        assert ran == [1]
        assert sidecar.links["east"] is runtime
        over.set()
        async with asyncio.timeout(30):
            while sidecar.links["east"] is runtime:
                await asyncio.sleep(0.001)
