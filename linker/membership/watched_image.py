"""The image of a cluster with its subscribers. A subclass keeps the image up to date."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TypeVar

from linker.membership.errors import MetadataLogFailed
from wire.errors import LinkerError, RequestTimedOut
from wire.frames.types import TopicId
from wire.metadata.image import ClusterImage

T = TypeVar("T")
Subscriber = Callable[[ClusterImage, frozenset[TopicId]], None]


class WatchedImage(ABC):
    """`image` is always the same object."""

    def __init__(self, name: str) -> None:
        """`name`: the cluster's, for messages."""
        self._name = name
        self.image = ClusterImage()
        self._failure: BaseException | None = None
        self._subscribers: list[Subscriber] = []
        self._changed: set[asyncio.Future[None]] = set()

    @property
    @abstractmethod
    def offset(self) -> int:
        """Grows with the image; -1: nothing is known yet."""

    @abstractmethod
    async def run(self) -> None:
        """Follow the cluster until cancelled. Raises an error only if trying again cannot help."""

    @abstractmethod
    async def caught_up(self, timeout: float) -> None:
        """Return once everything committed before this call is in the image."""

    def look_at(self, topics: Iterable[str]) -> None:
        """Read these topics anew: they were changed in a way that no broker is told of."""
        return

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call `callback(image, touched topic ids)` after every change; returns the way to stop it.

        Callbacks run inside `run`: they note what changed and return. An exception in one ends it.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def wait_for(self, predicate: Callable[[ClusterImage], T | None], timeout: float) -> T:
        """The predicate's first result that is not None, checked now and after every change.

        RequestTimedOut at the deadline; the error of `run` if that has ended.
        """
        deadline = time.monotonic() + timeout
        while True:
            result = predicate(self.image)
            if result is not None:
                return result
            await self._next_change(deadline, "the awaited change")

    async def becomes(self, predicate: Callable[[ClusterImage], bool], timeout: float) -> bool:
        """Whether the predicate holds within this time. False if the image is not followed any more, and only when the time
        is over: callers ask again and again, and without a pause they would keep everybody else waiting."""
        try:
            await self.wait_for(lambda image: True if predicate(image) else None, timeout)
        except RequestTimedOut:
            return False
        except LinkerError:
            await asyncio.sleep(timeout)
            return False
        return True

    async def _next_change(self, deadline: float, what: str) -> None:
        if self._failure is not None:
            raise self._again(self._failure)
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.add(changed)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await changed
        except TimeoutError:
            raise self._timed_out(what) from None
        finally:
            self._changed.discard(changed)

    @abstractmethod
    def _timed_out(self, what: str) -> RequestTimedOut: ...

    def _wake(self) -> None:
        changed, self._changed = self._changed, set()
        for future in changed:
            if not future.done():
                if self._failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(self._again(self._failure))

    def _publish(self, touched: frozenset[TopicId]) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber(self.image, touched)

    def _again(self, error: BaseException) -> BaseException:
        """The end of `run` as an error for a waiter. A cancellation of `run` must not look like one of the waiter."""
        if isinstance(error, LinkerError):
            return error
        return MetadataLogFailed(f"the metadata of {self._name} is not followed any more: {error!r}")
