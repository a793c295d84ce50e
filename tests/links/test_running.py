"""The links of a process, while another sidecar decides: one runtime for each, whatever is committed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.state import Link
from linker.links.running import RunningLinks
from wire.task_group import TaskGroup

EAST = Link(name="east", source_cluster_id="cluster", properties={"client.id": "a"})


class Runtime:
    """As much of a LinkRuntime as whoever runs it asks; it ends when it may."""

    def __init__(self, link: Link, may_end: asyncio.Event) -> None:
        self.link, self.name = link, link.name
        self.runs = False
        self.forwards = False
        self.followed = 0
        self.fetcher = SimpleNamespace(partitions={}, remove=lambda tps: None)
        self._may_end = may_end

    async def run(self) -> None:
        self.runs = True
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        try:
            await asyncio.Event().wait()
        finally:
            await self._may_end.wait()
            self.runs = False

    def follow(self, records: Sequence[Any]) -> None:
        self.followed += 1


class Stage:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.made: list[Runtime] = []
        self.wanted: dict[str, Link] = {}
        controller: Any = SimpleNamespace(is_controller=False, image=SimpleNamespace(links=self.wanted))
        self.links = RunningLinks(self._make, lambda: controller)

    def _make(self, link: Link) -> Any:
        self.made.append(Runtime(link, self.may_end))
        return self.made[-1]

    async def committed(self, link: Link | None) -> None:
        if link is None:
            self.wanted.pop("east", None)
        else:
            self.wanted["east"] = link
        self.links.follow(())
        await turns()

    def runs(self) -> list[Runtime]:
        return [runtime for runtime in self.made if runtime.runs]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What is left over is shown by what runs, and does not keep the test from its end."""
        async with TaskGroup() as group:
            self.links.group = group
            try:
                yield
            finally:
                self.may_end.set()
                await turns()
                await self.links.stop("east")
                left = self.runs()
                for runtime in left:
                    runtime.task.cancel()
        assert not left


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def named(client_id: str) -> Link:
    return replace(EAST, properties={"client.id": client_id})


@pytest.mark.parametrize("more", [named("b"), named("c"), EAST], ids=["the same", "another", "as it was"])
async def test_a_commit_during_a_restart_leaves_one_runtime(more: Link) -> None:
    stage = Stage()
    async with stage.running():
        await stage.committed(EAST)
        await stage.committed(named("b"))
        await stage.committed(more)
        stage.may_end.set()
        await turns()
        [runs] = stage.runs()
        assert runs is stage.links["east"]
        assert runs.link == more
        assert len(stage.made) == 2, "begun anew once"


async def test_a_link_that_is_deleted_during_its_restart_is_gone() -> None:
    stage = Stage()
    async with stage.running():
        await stage.committed(EAST)
        await stage.committed(named("b"))
        await stage.committed(None)
        stage.may_end.set()
        await turns()
        assert not stage.runs()
        assert "east" not in stage.links
        assert not stage.links.tasks


async def test_a_link_that_is_made_again_while_it_stops_runs() -> None:
    stage = Stage()
    async with stage.running():
        await stage.committed(EAST)
        await stage.committed(None)
        await stage.committed(EAST)
        stage.may_end.set()
        await turns()
        assert stage.runs() == [stage.links["east"]]


async def test_what_was_started_while_its_forerunner_stopped_stays() -> None:
    """By the service of a sidecar that has become the link controller meanwhile."""
    stage = Stage()
    async with stage.running():
        stage.links.start(EAST)
        await turns()
        stopping = asyncio.create_task(stage.links.stop("east"))
        await turns()
        stage.links.start(named("b"))
        stage.may_end.set()
        await stopping
        await turns()
        assert stage.runs() == [stage.links["east"]]
        assert len(stage.links.tasks) == 1


async def test_a_stop_that_was_cancelled_is_done_by_the_next_one() -> None:
    stage = Stage()
    async with stage.running():
        await stage.committed(EAST)
        stopping = asyncio.create_task(stage.links.stop("east"))
        await turns()
        stopping.cancel()
        await asyncio.wait([stopping])
        again = asyncio.create_task(stage.links.restart("east"))
        await turns()
        assert not again.done(), "the first one still runs"
        stage.may_end.set()
        await again
        await turns()
        assert stage.runs() == [stage.links["east"]]
        assert stage.links["east"] is stage.made[1]


async def test_a_link_forwards_while_its_runtime_says_so() -> None:
    stage = Stage()
    async with stage.running():
        assert not stage.links.forwards("east")
        await stage.committed(EAST)
        assert not stage.links.forwards("east")
        stage.made[0].forwards = True
        assert stage.links.forwards("east")
        stage.may_end.set()
        await stage.committed(named("b"))
        assert not stage.links.forwards("east"), "another runtime, which has proven nothing yet"
