"""The connection of a member with the link controller: JSON messages, in order, whole or not at all.

A message that is lost with its channel is not sent again on a new one, except by the rules of `member` and
`fleet_controller`. This is the contract, and the pair for one process; sockets are in `fleet.transport`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from controller.state import JsonValue
from wire.errors import LinkerError

Message = dict[str, JsonValue]

#: The most that may wait in a channel for a receiver that does not read. A welcome of a large fleet is some MB.
MAX_WAITING = 10_000


class ChannelClosed(LinkerError):
    """The other side, the network or this side ended it; messages on their way may or may not have arrived."""


class MemberChannel(Protocol):
    """One connection. Sending never waits: a receiver that does not read loses the channel instead."""

    @property
    def peer(self) -> str:
        """The other side, for people."""
        ...

    def send(self, message: Message) -> None:
        """Queue a message; ChannelClosed if it cannot arrive any more."""
        ...

    async def receive(self) -> Message:
        """The next message; ChannelClosed when there will be no more. May be cancelled."""
        ...

    def close(self, reason: str = "closed") -> None:
        """End it for both sides; messages not yet received may be lost. Closing twice: no change."""
        ...


class _End:
    """One end of a pair."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.other: _End
        self.inbox: deque[Message] = deque()
        self.wake = asyncio.Event()
        self.closed: str | None = None

    def send(self, message: Message) -> None:
        if self.closed is not None:
            raise ChannelClosed(f"channel to {self.peer}: {self.closed}")
        if len(self.other.inbox) >= MAX_WAITING:
            self.close("the receiver does not keep up")
            raise ChannelClosed(f"channel to {self.peer}: {self.closed}")
        self.other.inbox.append(message)
        self.other.wake.set()

    async def receive(self) -> Message:
        while not self.inbox:
            if self.closed is not None:
                raise ChannelClosed(f"channel to {self.peer}: {self.closed}")
            self.wake.clear()
            await self.wake.wait()
        return self.inbox.popleft()

    def close(self, reason: str = "closed") -> None:
        for end in (self, self.other):
            if end.closed is None:
                end.closed = reason
                end.wake.set()


def pair(first: str, second: str) -> tuple[MemberChannel, MemberChannel]:
    """Two ends in one process; each gets the other's name."""
    one, two = _End(second), _End(first)
    one.other, two.other = two, one
    return one, two
