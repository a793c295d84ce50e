"""The read-ahead window: consecutive chunks of whole batches between the slowest reader and the source. Pure.

Invariants: chunks lie in offset order without overlap; `start` <= every readable offset <= `next_offset`;
a chunk goes when every reader has fetched past it. Offsets may have gaps (compaction, transaction
markers), never go back. A window is a cache of the source: dropping any of it loses nothing, it only costs
another fetch.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from fetcher.budget import Charge
from wire.errors import LocalProtocolError
from wire.frames.batch import iter_batch_headers, seek_batch

MAX_OFFSET_SPAN = (1 << 31) - 1
"""A follower cannot append one answer whose offsets span more than a segment's relative offset holds."""


class WindowChunk(NamedTuple):
    base_offset: int
    next_offset: int
    view: memoryview
    size: int
    charge: Charge
    newest: int = -1  # timestamp of its last batch, in milliseconds; -1: not known


class WindowRead(NamedTuple):
    """The yield of one read: views stay valid while `charges` are held by somebody."""

    views: list[memoryview]
    size: int
    next_offset: int
    charges: list[Charge]
    newest: int = -1  # timestamp of the last batch; -1: not known


class Window:
    __slots__ = ("_chunks", "bytes", "next_offset", "start")

    def __init__(self, start: int) -> None:
        self._chunks: deque[WindowChunk] = deque()
        self.start = start
        self.next_offset = start
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def covers(self, offset: int) -> bool:
        """Whether a reader at `offset` is served by this window, now or by its next chunk."""
        return self.start <= offset <= self.next_offset

    def append(self, chunk: WindowChunk) -> None:
        """Add the chunk that follows. Its first batch may begin before next_offset only while the window
        is fresh.
        """
        if chunk.next_offset <= self.next_offset or (self._chunks and chunk.base_offset < self.next_offset):
            raise LocalProtocolError(
                f"chunk [{chunk.base_offset}, {chunk.next_offset}) does not follow a window that ends at "
                f"{self.next_offset}"
            )
        self._chunks.append(chunk)
        chunk.charge.hold()
        self.bytes += chunk.size
        self.next_offset = chunk.next_offset

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True, until: int | None = None
    ) -> WindowRead | None:
        """Whole batches from the one that holds `offset`, up to offset `until`; None when there is nothing at or after it
        here.

        Never more than max_bytes, except that with at_least_one the first batch comes whatever its size.
        """
        if offset >= self.next_offset or offset < self.start:
            return None
        views: list[memoryview] = []
        charges: list[Charge] = []
        size = 0
        end, newest = offset, -1
        for chunk in self._chunks:
            if chunk.next_offset <= offset:
                continue
            view = chunk.view
            length = chunk.size
            next_offset = chunk.next_offset
            if not views and chunk.base_offset < offset:
                skip = seek_batch(view, 0, length, offset)
                if skip:
                    view = view[skip:]
                    length -= skip
            if until is not None and next_offset > until:
                view = _clip_to(view, until)
                length = len(view)
                if not length:
                    break
                next_offset = _end_offset(view)
            room = max_bytes - size
            if length > room or next_offset - offset > MAX_OFFSET_SPAN:
                view = _clip(view, room, offset, first=not views, at_least_one=at_least_one)
                length = len(view)
                if not length:
                    break
                if length < chunk.size:
                    next_offset = _end_offset(view)
            views.append(view)
            charges.append(chunk.charge)
            size += length
            end = next_offset
            newest = chunk.newest if end == chunk.next_offset else -1
            if end != chunk.next_offset or size >= max_bytes:
                break
        return WindowRead(views, size, end, charges, newest) if views else None

    def release(self, offset: int, keep: int = 0, limit: int = 0) -> int:
        """Drop chunks wholly below `offset`, but keep the last `keep` bytes of them; returns the bytes
        dropped.
        """
        freed = 0
        chunks = self._chunks
        while chunks and chunks[0].next_offset <= offset:
            if self.bytes - chunks[0].size < keep and self.bytes < limit:
                break
            freed += self._drop_first()
        if not chunks and self.start < offset:
            self.start = min(offset, self.next_offset)
        return freed

    def _drop_first(self) -> int:
        chunk = self._chunks.popleft()
        self.bytes -= chunk.size
        self.start = chunk.next_offset
        chunk.charge.drop()
        return chunk.size

    def damaged(self, offset: int, until: int) -> tuple[int, int] | None:
        """(first, last offset) of the first batch from `offset` to below `until` whose checksum is not that of its bytes."""
        for chunk in self._chunks:
            if chunk.next_offset <= offset:
                continue
            if chunk.base_offset >= until:
                break
            for header in iter_batch_headers(chunk.view, 0, chunk.size):
                if header.next_offset > offset and not header.crc_ok(chunk.view):
                    return header.base_offset, header.last_offset
        return None

    def truncate(self, offset: int) -> None:
        """Forget every batch that reaches `offset` or beyond."""
        if offset >= self.next_offset:
            return
        if offset <= self.start:
            self.reset(min(offset, self.start))
            return
        chunks = self._chunks
        while chunks and chunks[-1].next_offset > offset:
            chunk = chunks.pop()
            self.bytes -= chunk.size
            kept = seek_batch(chunk.view, 0, chunk.size, offset)
            if kept:
                view = chunk.view[:kept]
                cut = WindowChunk(chunk.base_offset, _end_offset(view), view, kept, chunk.charge)
                chunks.append(cut)
                self.bytes += kept
                break
            chunk.charge.drop()
        # A batch across the border goes as a whole; then reading goes on at its beginning.
        self.next_offset = chunks[-1].next_offset if chunks else self.start

    def reset(self, start: int) -> int:
        """Forget everything and begin again at `start`; returns the bytes dropped."""
        freed = self.bytes
        for chunk in self._chunks:
            chunk.charge.drop()
        self._chunks.clear()
        self.bytes = 0
        self.start = self.next_offset = start
        return freed


def _clip(view: memoryview, room: int, offset: int, *, first: bool, at_least_one: bool) -> memoryview:
    """The whole batches of `view` that fit into `room` and into the offset span."""
    end = 0
    for header in iter_batch_headers(view, 0, len(view)):
        fits = header.end <= room and header.next_offset - offset <= MAX_OFFSET_SPAN
        if not fits and not (first and end == 0 and at_least_one):
            break
        end = header.end
        if not fits:
            break
    return view[:end]


def _clip_to(view: memoryview, until: int) -> memoryview:
    """The whole batches of `view` that end at offset `until` or before."""
    end = 0
    for header in iter_batch_headers(view, 0, len(view)):
        if header.next_offset > until:
            break
        end = header.end
    return view[:end]


def _end_offset(view: memoryview) -> int:
    end = 0
    for header in iter_batch_headers(view, 0, len(view)):
        end = header.next_offset
    return end
