"""The tasks that a sidecar runs for a link while it is the link controller.

When it stops being the link controller they are cancelled, wherever they stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class ControllerTasks:
    """The tasks of one link. Each is started by `rule` once this sidecar is the link controller; `end` cancels them."""

    def __init__(self, link: str) -> None:
        self._link = link
        #: This sidecar is the link controller, and the link runs.
        self.on_duty = False
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        self.on_duty = True

    def rule(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """One of its tasks. An error ends that task alone."""
        task = asyncio.create_task(work, name=f"{self._link}: {what}")
        self.tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.error("link %s: %s ended", self._link, what, exc_info=task.exception())

        task.add_done_callback(done)
        return task

    async def end(self) -> None:
        self.on_duty = False
        tasks = set(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tasks -= tasks
