"""Cuts in the middle of a produce: the connection that carries it is let through up to a byte of the request's or of the
answer's frame, and is then cut, or stands still for a while first.

One cut is made at a time, in whichever produce comes next on any connection of the proxy.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

_REQUEST = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_ANSWER = struct.Struct(">ii")  # size, correlation id
_SIZE = 4
PRODUCE = 0


class Side(StrEnum):
    REQUEST = "request"
    ANSWER = "answer"


#: Where in a frame, by its size with the size field: how many bytes are let through.
Where = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Cut:
    side: Side
    where: Where
    stall: float = 0.0  # seconds during which nothing more passes in that direction, before the cut


@dataclass(slots=True)
class _Stream:
    """One direction of one connection."""

    held: bytearray = field(default_factory=bytearray)  # the beginning of a frame that cannot be told yet
    left: int = 0  # of the frame that is passing
    until_cut: int | None = None


class Surgeon:
    """Of one proxy."""

    def __init__(self) -> None:
        self._wanted: Cut | None = None
        self._struck = asyncio.Event()
        self._streams: dict[tuple[int, Side], _Stream] = {}
        self._produces: dict[int, set[int]] = {}  # connection -> correlation ids

    async def strike(self, cut: Cut, timeout: float) -> None:
        """Cut the next produce, and return when that was done. TimeoutError if none came."""
        self._struck.clear()
        self._wanted = cut
        try:
            async with asyncio.timeout(timeout):
                await self._struck.wait()
        finally:
            self._wanted = None

    def feed(self, connection: int, side: Side, data: bytes) -> tuple[bytes, Cut | None]:
        """What of the bytes may pass now, and the cut that follows on them."""
        stream = self._streams.setdefault((connection, side), _Stream())
        stream.held += data
        passed = bytearray()
        while stream.held:
            if not stream.left and not self._begin(connection, side, stream):
                break
            take = min(stream.left, len(stream.held))
            if stream.until_cut is not None and take >= stream.until_cut:
                if self._wanted is not None:
                    cut, self._wanted = self._wanted, None
                    self._struck.set()
                    return bytes(passed + stream.held[: stream.until_cut]), cut
                stream.until_cut = None  # another connection was cut, or nobody waits for it any more
            passed += stream.held[:take]
            del stream.held[:take]
            stream.left -= take
            if stream.until_cut is not None:
                stream.until_cut -= take
        return bytes(passed), None

    def closed(self, connection: int) -> None:
        for side in Side:
            self._streams.pop((connection, side), None)
        self._produces.pop(connection, None)

    def _begin(self, connection: int, side: Side, stream: _Stream) -> bool:
        """A frame begins: is it the one? False if its first bytes are not there yet."""
        mine = self._produces.setdefault(connection, set())
        header = _REQUEST if side is Side.REQUEST else _ANSWER
        if len(stream.held) < header.size:
            return False
        if side is Side.REQUEST:
            size, key, _, correlation = _REQUEST.unpack_from(stream.held)
            produce = key == PRODUCE
            if produce:
                mine.add(correlation)
        else:
            size, correlation = _ANSWER.unpack_from(stream.held)
            produce = correlation in mine
            mine.discard(correlation)
        stream.left = _SIZE + size
        wanted = self._wanted
        stream.until_cut = None
        if produce and wanted is not None and wanted.side is side:
            stream.until_cut = min(max(wanted.where(stream.left), 0), stream.left)
        return True
