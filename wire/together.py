"""Several awaitables at once, with the first error raised as itself.

A TaskGroup raises an ExceptionGroup, which `except LinkerError` does not catch. Any one of several errors is a good enough
reason, and the others become its context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from wire.task_group import TaskGroup

T = TypeVar("T")
K = TypeVar("K")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. If one fails, the others are cancelled and its error is raised."""
    tasks: list[asyncio.Task[T]] = []
    try:
        async with TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors
    return [task.result() for task in tasks]


async def together_by_key(work: Mapping[K, Coroutine[Any, Any, T]]) -> dict[K, T]:
    """As `together`, results under the same keys."""
    return dict(zip(work, await together(work.values()), strict=True))


def retrieved(future: asyncio.Future[Any]) -> None:
    """A done-callback of a future that maybe nobody waits for: its error is no bug that asyncio has to tell of."""
    if not future.cancelled():
        future.exception()


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf of a group of errors."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
