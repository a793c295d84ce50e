"""Pieces of replicas' logs to read, and the walk over the bytes a broker answered with.

Pure: offsets and buffers in, positions out. A walk takes damaged bytes as they come: what breaks the log's own order is
noted, what is no batch at all ends the walk with a reason. Sockets are reader.py's, comparing is verdict.py's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from wire.frames.batch import BATCH_OVERHEAD, LENGTH_OVERHEAD, MIN_LENGTH
from wire.frames.types import Buffer

SOURCE = 0
"""The source's slot; a plan's replicas have slots from 1."""
LEADER = -1
"""Instead of a broker id: whoever leads the partition."""

_WALK = struct.Struct(">qi4xb4xhi")  # base offset, length, magic, attributes, last offset delta


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [start, end) of one replica. A batch belongs to the span in which its base offset lies; with `first` one that
    holds `start` without beginning there does too (a log may start inside a batch). Reading begins at `read_from`,
    before `start` where the log goes further back, so that the seam between two spans is looked at as well."""

    range_id: int  # the same piece has the same id on every replica
    topic: str
    partition: int
    slot: int
    node: int  # broker id or LEADER
    start: int
    end: int
    read_from: int
    first: bool = False


@dataclass(slots=True)
class Walked:
    """One answer's part of a span: positions of its batches in the buffer, and for each the offset that the log
    had reached before it (-1: nothing was seen before)."""

    positions: list[int] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)
    cut: bool = False  # the answer ended inside a batch
    broken: str | None = None  # why the walk cannot go on


@dataclass(slots=True)
class SpanCursor:
    """How far a span has been read.

    Each fetch asks for the last batch again: a second copy of it, or one that lies behind it out of order, would else be
    skipped by the broker's search for the next offset when an answer ends just there.
    """

    span: Span
    next_offset: int = -1  # the highest offset after a batch, -1 before the first
    tail: list[int] = field(
        default_factory=list
    )  # base offsets from the batch asked for again to the last one seen
    exact: bool = False  # do not ask for it again: nothing lay behind it
    done: bool = False

    @property
    def fetch_offset(self) -> int:
        if self.next_offset < 0:
            return self.span.read_from
        return self.next_offset if self.exact else self.next_offset - 1

    @property
    def position(self) -> int:
        """The offset from which on nothing has been seen."""
        return max(self.next_offset, self.span.read_from)

    def walk(self, buf: Buffer, start: int, end: int) -> Walked:
        """Take the batches in buf[start:end]. A partial batch at the end is left for the next fetch."""
        span = self.span
        walked = Walked()
        positions, follows = walked.positions, walked.follows
        unpack = _WALK.unpack_from
        again = iter(() if self.exact else tuple(self.tail))
        highest = self.next_offset
        low, high = span.start, span.end
        pos = start
        last_header = end - BATCH_OVERHEAD
        while pos <= last_header:
            base, length, magic, _, delta = unpack(buf, pos)
            if magic != 2 or length < MIN_LENGTH or delta < 0 or base < 0:
                walked.broken = (
                    f"bytes that are no record batch (base offset {base}, length {length}, magic {magic})"
                )
                break
            batch_end = pos + LENGTH_OVERHEAD + length
            if batch_end > end:
                break
            if next(again, None) == base:
                pos = batch_end
                continue
            again = iter(())  # the log was cleaned meanwhile, or this is new
            if base >= high:
                self.done = True
            elif base >= low or (span.first and base + delta >= low):
                positions.append(pos)
                follows.append(highest)
            if base + delta >= highest:
                highest = base + delta + 1
                self.tail.clear()
            self.tail.append(base)
            pos = batch_end
        walked.cut = pos < end
        if highest > self.next_offset:
            self.exact = False
        elif pos > start and not walked.cut:
            self.exact = True
        self.next_offset = highest
        if highest >= high or self.done:
            self.done = True
            walked.broken = None  # it lies behind this span, and is another one's to tell
        return walked


def estimate_bytes(buf: Buffer, start: int, end: int) -> float | None:
    """Bytes per offset of the batches in buf[start:end], a cut one at the end included; None without any."""
    size = offsets = 0
    pos = start
    while pos + BATCH_OVERHEAD <= end:
        _, length, magic, _, delta = _WALK.unpack_from(buf, pos)
        if magic != 2 or length < MIN_LENGTH or delta < 0:
            break
        size += LENGTH_OVERHEAD + length
        offsets += delta + 1
        pos += LENGTH_OVERHEAD + length
    return size / offsets if offsets else None
