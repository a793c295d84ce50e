"""One thing that is done again and again, and how well that goes: for loops that log a failure and go on.

Not here: the work itself, and loops whose failure ends something, such as a heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from wire.backoff import Backoff
from wire.errors import LinkerError

#: A task is not well when it has failed for longer than so many of its intervals, and for longer than so many seconds.
_INTERVALS = 3
PATIENCE = 30.0


class TaskState(StrEnum):
    IDLE = "IDLE"  # not begun here: another sidecar does it
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    FAILING = "FAILING"  # its last attempt failed; it tries again


class PeriodicTask:
    """`run` calls `once` until cancelled, and waits in between until the interval is over or somebody wakes it.

    An attempt fails if it raises one of the errors that the task survives, or if it returns a reason. Any other error ends
    the task, and stays its reason.
    """

    def __init__(
        self,
        name: str,
        once: Callable[[], Awaitable[str | None]],
        interval: float,
        *,
        failed: Callable[[Exception], None] = lambda _error: None,
        survives: type[Exception] | tuple[type[Exception], ...] = LinkerError,
        pause: Callable[[PeriodicTask], float | None] | None = None,
        wait: Callable[[float | None], Awaitable[None]] | None = None,
        first: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`failed` hears of every error that is survived, for the log. `pause` says how long to wait after an attempt, where
        that is not the interval; None: until it is woken. `wait` waits, where something else than `wake` ends that early.
        `first`: how long to wait before the first attempt."""
        self.name = name
        self.interval = interval
        self._once = once
        self._failed = failed
        self._survives = survives
        self._pause = pause
        self._wait = wait or self._until_woken
        self._first = first
        self._clock = clock
        self._wake = asyncio.Event()
        self.state = TaskState.IDLE
        #: Attempts that failed since one last succeeded.
        self.failures = 0
        self.took = 0.0  # the last attempt, in seconds
        #: By the clock.
        self.failing_since: float | None = None
        self.last_success: float | None = None
        self.reason: str | None = None  # of the last failure, while it fails

    def wake(self) -> None:
        """Do it at once, or again at once where it is being done."""
        self._wake.set()

    @property
    def woken(self) -> bool:
        return self._wake.is_set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            if self._first:
                await asyncio.sleep(self._first)
            while True:
                self._wake.clear()
                await self._attempt()
                await self._wait(self.interval if self._pause is None else self._pause(self))
        except Exception as error:
            self._note_failure(f"ended by a bug: {error!r}; see the log")
            raise
        except BaseException:
            self.state, self.failures = TaskState.IDLE, 0
            self.failing_since = self.reason = None
            raise

    async def _until_woken(self, pause: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    async def _attempt(self) -> None:
        self.state = TaskState.FAILING if self.failures else TaskState.RUNNING
        began = self._clock()
        try:
            reason = await self._once()
        except self._survives as error:
            reason = str(error) or repr(error)
            self._failed(error)
        self.took = self._clock() - began
        if reason is not None:
            self._note_failure(reason)
            return
        self.state, self.failures, self.failing_since, self.reason = TaskState.WAITING, 0, None, None
        self.last_success = self._clock()

    def _note_failure(self, reason: str) -> None:
        self.state, self.reason = TaskState.FAILING, reason
        self.failures += 1
        if self.failing_since is None:
            self.failing_since = self._clock()

    def backoff(self, first: float, longest: float) -> float:
        """A pause that doubles with every failure."""
        return Backoff(first, longest).at(self.failures - 1)

    def ago(self, moment: float | None) -> float | None:
        """Seconds since then."""
        return None if moment is None else self._clock() - moment

    @property
    def well(self) -> bool:
        failing = self.ago(self.failing_since)
        return failing is None or failing <= max(_INTERVALS * self.interval, PATIENCE)
