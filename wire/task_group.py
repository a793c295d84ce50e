"""asyncio.TaskGroup with the cancellation fixes of Python 3.13.

In 3.11 and 3.12 a cancellation that comes while a group is failing is lost, because the group's errors have priority.
A loop that handles such errors and goes on, as most of ours do, then cannot be ended, and the task that waits for its
end waits forever. Also, if a child fails while the group waits for the rest, the cancel() that the group makes of its
own task is never taken back, so an asyncio.timeout around it ends with CancelledError instead of TimeoutError.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Any, Self

if sys.version_info >= (3, 13):
    TaskGroup = asyncio.TaskGroup
else:

    class TaskGroup(asyncio.TaskGroup):
        """Raises CancelledError, with the errors as its cause, if its task was cancelled by others while it failed."""

        _parent_cancel_requested: bool  # asyncio.TaskGroup's: it has called cancel() of its own task

        async def __aenter__(self) -> Self:
            self._cancels_before = _current().cancelling()
            return await super().__aenter__()

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            # asyncio.TaskGroup takes its cancel back at the beginning of __aexit__, and only then.
            taken_back = self._parent_cancel_requested
            try:
                await super().__aexit__(kind, error, trace)
            except BaseExceptionGroup as errors:
                task = _current()
                if self._parent_cancel_requested and not taken_back:
                    task.uncancel()
                if task.cancelling() > self._cancels_before:
                    raise asyncio.CancelledError from errors
                raise

    def _current() -> asyncio.Task[Any]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a TaskGroup belongs to a task")
        return task


__all__ = ["TaskGroup"]
