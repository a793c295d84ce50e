"""What a failing group does with a cancellation. With asyncio.TaskGroup in its place, these fail on Python 3.11 and 3.12."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from wire.task_group import TaskGroup

pytestmark = pytest.mark.timeout(10)


async def fails() -> None:
    await asyncio.sleep(0.01)
    raise ValueError("of a child")


class Late:
    """A child that is told to end, and takes its time: until `may_end`."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.told.set()
            await self.may_end.wait()


@pytest.mark.parametrize("waits", ["at its end", "in its body", "with an error of its own"])
async def test_a_loop_around_a_failing_group_can_be_cancelled(waits: str) -> None:
    late = Late()

    async def loop() -> None:
        while True:
            with contextlib.suppress(ExceptionGroup):
                async with TaskGroup() as group:
                    group.create_task(late.run())
                    if waits == "with an error of its own":
                        await asyncio.sleep(0.01)
                        raise ValueError("of the body")
                    group.create_task(fails())
                    if waits == "in its body":
                        await asyncio.Event().wait()
            await asyncio.sleep(5)

    task = asyncio.create_task(loop())
    await late.told.wait()  # the group has failed, and waits for this one
    task.cancel()
    await asyncio.sleep(0)
    late.may_end.set()
    await asyncio.wait([task], timeout=1)
    assert task.cancelled()


async def test_the_errors_are_the_cause() -> None:
    caught: list[BaseException | None] = []
    late = Late()

    async def run() -> None:
        try:
            async with TaskGroup() as group:
                group.create_task(late.run())
                group.create_task(fails())
        except asyncio.CancelledError as error:
            caught.append(error.__cause__)
            raise

    task = asyncio.create_task(run())
    await late.told.wait()
    task.cancel()
    await asyncio.sleep(0)
    late.may_end.set()
    await asyncio.wait([task])
    assert task.cancelled()
    if caught:  # from Python 3.13 on the errors come first, and the cancellation at the next await
        assert isinstance(caught[0], ExceptionGroup)


@pytest.mark.parametrize("in_body", [False, True])
async def test_a_deadline_around_failing_groups_is_a_timeout(in_body: bool) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            while True:
                with contextlib.suppress(ExceptionGroup):
                    async with TaskGroup() as group:
                        group.create_task(fails())
                        if in_body:
                            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_deadline_that_comes_while_a_group_fails() -> None:
    """Its child needs longer to end than there is time."""
    late = Late()
    asyncio.get_running_loop().call_later(0.1, late.may_end.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            async with TaskGroup() as group:
                group.create_task(late.run())
                group.create_task(fails())
            raise AssertionError("not reached")


async def test_cleaning_up_after_a_cancellation_raises_what_fails() -> None:
    """The cancellation was taken notice of before the group began."""

    async def run() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                async with TaskGroup() as group:
                    group.create_task(fails())
            except ExceptionGroup:
                return "seen"
        return "not seen"

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "seen"
