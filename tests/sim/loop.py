"""Time, and processes that can be stopped and killed.

Every callback belongs to the process in whose context it was scheduled. A stopped process (SIGSTOP) runs nothing:
what is due piles up and runs when it goes on. A dead one never runs anything again, its `finally` blocks included.
The kernel, the network and the machines of others run outside all processes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

KERNEL = Context()


class Process:
    """One life of a program. Its clock runs on whatever happens to it."""

    def __init__(self, loop: SimLoop, name: str, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self.loop = loop
        self.name = name
        self.offset = offset
        self.rate = rate
        self.paused = False
        self.dead = False
        self.backlog: deque[asyncio.Handle] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.context = copy_context()
        self.context.run(_process.set, self)

    def clock(self) -> float:
        return self.offset + self.rate * self.loop.time()

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(coro, context=self.context.copy())

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Soon, in this process."""
        self.loop.call_soon(function, *args, context=self.context)

    def later(self, delay: float, function: Callable[..., object], *args: object) -> None:
        self.loop.call_later(delay, function, *args, context=self.context)

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        self.loop.put_back(self.backlog)

    @property
    def runs(self) -> bool:
        return not self.paused and not self.dead


_process: ContextVar[Process | None] = ContextVar("process", default=None)


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """Sets of tasks come in the same order in every run."""

    _count = itertools.count()

    def __new__(cls, *args: object, **kwargs: object) -> SimTask:
        self = super().__new__(cls)
        self.number = next(cls._count)
        return self

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_task(loop: Any, coro: Any, context: Context | None = None) -> SimTask:
    task = SimTask(coro, loop=loop, context=context)
    process = (context or copy_context()).get(_process)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard, context=KERNEL)
    return task


class Stuck(Exception):
    """Everybody waits and no timer is left, or time does not go on."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs on simulated time. `after` is called after every event."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.after: Callable[[], None] | None = None
        self.events = 0
        self._same = 0
        SimTask._count = itertools.count()
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def put_back(self, handles: deque[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]
        handles.clear()

    def kernel(self, delay: float, function: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Later, outside all processes."""
        return self.call_later(delay, function, *args, context=KERNEL)

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if ready:
            self._same += 1
            if self._same > 20_000:
                raise Stuck(f"time stands still at {self._now:.3f}: {list(ready)[:5]}")
        else:
            if not timers:
                raise Stuck("nothing is left to wait for")
            self._same = 0
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        after = self.after
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(_process)  # type: ignore[attr-defined]
            if process is not None and (process.dead or process.paused):
                process.backlog.append(handle)
                continue
            handle._run()  # type: ignore[attr-defined]
            self.events += 1
            if after is not None:
                after()

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...


def alive_again(processes: list[Process]) -> None:
    """At the end of a story: what was killed may clean up, so that nothing is left for the garbage collector."""
    for process in processes:
        process.dead = process.paused = False
        process.loop.put_back(process.backlog)
        for task in process.tasks:
            task.cancel()
