"""A periodic task keeps its interval, survives what it may, and says since when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from wire.errors import LinkerError
from wire.periodic_task import PATIENCE, PeriodicTask, TaskState


class Script:
    """Attempts with given outcomes; each advances the clock by a second."""

    def __init__(self, *outcomes: str | Exception | None) -> None:
        self.left = list(outcomes)
        self.now = 100.0
        self.over = asyncio.Event()
        self.told: list[str] = []
        self.states: list[TaskState] = []
        self.task: PeriodicTask

    async def once(self) -> str | None:
        self.now += 1.0
        self.states.append(self.task.state)
        if not self.left:
            self.over.set()
            await asyncio.Event().wait()
        outcome = self.left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def periodic(
        self,
        interval: float = 0.0,
        pause: Callable[[PeriodicTask], float] | None = None,
        survives: type[Exception] = LinkerError,
    ) -> PeriodicTask:
        self.task = PeriodicTask(
            "look",
            self.once,
            interval,
            failed=lambda error: self.told.append(str(error)),
            survives=survives,
            pause=pause,
            clock=lambda: self.now,
        )
        return self.task


async def played(script: Script) -> None:
    running = asyncio.create_task(script.task.run())
    over = asyncio.create_task(script.over.wait())
    async with asyncio.timeout(30):
        await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    if not running.done():
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await running


async def test_it_goes_on_after_a_failure_and_forgets_it_after_a_success() -> None:
    seen: list[tuple[int, float | None, str | None, TaskState]] = []

    def pause(task: PeriodicTask) -> float:
        seen.append((task.failures, task.failing_since, task.reason, task.state))
        return 0.0

    script = Script(None, LinkerError("no answer"), "half of it", None)
    script.periodic(pause=pause)
    assert script.task.state is TaskState.IDLE
    await played(script)
    assert seen == [
        (0, None, None, TaskState.WAITING),
        (1, 102.0, "no answer", TaskState.FAILING),
        (2, 102.0, "half of it", TaskState.FAILING),
        (0, None, None, TaskState.WAITING),
    ]
    assert script.told == ["no answer"]
    assert script.task.last_success == 104.0
    assert script.states == [
        TaskState.RUNNING,
        TaskState.RUNNING,
        TaskState.FAILING,
        TaskState.FAILING,
        TaskState.RUNNING,
    ]
    assert script.task.state is TaskState.IDLE  # cancelled


async def test_a_bug_ends_it_and_stays_its_reason() -> None:
    script = Script(None, ValueError("a bug"))
    script.periodic()
    with pytest.raises(ValueError, match="a bug"):
        await played(script)
    assert script.task.state is TaskState.FAILING
    assert "a bug" in str(script.task.reason)


async def test_one_that_survives_bugs_goes_on() -> None:
    script = Script(ValueError("a bug"), None)
    script.periodic(survives=Exception)
    await played(script)
    assert script.told == ["a bug"]


async def test_it_waits_for_the_interval_or_until_it_is_woken() -> None:
    script = Script(None, None)
    task = script.periodic(interval=3600.0)
    running = asyncio.create_task(task.run())
    for times in (1, 2):
        async with asyncio.timeout(25):
            while len(script.states) < times:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(script.states) == times
        assert not task.woken
        task.wake()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("interval", "longest"), [(1.0, PATIENCE), (15.0, 45.0)])
async def test_it_is_not_well_after_three_intervals_and_thirty_seconds(
    interval: float, longest: float
) -> None:
    script = Script(LinkerError("no answer"))
    task = script.periodic(interval, pause=lambda _task: 0.0)
    running = asyncio.create_task(task.run())
    async with asyncio.timeout(30):
        await script.over.wait()
    assert task.failing_since is not None
    script.now = task.failing_since + longest
    assert task.well
    script.now += 0.1
    assert not task.well
    assert task.ago(task.failing_since) == pytest.approx(longest + 0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_pause_doubles_with_every_failure() -> None:
    pauses: list[float] = []

    def pause(task: PeriodicTask) -> float:
        pauses.append(task.backoff(0.5, 3.0))
        return 0.0

    script = Script(*[LinkerError("no")] * 5)
    script.periodic(pause=pause)
    await played(script)
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
