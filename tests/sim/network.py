"""Between machines: delays, directions that are cut for a while, connections that are reset.

A cut loses nothing by itself: like TCP, what was sent arrives when the way is open again, in its order. Who gives up
before that has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from fleet.channel import ChannelClosed, Message
from tests.sim.loop import Process, SimLoop
from wire.errors import LinkerError

T = TypeVar("T")

#: How long a channel bears a way that is cut before its ends give it up (keepalive).
KEEPALIVE = 2.0


class NoAnswer(LinkerError):
    """The time is over; it may have been carried out, or may be yet."""


class Network:
    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self._cuts: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self.channels: list[SimChannel] = []
        self.latency = (0.0003, 0.004)

    # Ways.

    def cut(self, origin: str, to: str, seconds: float) -> None:
        """One direction."""
        self._cuts[origin, to] = self._cuts.get((origin, to), 0) + 1
        self.loop.kernel(seconds, self._open, origin, to)
        if seconds > KEEPALIVE:
            self.loop.kernel(KEEPALIVE, self._give_up, origin, to)

    def _open(self, origin: str, to: str) -> None:
        self._cuts[origin, to] -= 1
        if self._cuts[origin, to] <= 0:
            held = self._held.pop((origin, to), deque())
            while held:
                held.popleft()()

    def heal(self) -> None:
        for way in list(self._cuts):
            self._cuts[way] = 1
            self._open(*way)
            self._cuts[way] = -1000  # what was to open it later does no harm

    def open(self, origin: str, to: str) -> bool:
        return self._cuts.get((origin, to), 0) <= 0

    def both(self, one: str, other: str) -> bool:
        return self.open(one, other) and self.open(other, one)

    def deliver(self, origin: str, to: str, function: Callable[[], None], delay: float) -> None:
        self.loop.kernel(delay, self._arrive, origin, to, function)

    def _arrive(self, origin: str, to: str, function: Callable[[], None]) -> None:
        if self.open(origin, to):
            function()
        else:
            self._held.setdefault((origin, to), deque()).append(function)

    def delay(self) -> float:
        return self.rng.uniform(*self.latency)

    # Requests.

    async def request(
        self,
        origin: str,
        to: str,
        carry_out: Callable[[], T],
        timeout: float,
        *,
        slow: float = 0.0,
        back: float = 0.0,
    ) -> T:
        """Carried out at the other side once, maybe long after this gave up; its error is raised here."""
        answer: asyncio.Future[T] = self.loop.create_future()
        dropped = False

        def arrive() -> None:
            if dropped:
                return
            result: T
            error: LinkerError | None = None
            try:
                result = carry_out()
            except LinkerError as failed:
                error = failed

            def settle() -> None:
                if not answer.done():
                    if error is None:
                        answer.set_result(result)
                    else:
                        answer.set_exception(error)

            self.deliver(to, origin, settle, self.delay() + back)

        self.deliver(origin, to, arrive, self.delay() + slow)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise NoAnswer(f"no answer from {to}") from None
        finally:
            # The connection is closed: what is still in some queue of ours goes with it, what left does not.
            if not answer.done():
                dropped = self.rng.random() < 0.5
            elif not answer.cancelled():
                answer.exception()

    # Channels.

    def channel(self, origin: Process, to: Process) -> tuple[SimChannel, SimChannel]:
        one, two = SimChannel(self, origin, to), SimChannel(self, to, origin)
        one.other, two.other = two, one
        self.channels += [one, two]
        return one, two

    def _give_up(self, origin: str, to: str) -> None:
        if not self.open(origin, to):
            self.reset(lambda end: {end.process.name, end.there.name} == {origin, to})

    def reset(self, which: Callable[[SimChannel], bool]) -> None:
        for end in [end for end in self.channels if which(end)]:
            end.broken("the connection was reset")

    def died(self, process: Process) -> None:
        """Its kernel closes its connections; the others hear of it."""
        for end in [end for end in self.channels if end.process is process]:
            end.close("the process ended")


class SimChannel:
    """One end of a connection between two processes."""

    def __init__(self, network: Network, process: Process, there: Process) -> None:
        self.network = network
        self.process = process
        self.there = there
        self.other: SimChannel
        self.inbox: deque[Message] = deque()
        self.reading: asyncio.Future[None] | None = None
        self.closed: str | None = None
        self._last = 0.0
        self.seen: Callable[[Message], None] | None = None

    @property
    def peer(self) -> str:
        return self.there.name

    def send(self, message: Message) -> None:
        if self.closed is not None:
            raise ChannelClosed(f"channel to {self.peer}: {self.closed}")
        if self.seen is not None:
            self.seen(message)
        self._deliver(lambda: self.other._arrived(message))

    def _deliver(self, function: Callable[[], None]) -> None:
        loop = self.network.loop
        self._last = max(self._last, loop.time() + self.network.delay())
        self.network.deliver(self.process.name, self.there.name, function, self._last - loop.time())

    def _arrived(self, message: Message) -> None:
        if self.closed is None:
            self.inbox.append(message)
            self._wake()

    def _wake(self) -> None:
        if self.reading is not None and not self.reading.done():
            self.reading.set_result(None)

    async def receive(self) -> Message:
        while not self.inbox:
            if self.closed is not None:
                raise ChannelClosed(f"channel to {self.peer}: {self.closed}")
            self.reading = self.network.loop.create_future()
            await self.reading
        return self.inbox.popleft()

    def close(self, reason: str = "closed") -> None:
        if self.closed is None:
            self.broken(reason)
            self._deliver(lambda: self.other.broken("closed by the other side"))

    def broken(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason
            if self in self.network.channels:
                self.network.channels.remove(self)
            self._wake()
