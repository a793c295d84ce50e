"""Promotes of one link take turns: while one is stuck and settled, no other is looked at, let alone undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
import pytest_asyncio

from controller.decide.mirrors import Leadership
from controller.errors import PromoteStuck
from controller.phases import Phase
from controller.state import JobStatus, MirrorTopic, PromoteJob
from fleet.link_controller import LinkController
from linker.links.runtime import LinkRuntime
from linker.promote import jobs as promotes_module
from linker.promote.driver import PromoteOutcome
from linker.promote.ports import PromoteProgress, PromoteSettings
from tests.controller.established import establish
from tests.fakes import FakeCluster
from tests.links.test_link_life import a_sidecar, properties, until_available
from wire.frames.types import TopicPartition

TOPICS = ("orders", "payments")


class Driver:
    """Instead of a PromoteDriver: told by the test when a run ends, and how."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    async def run(self, job: PromoteJob) -> PromoteOutcome:
        self.stage.log.append(f"run {job.id}")
        self.stage.report(job.id)
        result = await self.stage.ends[job.id]
        if isinstance(result, Exception):
            raise result
        return await self.stage.end(job, result)

    async def retreat(self) -> None:
        self.stage.log.append("retreat")

    async def resume(
        self, only: Collection[int] | None = None, *, why: str = "not begun before the sidecar restarted"
    ) -> list[PromoteOutcome]:
        self.stage.log.append(f"resume {sorted(only) if only is not None else 'all'}")
        jobs = [
            job for job in self.stage.controller.image.running_jobs("east") if only is None or job.id in only
        ]
        return [await self.stage.end(job, JobStatus.ABANDONED) for job in jobs]


class Stage:
    """A link that runs, with two mirrors and drivers of ours."""

    def __init__(self, runtime: LinkRuntime) -> None:
        self.runtime = runtime
        self.controller: LinkController = runtime.controller
        self.log: list[str] = []
        self.asked: list[str] = []
        self.ends: dict[int, asyncio.Future[Any]] = {}
        loop = asyncio.get_running_loop()
        for job_id in (1, 2):
            self.ends[job_id] = loop.create_future()

    def report(self, job_id: int) -> None:
        self.runtime.promotes._report(PromoteProgress(job_id=job_id, phase=Phase.CATCHING_UP, partitions={}))

    async def end(self, job: PromoteJob, status: JobStatus) -> PromoteOutcome:
        self.log.append(f"end {job.id}")
        await self.controller.end_promote(job, status, None, {})
        return PromoteOutcome(job_id=job.id, promoted=(), abandoned={}, phases_ms={})

    async def begin(self, topic: str) -> PromoteJob:
        job = await self.controller.begin_promote("east", [topic])
        self.runtime.start_promote(job, PromoteSettings())
        return job

    async def until(self, *entries: str) -> None:
        async with asyncio.timeout(30):
            while not set(entries) <= set(self.log):
                await asyncio.sleep(0.001)

    async def until_over(self, job: PromoteJob) -> None:
        async with asyncio.timeout(30):
            while self.controller.image.jobs["east", job.id].status is JobStatus.RUNNING:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(promotes_module, "_STUCK_PAUSE", 0.01)
    async with (
        FakeCluster(1, cluster_id="east") as source,
        a_sidecar(east=properties(source)) as sidecar,
    ):
        await until_available(sidecar, "east")
        runtime = sidecar.links["east"]
        async with asyncio.timeout(30):
            await (
                runtime.bring_up.settled.wait()
            )  # it has begun, and will not look at mirrors that are made by hand below
        stage = Stage(runtime)
        monkeypatch.setattr(runtime.promotes, "_driver", lambda settings=None: Driver(stage))
        monkeypatch.setattr(runtime.bring_up, "ask", stage.asked.append)
        for topic in TOPICS:
            await stage.controller.create_mirror(
                MirrorTopic(
                    link="east",
                    topic=topic,
                    topic_id=topic.encode().ljust(16),
                    source_topic_id=None,
                    partitions=1,
                )
            )
            await establish(
                stage.controller,
                "east",
                TopicPartition(topic, 0),
                leadership=Leadership(900, 3, (900,)),
                session_epoch=3,
                start_offset=0,
            )
        async with asyncio.timeout(30):
            while runtime.settling:
                await asyncio.sleep(0.001)
        stage.asked.clear()
        yield stage


async def test_the_second_begins_when_the_first_is_over(stage: Stage) -> None:
    first, second = await stage.begin("orders"), await stage.begin("payments")
    await stage.until("run 1")
    await asyncio.sleep(0.02)
    assert stage.log == ["run 1"]
    stage.ends[1].set_result(JobStatus.DONE)
    await stage.until("run 2")
    stage.ends[2].set_result(JobStatus.DONE)
    await stage.until_over(second)
    assert stage.log == ["run 1", "end 1", "run 2", "end 2"]
    assert stage.controller.image.jobs["east", first.id].status is JobStatus.DONE


async def test_a_stuck_one_is_settled_alone_and_the_next_still_runs(stage: Stage) -> None:
    first, second = await stage.begin("orders"), await stage.begin("payments")
    await stage.until("run 1")
    stage.ends[1].set_result(PromoteStuck("the target's controller is away"))
    await stage.until("run 2")
    assert stage.log == ["run 1", "resume [1]", "end 1", "run 2"]
    assert stage.controller.image.jobs["east", second.id].status is JobStatus.RUNNING
    stage.ends[2].set_result(JobStatus.DONE)
    await stage.until_over(second)
    assert stage.controller.image.jobs["east", first.id].status is JobStatus.ABANDONED
    assert stage.controller.image.jobs["east", second.id].status is JobStatus.DONE


async def test_a_bug_in_settling_a_stuck_one_does_not_leave_it_to_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resume = Driver.resume
    whys: list[str] = []

    async def breaks_once(driver: Driver, only: Collection[int] | None = None, *, why: str) -> Any:
        whys.append(why)
        if len(whys) == 1:
            raise ZeroDivisionError("a bug")
        return await resume(driver, only, why=why)

    monkeypatch.setattr(Driver, "resume", breaks_once)
    job = await stage.begin("orders")
    await stage.until("run 1")
    stage.ends[1].set_result(PromoteStuck("the target's controller is away"))
    await stage.until_over(job)
    assert whys == ["not begun: the target's controller is away"] * 2
    assert "settling promote 1 hit a bug" in caplog.text


async def test_afterwards_its_progress_is_history_and_its_topics_are_looked_at(stage: Stage) -> None:
    job = await stage.begin("orders")
    await stage.until("run 1")
    assert set(stage.runtime.promotes.progress) == {job.id}
    assert stage.asked == []
    stage.ends[1].set_result(JobStatus.ABANDONED)
    await stage.until_over(job)
    async with asyncio.timeout(30):
        while not stage.asked:
            await asyncio.sleep(0.001)
    assert stage.asked == ["orders"], "somebody may have cancelled its reassignment while the promote held it"
    assert stage.runtime.promotes.progress == {}
