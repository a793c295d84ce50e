"""Periodic tasks that are not well: in the status, its JSON, the live view, and as checks of the doctor."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from admin.models import CheckResult, PeriodicState, TaskStatus
from linker.cli import watch
from linker.service.tasks import task_checks, tasks_of
from tests.shell.conftest import Cli, Running
from tests.shell.memory_moment import NOW
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

FAILING = TaskStatus(
    name="producer ids",
    link="east",
    state=PeriodicState.FAILING,
    interval_ms=30_000,
    failing_since=NOW,
    reason="broker 1 does not answer",
    well=False,
)
SAID = f"producer ids of link east fails since {NOW:%H:%M:%S} UTC, and has not succeeded yet: broker 1 does not answer"


async def test_tasks_of_links_and_of_the_sidecar_are_shown_once_they_run() -> None:
    now = 1000.0

    async def refused() -> None:
        raise LinkerError("no answer")

    async def fine() -> None:
        pass

    failing = PeriodicTask("configs", refused, 15.0, clock=lambda: now)
    balancer = PeriodicTask("balancer", fine, 1.0, clock=lambda: now)
    idle = PeriodicTask("departures", fine, 0.2, clock=lambda: now)
    link: Any = SimpleNamespace(name="east", periodic_tasks=[failing])
    sidecar: Any = SimpleNamespace(periodic_tasks=lambda: [balancer, idle])
    running = [asyncio.create_task(task.run()) for task in (failing, balancer)]
    await asyncio.sleep(0.01)
    now += 45.0
    first, second = tasks_of(sidecar, [link])
    assert (first.name, first.link, first.state, first.well) == (
        "balancer",
        None,
        PeriodicState.WAITING,
        True,
    )
    assert first.last_success is not None
    assert (second.name, second.link, second.state, second.well) == (
        "configs",
        "east",
        PeriodicState.FAILING,
        True,
    )
    assert (second.interval_ms, second.reason, second.last_success) == (15_000, "no answer", None)
    assert task_checks([first, second]) == []
    now += 0.1
    found = tasks_of(sidecar, [link])
    assert [task.well for task in found] == [True, False]
    [check] = task_checks(found)
    assert check.result is CheckResult.WARN
    assert check.detail.startswith("configs of link east fails since ")
    assert check.detail.endswith(": no answer")
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def test_the_status_has_a_line_for_a_task_that_is_not_well(cli: Cli, api: Running) -> None:
    api.service.tasks = [FAILING, FAILING.model_copy(update={"name": "group offsets", "well": True})]
    table = cli("status").out
    assert f"warning: {SAID}" in table
    assert "group offsets" not in table
    answer = json.loads(cli("status", "-o", "json").out)
    assert [(task["name"], task["well"], task["reason"]) for task in answer["tasks"]] == [
        ("producer ids", False, "broker 1 does not answer"),
        ("group offsets", True, "broker 1 does not answer"),
    ]


@pytest.mark.parametrize("well", [True, False])
async def test_the_live_view_has_it_too(well: bool) -> None:
    from tests.shell.memory_service import MemoryService

    service = MemoryService()
    service.tasks = [FAILING.model_copy(update={"well": well})]
    console = Console(width=200, record=True, force_terminal=False)
    console.print(watch.render(await service.status(), None))
    assert (SAID in console.export_text()) is not well
